"""URIs, languages, edits and hover texts: the pure parts of the language-server bridge."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.toolbox.lsp.edits import (
    RawEdit,
    TextEdit,
    apply_edits,
    located,
    parse_workspace_edit,
)
from kaged.toolbox.lsp.errors import RenameNotPossible
from kaged.toolbox.lsp.languages import DEFAULT_COMMANDS, Languages, install_hint
from kaged.toolbox.lsp.lookup import kind_word, markup_text, split_markup
from kaged.toolbox.lsp.positions import Encoding, SourceText, Spot, from_uri, to_uri
from kaged.toolbox.lsp.question import column_of, places_in
from requirements import requirement

NAMES = st.binary(min_size=1, max_size=20).filter(
    lambda raw: b"/" not in raw and b"\0" not in raw and raw not in {b".", b".."}
)


@requirement("AT-SYNC-12")
@given(st.lists(NAMES, min_size=1, max_size=4))
def test_every_path_survives_its_uri(names: list[bytes]) -> None:
    path = os.fsdecode(b"/" + b"/".join(names))
    uri = to_uri(path)
    assert uri.isascii()
    assert from_uri(uri) == path


@pytest.mark.parametrize(
    "uri",
    ["http://x/y", "untitled:1", "", None, 5, "file:relative", "file://host/x", "file:///a%00b"],
)
def test_what_is_no_file_here_has_no_path(uri: object) -> None:
    assert from_uri(uri) is None


def test_a_uri_cannot_climb() -> None:
    assert from_uri("file:///a/b/%2e%2e/c") == "/a/c"


@requirement("AT-LSP-13")
def test_the_default_servers() -> None:
    assert dict(DEFAULT_COMMANDS) == {
        "typescript": ("typescript-language-server", "--stdio"),
        "javascript": ("typescript-language-server", "--stdio"),
        "python": ("pyright-langserver", "--stdio"),
        "rust": ("rust-analyzer",),
        "go": ("gopls",),
    }


@requirement("AT-LSP-15")
@pytest.mark.parametrize(
    ("name", "language"),
    [
        *((f"a{ext}", "typescript") for ext in (".ts", ".tsx", ".mts", ".cts")),
        *((f"a{ext}", "javascript") for ext in (".js", ".jsx", ".mjs", ".cjs")),
        ("a.py", "python"),
        ("a.pyi", "python"),
        ("a.rs", "rust"),
        ("a.go", "go"),
        ("A.PY", "python"),
        ("a.zig", "zig"),
    ],
)
def test_the_language_follows_from_the_extension(name: str, language: str) -> None:
    found = Languages({**DEFAULT_COMMANDS, "zig": ("zls",)}).of(f"/p/{name}")
    assert found is not None
    assert found.language == language


def test_a_file_without_a_configured_language_has_none() -> None:
    languages = Languages(DEFAULT_COMMANDS)
    for name in ("notes.xyz", "Makefile", "a.zig", ".py"):
        assert languages.of(f"/p/{name}") is None


def test_every_default_server_says_how_to_install_it() -> None:
    for command in DEFAULT_COMMANDS.values():
        assert "install" in install_hint(command) or "rustup" in install_hint(command)


# -- edits -----------------------------------------------------------------------------------------


def at(line: int, start: int, end: int, text: str) -> RawEdit:
    span = {"start": {"line": line, "character": start}, "end": {"line": line, "character": end}}
    return RawEdit(span, text)  # type: ignore[arg-type]  # plain JSON


def test_edits_of_one_file_do_not_move_each_other() -> None:
    source = SourceText("a a a\n")
    edits = located(
        source, [at(0, 0, 1, "long"), at(0, 4, 5, ""), at(0, 2, 3, "x")], Encoding.UTF16
    )
    assert apply_edits(source, edits) == "long x \n"


def test_insertions_at_one_place_keep_their_order() -> None:
    source = SourceText("x")
    edits = located(source, [at(0, 0, 0, "1"), at(0, 0, 0, "2"), at(0, 0, 0, "2")], Encoding.UTF8)
    assert apply_edits(source, edits) == "122x"


def test_an_edit_that_is_said_twice_is_made_once() -> None:
    source = SourceText("old old")
    edits = located(source, [at(0, 0, 3, "new"), at(0, 0, 3, "new")], Encoding.UTF16)
    assert apply_edits(source, edits) == "new old"


def test_overlapping_edits_are_refused() -> None:
    source = SourceText("abcdef")
    edits = located(source, [at(0, 0, 3, "x"), at(0, 2, 5, "y")], Encoding.UTF16)
    with pytest.raises(RenameNotPossible):
        apply_edits(source, edits)


@given(
    st.text(max_size=60),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5), st.text(max_size=4)), max_size=6),
)
def test_edits_give_what_making_them_from_the_end_gives(
    text: str, wanted: list[tuple[int, int, str]]
) -> None:
    taken: list[TextEdit] = []
    at_end = 0
    for first, length, new in sorted(wanted):
        start = min(first, len(text))
        if start < at_end:
            continue
        at_end = min(start + length, len(text))
        taken.append(TextEdit(start, at_end, new, Spot(1, 0)))
    expected = text
    for edit in reversed(taken):
        expected = expected[: edit.start] + edit.new_text + expected[edit.end :]
    assert apply_edits(SourceText(text), taken) == expected


@pytest.mark.parametrize(
    "broken",
    [
        5,
        {"documentChanges": [5]},
        {"documentChanges": [{"kind": "create", "uri": "file:///x"}]},
        {"documentChanges": [{"kind": "delete", "uri": "file:///x"}]},
        {"documentChanges": [{"kind": "rename", "oldUri": "x"}]},
        {"changes": {"file:///x": 5}},
        {"changes": {"file:///x": [5]}},
        {"changes": {"file:///x": [{"range": {}, "newText": 5}]}},
        {"changes": {"file:///x": [{"range": {}, "snippet": {"value": "$1"}}]}},
    ],
)
def test_an_edit_that_cannot_be_understood_changes_nothing(broken: object) -> None:
    with pytest.raises(RenameNotPossible):
        parse_workspace_edit(broken)  # type: ignore[arg-type]  # the point


def test_a_range_that_ends_before_it_starts_is_refused() -> None:
    backwards = RawEdit(
        {"start": {"line": 0, "character": 3}, "end": {"line": 0, "character": 1}}, "x"
    )
    with pytest.raises(RenameNotPossible):
        located(SourceText("abcdef"), [backwards], Encoding.UTF16)


def test_documents_that_are_no_files_are_noted() -> None:
    plan = parse_workspace_edit({"changes": {"untitled:1": []}})
    assert (plan.files, plan.unreadable) == ({}, ["untitled:1"])


# -- small things ----------------------------------------------------------------------------------


@requirement("AT-LSP-51")
@pytest.mark.parametrize(
    ("contents", "content", "documentation"),
    [
        ("plain words", "plain words", None),
        ("signature\n\nmore\n\nand more", "signature", "more\n\nand more"),
        ({"language": "go", "value": "func F()"}, "func F()", None),
        ([{"language": "go", "value": "func F()"}, "Does F."], "func F()", "Does F."),
        ({"kind": "markdown", "value": "```ts\nlet x\n```\n\n---\nDocs"}, "let x", "Docs"),
        ({"kind": "markdown", "value": ""}, None, None),
        (None, None, None),
    ],
)
def test_hover_texts(contents: object, content: str | None, documentation: str | None) -> None:
    text = markup_text(contents)  # type: ignore[arg-type]  # plain JSON
    assert split_markup(text) == (content, documentation)


def test_symbols_are_found_as_whole_words() -> None:
    assert column_of("foobar = bar", "bar") == 9
    assert column_of("a->b", "->") == 1


def test_kinds_are_words() -> None:
    assert [kind_word(kind) for kind in (5, 6, 12, 26, 0, 27, None, True)] == [
        "class",
        "method",
        "function",
        "type_parameter",
        "unknown",
        "unknown",
        "unknown",
        "unknown",
    ]


def test_answers_that_are_no_locations_are_left_out() -> None:
    assert places_in([5, None, {"uri": "untitled:1", "range": {}}, {"uri": "file:///x"}]) == []
