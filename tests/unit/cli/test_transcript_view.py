"""Sessions as people see them: a conversation that cannot speak to the terminal, and a tree."""

from __future__ import annotations

import io
from typing import Any

from kaged.cli.output import Output
from kaged.cli.transcript import show_entries, show_tree


class Terminal(io.StringIO):
    """Somebody who looks."""

    def isatty(self) -> bool:
        return True


def entry(kind: str, content: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": "01JGFJJZ01AAAAAAAAAAAAAAAA",
        "kind": kind,
        "role": None,
        "agent": "primary",
        "ts": "2026-01-01T12:34:56.789Z",
        "superseded_by": None,
        "content": content,
        **more,
    }


def shown(*entries: dict[str, Any]) -> list[str]:
    screen = io.StringIO()
    show_entries(entries, Output(as_json=False, stdout=screen))
    return screen.getvalue().splitlines()


def test_an_entry_has_its_id_its_time_and_who_speaks() -> None:
    content = {"content": [{"type": "text", "text": "one\ntwo"}]}
    child = entry("message", content, role="user", agent="primary.subagents.a", superseded_by="X")
    assert shown(child) == [
        "",
        "-- 01JGFJJZ01AAAAAAAAAAAAAAAA  12:34:56  user (primary.subagents.a)  [compacted]",
        "one",
        "two",
    ]


def test_calls_results_thoughts_and_the_other_kinds_have_their_forms() -> None:
    blocks = [
        {"type": "thinking", "text": "hm"},
        {"type": "tool_call", "name": "file.read", "input": {"path": "a"}},
        {"type": "tool_result_block", "output": "fine", "is_error": False},
        {"type": "tool_result_block", "output": {"code": "x"}, "is_error": True},
        {"type": "image"},
        "stray",
    ]
    lines = shown(
        entry("message", {"content": blocks}, role="assistant"),
        entry("message", {"content": "plain"}, role="user"),
        entry("title", {"title": "Name"}),
        entry("label", {"text": "here", "anchor": "01J"}),
        entry("compaction", {"summary": "short"}),
        entry("custom", {"kind": "a.b"}),
    )
    said = [line for line in lines if line and not line.startswith("-- ")]
    assert said == [
        "~ hm",
        '→ file.read {"path": "a"}',
        "← fine",
        '✗ {"code": "x"}',
        '{"type": "image"}',
        "stray",
        "plain",
        "Name",
        "here @ 01J",
        "short",
        '{"kind": "a.b"}',
    ]


def test_what_agents_say_cannot_speak_to_the_terminal_nor_flood_it() -> None:
    evil = "\x1b[2Jgone\x07\n" + "line\n" * 100
    lines = shown(entry("message", {"content": evil}, role="assistant"))
    assert "\x1b" not in "".join(lines)
    assert lines[-1] == "… 61 more lines"
    long = shown(entry("custom", {"x": "y" * 5000}))
    assert len(long[-1]) <= 201


def row(id_: str, parent: str | None, *, current: bool = False) -> dict[str, Any]:
    return {
        "id": id_,
        "parent_session": parent,
        "title": None if id_ == "b" else f"T{id_}",
        "entries": 3,
        "current": current,
    }


FAMILY = [
    row("a", None),
    row("b", "a"),
    row("c", "a"),
    row("d", "b", current=True),
    row("e", "gone"),
]


def test_forks_are_drawn_below_what_they_were_forked_from() -> None:
    screen = Terminal()
    show_tree(FAMILY, Output(as_json=False, stdout=screen))
    assert screen.getvalue().splitlines() == [
        "  a  Ta  (3 entries)",
        "  ├─ b  untitled  (3 entries)",
        "* │  └─ d  Td  (3 entries)",
        "  └─ c  Tc  (3 entries)",
        "  e  Te  (3 entries)",
    ]


def test_in_a_pipe_each_session_has_its_parent_beside_it() -> None:
    pipe = io.StringIO()
    show_tree(FAMILY, Output(as_json=False, stdout=pipe))
    assert pipe.getvalue().splitlines()[:3] == ["a\t\tTa", "b\ta\t", "c\ta\tTc"]
