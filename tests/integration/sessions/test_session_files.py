"""Sessions out into files and in again: nothing is lost, and nothing untrusted gets in."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.session_lab import PROJECT, SessionLab, message, texts
from kaged.base import KagedError
from kaged.kernel.ownership import OPERATORS
from kaged.sessions.entry import EntryDraft, EntryKind, EntryRole
from kaged.sessions.export import export_session, import_session
from kaged.sessions.session_file import parse_export
from raising import raises_code

NOW_MS = 1_767_225_600_000
FUTURE = "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"


async def exported(lab: SessionLab, session: str) -> bytes:
    record = await lab.store.sessions.of_id(session)
    return b"".join([piece async for piece in export_session(lab.transcript, record)])


async def taken_in(lab: SessionLab, data: bytes, project_id: str = PROJECT) -> str:
    made, _ = await import_session(
        lab.store,
        lab.lifecycle,
        data,
        project_id=project_id,
        operator_id="anna",
        ownership=OPERATORS,
        clock=lab.clock,
        ids=lab.ids,
    )
    return made.id


async def rich_session(lab: SessionLab) -> str:
    """A fork with entries of every kind, a compaction of its own and one it inherited."""
    source = await lab.session("first words", "second words")
    entries = await lab.transcript.entries(source)
    draft = EntryDraft(EntryKind.COMPACTION, {"summary": "what was first", "kept": 1})
    await lab.transcript.compact(source, [entries[1].id], draft)
    fork = (await lab.transcript.fork(source)).id
    await lab.transcript.append(
        fork,
        [
            message("Grüße, 世界 \u2028 \x00", EntryRole.ASSISTANT, run_id="run_1"),
            message("child", agent="primary.subagents.coder"),
            EntryDraft(
                EntryKind.MESSAGE,
                {"content": [{"type": "image", "mime": "x/y"}], "pinned": True},
                role=EntryRole.USER,
            ),
            EntryDraft(EntryKind.TITLE, {"title": "A title"}),
            EntryDraft(EntryKind.LABEL, {"text": "here", "anchor": entries[1].id}),
            EntryDraft(EntryKind.MODEL_CHANGE, {"model": "large"}),
            EntryDraft(EntryKind.THINKING_LEVEL_CHANGE, {"level": "high"}),
            EntryDraft(EntryKind.CUSTOM, {"kind": "x.y", "data": {"n": 2**70, "f": 0.1}}),
        ],
    )
    compaction = EntryDraft(EntryKind.COMPACTION, {"summary": "second, too"})
    await lab.transcript.compact(fork, [entries[2].id], compaction)
    return fork


async def test_a_session_comes_back_entry_for_entry(lab: SessionLab) -> None:
    source = await rich_session(lab)
    data = await exported(lab, source)
    made = await taken_in(lab, data, "prj_2")
    before, after = await lab.transcript.entries(source), await lab.transcript.entries(made)
    assert len(after) == 13
    for old, new in zip(before, after, strict=True):
        assert new.session_id == made
        fields = ("id", "kind", "role", "agent", "run_id", "ts_ms", "superseded_by", "content")
        assert [getattr(new, one) for one in fields] == [getattr(old, one) for one in fields]
    window = [one.id for one in await lab.transcript.window(source)]
    assert [one.id for one in await lab.transcript.window(made)] == window
    record = await lab.store.sessions.get("prj_2", made)
    assert (record.title, record.model, record.operator_id) == ("A title", "large", "anna")
    assert (record.parent_session, record.entry_count) == (None, 13)
    assert (await exported(lab, made)).splitlines()[1:] == data.splitlines()[1:]


async def test_what_was_taken_in_goes_on_is_found_and_forks(lab: SessionLab) -> None:
    made = await taken_in(lab, await exported(lab, await rich_session(lab)), "prj_2")
    await lab.say(made, "and on")
    entries = await lab.transcript.entries(made)
    ids = [entry.id for entry in entries[1:]]
    assert ids == sorted(set(ids))
    ((hit,), _) = await lab.service.search("prj_2", '"first words"')
    assert hit.session_id == made
    fork = await lab.transcript.fork(made, entries[2].id)
    assert texts(await lab.transcript.entries(fork.id)) == ["first words", "second words"]


async def test_one_file_may_be_taken_in_twice(lab: SessionLab) -> None:
    data = await exported(lab, await lab.session("a"))
    first, second = await taken_in(lab, data), await taken_in(lab, data)
    await lab.say(first, "b")
    assert texts(await lab.transcript.entries(second)) == ["a"]


async def test_ids_go_on_behind_those_of_a_machine_whose_clock_is_ahead(lab: SessionLab) -> None:
    there = await lab.session("written")
    lab.clock.advance(3600)
    await lab.say(there, "an hour ahead")
    data = await exported(lab, there)
    await lab.reopen()
    lab.clock.set_wall(lab.clock.now_ms() - 7_200_000)
    made = await taken_in(lab, data)
    await lab.say(made, "here", "now")
    ids = [entry.id for entry in await lab.transcript.entries(made)]
    assert ids == sorted(set(ids))


async def test_a_session_of_a_header_only_comes_back(lab: SessionLab) -> None:
    made = await taken_in(lab, await exported(lab, await lab.session()))
    assert len(await lab.transcript.entries(made)) == 1


async def test_half_a_surrogate_pair_leaves_as_a_question_mark(lab: SessionLab) -> None:
    made = await taken_in(lab, await exported(lab, await lab.session("a\ud83db")))
    assert texts(await lab.transcript.entries(made)) == ["a?b"]


# -- what is refused ----------------------------------------------------------------------------

Lines = list[dict[str, Any]]


def _change(number: int, **fields: Any) -> Callable[[Lines], None]:
    def apply(lines: Lines) -> None:
        lines[number].update(fields)

    return apply


def _drop(number: int, *fields: str) -> Callable[[Lines], None]:
    def apply(lines: Lines) -> None:
        for field in fields:
            del lines[number][field]

    return apply


def _swap(lines: Lines) -> None:
    lines[2]["id"], lines[3]["id"] = lines[3]["id"], lines[2]["id"]


def _twice(lines: Lines) -> None:
    lines[3]["id"] = lines[2]["id"]


def _deep(lines: Lines) -> None:
    value: Any = {}
    for _ in range(300):
        value = {"x": value}
    lines[2]["content"]["more"] = value


def _headless(lines: Lines) -> None:
    del lines[1]


BAD: dict[str, Callable[[Lines], None]] = {
    "another format": _change(0, format="zip"),
    "another version": _change(0, version=2),
    "a field nobody knows": _change(0, extra=1),
    "no session": _drop(0, "session"),
    "a count that is wrong": _change(-1, entries=99),
    "an entry too many": lambda lines: lines.insert(2, dict(lines[2])),
    "no header": _headless,
    "two headers": _change(2, kind="header"),
    "an unknown kind": _change(2, kind="program"),
    "an unknown role": _change(2, role="root"),
    "a message without a role": _drop(2, "role"),
    "a role of a custom entry": _change(2, kind="custom"),
    "an id that is none": _change(2, id="../../etc/passwd"),
    "an id in lower case": _change(2, id="01arz3ndektsv4rrffq69g5fav"),
    "an id from the future": _change(3, id=FUTURE),
    "ids out of order": _swap,
    "an id twice": _twice,
    "a time without a zone": _change(2, ts="2026-01-01T00:00:00"),
    "no time": _change(2, ts="now"),
    "text for content": _change(2, content="x"),
    "no blocks": _change(2, content={}),
    "a block without a type": _change(2, content={"content": [{"text": "x"}]}),
    "a block without text": _change(2, content={"content": [{"type": "text"}]}),
    "a block that is none": _change(2, content={"content": [3]}),
    "an agent without a name": _change(2, agent=""),
    "an agent that moves the cursor": _change(2, agent="\x1b[2J"),
    "a very long run": _change(2, run_id="r" * 5000),
    "superseded by nobody": _change(2, superseded_by=FUTURE),
    "a line that is a list": lambda lines: lines.__setitem__(2, [1]),  # type: ignore[call-overload] - what is tested
    "depth without end": _deep,
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_export_is_refused(what: str) -> None:
    lines = [json.loads(line) for line in EXPORT.splitlines()]
    BAD[what](lines)
    with pytest.raises(KagedError) as caught:
        parse_export("\n".join(map(json.dumps, lines)).encode(), NOW_MS)
    assert caught.value.code == "session_import_invalid"
    assert caught.value.fix


async def test_a_refused_import_changes_nothing(lab: SessionLab) -> None:
    data = await exported(lab, await lab.session("a", "b"))
    with pytest.raises(KagedError):
        await taken_in(lab, data.replace(b'"role":"user"', b'"role":"root"'))
    assert (await lab.service.list(PROJECT))[1] == 1


def test_a_file_that_was_cut_short_anywhere_is_refused() -> None:
    for end in range(len(EXPORT) - 1):
        with raises_code("session_import_invalid"):
            parse_export(EXPORT[:end], NOW_MS)


@given(data=st.data())
def test_bytes_of_any_kind_are_an_export_or_are_refused(data: st.DataObject) -> None:
    whole = bytearray(EXPORT)
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    try:
        parse_export(bytes(whole), NOW_MS)
    except KagedError as error:
        if error.code != "session_import_invalid":
            raise


def test_a_file_that_is_too_large_is_refused_unread() -> None:
    with pytest.raises(KagedError) as caught:
        parse_export(b"\n" * (32 * 1024 * 1024 + 1), 0)
    assert caught.value.code == "session_import_invalid"


EXPORT = (
    b'{"format":"kaged-session","version":1,"session":{"id":"ses_1","kind":"primary","title":null,'
    b'"model":"m","parent_session":null,"parent_entry":null,'
    b'"created_at":"2025-01-01T00:00:00.000Z"}}\n'
    b'{"id":"01JGFJJZ000000000000000000","ts":"2025-01-01T00:00:00.000Z","kind":"header",'
    b'"agent":"primary","content":{"version":1}}\n'
    b'{"id":"01JGFJJZ000000000000000001","ts":"2025-01-01T00:00:00.000Z","kind":"message",'
    b'"agent":"primary","content":{"content":[{"type":"text","text":"hi"}]},"role":"user"}\n'
    b'{"id":"01JGFJJZ000000000000000002","ts":"2025-01-01T00:00:00.000Z","kind":"message",'
    b'"agent":"primary","content":{"content":"ho"},"role":"assistant"}\n'
    b'{"entries":3}\n'
)


def test_the_sample_of_these_tests_is_an_export() -> None:
    assert len(parse_export(EXPORT, NOW_MS).lines) == 3
