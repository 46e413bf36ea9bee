"""What a launch names: a file, a module, or a test by its id."""

from __future__ import annotations

import pytest

from kaged.base import JsonObject
from kaged.toolbox.dap.targets import MAX_TEST_CHARS, check_target, target_paths
from kaged.tools import InvalidToolParams

PYTHON: JsonObject = {"action": "launch", "runtime": "python"}


def paths(**args: str) -> list[tuple[str, str, bool]]:
    given = target_paths({**PYTHON, **args})
    return [(one.field, one.value, one.search) for one in given]


def test_the_file_of_a_test_is_what_the_call_touches() -> None:
    here = ("cwd", "./", True)
    assert paths(script="t/test_x.py::A::test_b[1::2]") == [
        ("script", "t/test_x.py", False),
        here,
    ]
    assert paths(script="main.py", cwd="src") == [
        ("script", "main.py", False),
        ("cwd", "src", True),
    ]
    assert paths(module="pytest") == [here]
    # For others `::` is a part of a name like any other.
    assert paths(script="a::b", runtime="c") == [("script", "a::b", False), here]


@pytest.mark.parametrize(
    "args",
    [
        {"script": "main.py"},
        {"script": "t.py::A::test_b[x/ü - 1]"},
        {"script": f"t.py::{'a' * MAX_TEST_CHARS}"},
        {"module": "pytest"},
        {"module": "a_1.b.__main__"},
        {"script": "a::", "runtime": "c"},
    ],
)
def test_what_can_be_started_is_let_through(args: JsonObject) -> None:
    check_target({**PYTHON, **args})


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"script": "main.py", "module": "pytest"},
        {"script": "t.py::"},
        {"script": "t.py::a\x00b"},
        {"script": "t.py::a\nb"},
        {"script": f"t.py::{'a' * (MAX_TEST_CHARS + 1)}"},
        {"module": "a/b"},
        {"module": ".a"},
        {"module": "a..b"},
        {"module": "-c"},
        {"module": "1a"},
        {"module": "a\n"},
    ],
)
def test_what_cannot_is_refused(args: JsonObject) -> None:
    with pytest.raises(InvalidToolParams):
        check_target({**PYTHON, **args})
