from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.cage.arguments import (
    MAX_ENV_ENTRIES,
    DescriptorSlot,
    check_command,
    check_environment,
    check_path,
    encode_arguments,
)
from kaged.cage.errors import UnsafeArgument

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


@given(st.lists(TEXT.filter(lambda text: "\0" not in text), max_size=30))
def test_what_is_written_is_what_bwrap_reads(words: list[str]) -> None:
    data = encode_arguments(words, {})
    assert data.decode().split("\0")[:-1] == words


@given(st.lists(TEXT, max_size=10), TEXT, TEXT, st.lists(TEXT, max_size=10))
def test_a_nul_byte_never_becomes_an_option(
    before: list[str], left: str, right: str, after: list[str]
) -> None:
    with pytest.raises(UnsafeArgument):
        encode_arguments([*before, f"{left}\0{right}", *after], {})


def test_descriptors_are_put_in_by_label() -> None:
    data = encode_arguments(["--seccomp", DescriptorSlot("seccomp")], {"seccomp": 7})
    assert data == b"--seccomp\x007\x00"


def test_more_options_than_bwrap_takes_are_refused() -> None:
    with pytest.raises(UnsafeArgument, match="bwrap takes"):
        encode_arguments(["x"] * 8001, {})


@pytest.mark.parametrize(
    "path",
    ["relative", "", "/a/../b", "/a/./b", "/a//b", "//a", "/a/", "/a\0b", "/a\nb", "/a\x1b[1m",
     "/" + "x" * 5000, "/\ud800"],
)  # fmt: skip
def test_a_path_that_is_not_plain_is_refused(path: str) -> None:
    with pytest.raises(UnsafeArgument):
        check_path(path)


@pytest.mark.parametrize("path", ["/", "/a", "/a b/ü", "/a/..b", "/a/\udce9"])
def test_a_plain_path_passes(path: str) -> None:
    assert check_path(path) == path


@pytest.mark.parametrize(
    ("name", "value"),
    [("A", "x\0--bind\0/\0/"), ("", "x"), ("A=B", "x"), ("A B", "x"), ("A\n", "x"), ("A\0", "x"),
     ("A", "x" * 200_000), ("A", "\ud800")],
)  # fmt: skip
def test_a_variable_that_could_not_be_passed_on_is_refused(name: str, value: str) -> None:
    with pytest.raises(UnsafeArgument):
        check_environment([(name, value)])


def test_variables_with_odd_but_harmless_names_and_values_pass() -> None:
    check_environment([("npm_config_x", ""), ("a.b", "x=y\nz"), ("Ü", "\u2028")])


def test_too_many_variables_are_refused() -> None:
    with pytest.raises(UnsafeArgument):
        check_environment([(f"V{number}", "") for number in range(MAX_ENV_ENTRIES + 1)])


@pytest.mark.parametrize(
    "command",
    [(), ("",), ("x\0y",), ("x", "a\0b"), ("--bind", "/"), ("x", "y" * 200_000), ("x",) * 5000],
)
def test_a_command_that_could_not_be_passed_on_is_refused(command: tuple[str, ...]) -> None:
    with pytest.raises(UnsafeArgument):
        check_command(command)


def test_a_plain_command_passes() -> None:
    check_command(("sh", "-c", "echo 'a b'\n", "--", ""))
