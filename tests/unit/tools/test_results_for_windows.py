"""Results on their way into a window: compact text, within the budget, nothing lost."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.tool_lab import ToolLab
from kaged.base import JsonObject, JsonValue
from kaged.kernel.identity import Actor, VouchedBy
from kaged.toolbox.files import file_tools
from kaged.tools import ToolCallContext, ToolError
from kaged.tools.kept_results import MAX_RESULTS, KeptResults, is_handle
from kaged.tools.result_cut import MIN_RESULT_TOKENS, fit_lines, tokens_of, wrapped
from kaged.tools.result_text import PLAIN_VIEW, ResultView, text_of
from kaged.tools.shown_results import ResultBudget, ShownResults

CONTEXT = ToolCallContext(
    session_id="ses_1",
    run_id="run_1",
    caller="primary",
    project_id="prj_1",
    project_root="/p",
    cage_policy=None,
    request_id="req_1",
)
READERS = ("file.read", "search.grep")
MARK = re.compile(r"\[lines (\d+)-(\d+) of (\d+) left out, (\d+) (?:bytes|KiB): file.read (\S+) ")


def kept_in(folder: Path, **more: Any) -> KeptResults:
    numbers = count(1)
    return KeptResults(folder / "results", lambda: f"res_{next(numbers):026}", **more)


def person(name: str, chat: str | None = None) -> Actor:
    return Actor(name, VouchedBy.SIGN_IN, "private", chat, is_person=True)


# -- text ------------------------------------------------------------------------------------------


def test_short_values_come_first_and_long_texts_stand_as_they_are() -> None:
    said: JsonObject = {
        "stdout": 'line "1"\nline\t2\n',
        "exit_code": 1,
        "timed_out": False,
        "stderr": "",
        "rows": [{"name": "a b", "n": 1}, {"name": "x, y", "n": None}],
        "tags": ["a", "b"],
    }
    assert text_of(said) == (
        'exit_code: 1\ntimed_out: false\nstderr: ""\ntags: ["a", "b"]\n'
        'rows:\n- name: a b, n: 1\n- name: "x, y", n: null\n'
        'stdout:\nline "1"\nline\t2\n'
    )
    assert text_of("as it is\n") == "as it is\n"
    assert text_of([]) == "[]"
    assert text_of({}) == "{}"
    assert text_of(None) == "null"


def test_what_lies_deep_stays_json() -> None:
    value: JsonValue = "x" * 300
    for _ in range(200):
        value = {"in": value}
    text = text_of(value)
    assert text.startswith("in:\n  in:\n")
    assert text.count("\n") == 3
    assert len(text) < 300 + 200 * 10


@given(st.text(alphabet='ab"\\\n\t{}', min_size=300))
def test_text_takes_no_more_than_the_same_as_json(text: str) -> None:
    assert len(text_of({"content": text})) <= len(json.dumps({"content": text})) + 1


# -- the cut ---------------------------------------------------------------------------------------

LINES = st.lists(st.text(alphabet="aé \N{GRINNING FACE}", max_size=1500), min_size=1, max_size=200)


@given(LINES, st.integers(1, 4000))
def test_no_result_is_over_its_budget_and_head_and_tail_are_the_texts_own(
    lines: list[str], limit: int
) -> None:
    text = wrapped("\n".join(lines))
    whole = text.split("\n")
    notes: list[tuple[int, int]] = []

    def left_out(first: int, last: int, size: int) -> str:
        notes.append((first, last))
        assert size > 0
        return "[left out]"

    shown = fit_lines("", text, 1, limit, left_out)
    assert tokens_of(shown) <= max(limit, MIN_RESULT_TOKENS)
    if not notes:
        assert shown == text
        return
    ((first, last),) = notes
    got = shown.split("\n")
    at = got.index("[left out]")
    if first > 1:
        assert got[:at] == whole[: first - 1]
    assert got[at + 1 :] == whole[last:]
    assert 1 <= first <= last <= len(whole)


def test_a_line_too_long_for_everything_shows_its_beginning() -> None:
    shown = fit_lines("", "x" * 100_000, 1, 500, lambda *_: "[left out]")
    assert shown.startswith("xxx")
    assert shown.endswith("\n[left out]")
    assert tokens_of(shown) <= 500


def test_the_budget_is_smaller_where_the_window_has_less_room() -> None:
    budget = ResultBudget(25_000, 8_000)
    reading = ResultView(is_read=True)
    assert (budget.of(PLAIN_VIEW), budget.of(reading)) == (8_000, 25_000)
    assert (budget.of(PLAIN_VIEW, 3_000), budget.of(reading, 3_000)) == (3_000, 3_000)
    assert budget.of(reading, 0) == MIN_RESULT_TOKENS


# -- kept ------------------------------------------------------------------------------------------


async def test_what_does_not_fit_is_kept_and_said_where(tmp_path: Path) -> None:
    kept = kept_in(tmp_path)
    shown = ShownResults(kept, lambda: ResultBudget(2000, 1000))
    log = "\n".join(f"line {number}" for number in range(5000))
    value: JsonValue = {"stdout": log, "exit_code": 3}
    text = await shown.show(value, CONTEXT, readers=READERS)
    assert tokens_of(text) <= 1000
    assert text.startswith("exit_code: 3\nstdout:\nline 0\n")
    assert text.endswith("line 4998\nline 4999")
    found = MARK.search(text)
    assert found is not None
    first, last, total, _, handle = found.groups()
    assert int(total) == 5002
    with os.fdopen(kept.open(CONTEXT, handle), encoding="utf-8") as file:
        whole = file.read().split("\n")
    lines = text.split("\n")
    at = lines.index(next(one for one in lines if one.startswith("[lines")))
    assert [*lines[:at], *whole[int(first) - 1 : int(last)], *lines[at + 1 :]] == whole
    assert whole[2:] == log.split("\n")


async def test_without_a_reader_or_a_place_it_only_says_what_is_missing(tmp_path: Path) -> None:
    kept = kept_in(tmp_path)
    for shown, readers in ((ShownResults(kept), ()), (ShownResults(), READERS)):
        text = await shown.show("y\n" * 50_000, CONTEXT, readers=readers)
        assert "ask for less]" in text
        assert "result:/" not in text
    assert not (tmp_path / "results").exists()


OTHERS = {
    "another session": {"session_id": "ses_2"},
    "another agent": {"caller": "primary.subagents.coder"},
    "another person": {"identity": person("ann")},
    "the same person in another chat": {"identity": person("bob", "chat_2")},
    "the operator": {"identity": None},
}


@pytest.mark.parametrize("who", OTHERS)
def test_nobody_else_reads_it(tmp_path: Path, who: str) -> None:
    changed: dict[str, Any] = OTHERS[who]
    kept = kept_in(tmp_path)
    bob = replace(CONTEXT, identity=person("bob"))
    mine = kept.keep(bob, "mine")
    assert mine is not None
    assert kept.path(bob, mine).read_text(encoding="utf-8") == "mine"
    with pytest.raises(ToolError) as refused:
        kept.path(replace(bob, **changed), mine)
    assert refused.value.code == "result_not_found", who


@pytest.mark.parametrize(
    "name", ["result:/", "result:/../x", "result:/res_1/../../x", "res_" + "1" * 26]
)
def test_a_name_that_is_no_handle_finds_nothing(tmp_path: Path, name: str) -> None:
    kept = kept_in(tmp_path)
    kept.keep(CONTEXT, "mine")
    with pytest.raises(ToolError):
        kept.path(CONTEXT, name)


def test_the_oldest_of_a_session_go_and_a_deleted_session_takes_all(tmp_path: Path) -> None:
    kept = kept_in(tmp_path)
    handles = [kept.keep(CONTEXT, "x") for _ in range(MAX_RESULTS + 2)]
    assert handles[2] is not None
    assert handles[-1] is not None
    for gone in handles[:2]:
        with pytest.raises(ToolError):
            kept.path(CONTEXT, str(gone))
    assert kept.path(CONTEXT, handles[2]).is_file()
    kept.share("ses_1", "ses_9", handles[-2] or "")
    kept.share("ses_1", "ses_8", handles[-1])
    later = replace(CONTEXT, session_id="ses_9")
    assert kept.path(later, str(handles[-2])).is_file()
    with pytest.raises(ToolError):
        kept.path(later, handles[-1])  # the fork was made before
    kept.forget("ses_1")
    with pytest.raises(ToolError):
        kept.path(CONTEXT, handles[-1])
    # A fork goes on reading what stands in its window.
    assert kept.path(replace(CONTEXT, session_id="ses_8"), handles[-1]).is_file()


def test_beyond_the_room_for_all_sessions_the_ones_that_rested_longest_go(tmp_path: Path) -> None:
    kept = kept_in(tmp_path, max_total_bytes=3000)
    handles = {
        name: kept.keep(replace(CONTEXT, session_id=name), "x" * 900) for name in ("a", "b", "c")
    }
    for number, name in enumerate(("a", "b", "c")):
        os.utime(tmp_path / "results" / name, ns=(number, number))
    last = kept.keep(replace(CONTEXT, session_id="d"), "x" * 900)
    assert last is not None
    assert kept.path(replace(CONTEXT, session_id="d"), last).is_file()
    left = [name for name in handles if (tmp_path / "results" / name).is_dir()]
    assert left == []  # a quarter is in use now, and the next ones have room again
    assert kept.keep(replace(CONTEXT, session_id="a"), "y") is not None


def test_a_full_disk_loses_only_what_is_kept(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("in the way", encoding="utf-8")
    assert kept_in(tmp_path).keep(CONTEXT, "x") is None


# -- reading ---------------------------------------------------------------------------------------


async def test_file_read_pages_through_a_kept_result_and_no_other_tool_takes_it(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    kept = kept_in(tmp_path)
    lab = ToolLab(root, file_tools(kept))
    handle = kept.keep(lab.context, "\n".join(f"line {number}\0" for number in range(100)))
    assert handle is not None
    assert is_handle(handle)
    got = await lab.call("file.read", path=handle, offset=50, limit=2)
    assert got["content"] == "50: line 49␀\n51: line 50␀"
    assert (got["total_lines"], got["next_offset"]) == (100, 52)
    refused = await lab.refusal("file.read", path="result:/res_" + "0" * 26)
    assert refused.code == "result_not_found"
    for tool, params in (
        ("file.write", {"content": "x"}),
        ("edit.text", {"old_string": "a", "new_string": "b"}),
    ):
        error = await lab.refusal(tool, path=handle, **params)
        assert error.code == "invalid_params"
        assert "kept result" in error.message
    assert [*root.iterdir()] == []


async def test_a_long_file_is_shown_from_both_ends_and_says_how_to_go_on(tmp_path: Path) -> None:
    """It is not copied: what is left out is read where it is."""
    (tmp_path / "long.txt").write_text("\n".join(f"{n} " + "x" * 80 for n in range(1, 1501)))
    lab = ToolLab(tmp_path, file_tools())
    for offset, end in ((1, 1500), (501, 1500)):
        got = await lab.call("file.read", path="long.txt", offset=offset)
        text = await lab.dispatcher.shown(
            "file.read", got, replace(lab.context, request_id="r"), room_tokens=2000
        )
        assert tokens_of(text) <= 2000
        lines = text.split("\n")
        assert f"{offset}: {offset} xxx" in text
        assert lines[-1].startswith(f"{end}: {end} ")
        (note,) = [one for one in lines if one.startswith("[lines")]
        found = re.search(r"offset (\d+) and limit (\d+)", note)
        assert found is not None
        more = await lab.call(
            "file.read", path="long.txt", offset=int(found[1]), limit=int(found[2])
        )
        missing = str(more["content"]).split("\n")
        at = lines.index(note)
        assert int(lines[at - 1].split(":")[0]) + 1 == int(missing[0].split(":")[0])
        assert int(lines[at + 1].split(":")[0]) - 1 == int(missing[-1].split(":")[0])
