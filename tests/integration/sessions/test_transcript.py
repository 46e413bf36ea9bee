from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.session_lab import PROJECT, SessionLab, message, texts
from kaged.base import KagedError, ManualClock
from kaged.sessions.entry import EntryDraft, EntryKind, EntryRole
from kaged.store.session_rows import SessionKind
from requirements import requirement


async def test_a_session_begins_with_its_header(lab: SessionLab) -> None:
    made = await lab.transcript.create(
        PROJECT, cwd="/src", model="fast", system_prompt="Be brief.", operator_id="anna"
    )
    (header,) = await lab.transcript.entries(made.id)
    assert (header.kind, header.role) == (EntryKind.HEADER, None)
    assert header.content == {
        "version": 1,
        "cwd": "/src",
        "model": "fast",
        "system_prompt": "Be brief.",
    }
    assert (made.head_entry, made.entry_count) == (header.id, 1)
    assert (made.model, made.operator_id) == ("fast", "anna")


@requirement("AT-SESS-01")
async def test_a_session_is_the_same_after_it_is_loaded_again(lab: SessionLab) -> None:
    made = await lab.session()
    flow = await lab.transcript.create(
        PROJECT, kind=SessionKind.WORKFLOW, cwd="/src", model=None, session_id=lab.ids.ulid()
    )
    number = (await lab.store.issues.create(PROJECT, "t", "b", "open", "operator")).number
    bound = await lab.store.sessions.bind(PROJECT, made, number)
    statuses = {bound.status}
    await lab.store.agent_runs.begin(made, cause=lab.MESSAGE)
    statuses.add((await lab.store.sessions.get(PROJECT, made)).status)
    before = await lab.store.sessions.get(PROJECT, made)
    await lab.reopen()
    after = await lab.store.sessions.get(PROJECT, made)
    assert after == before
    assert made.startswith("ses_")
    assert len(flow.id) == 26
    assert (after.kind, flow.kind) == ("primary", "workflow")
    assert (after.project_id, after.bound_issue) == (PROJECT, bound.bound_issue)
    assert statuses == {"idle", "running"}
    assert after.created_at_ms > 0
    assert after.updated_at_ms >= after.created_at_ms
    with pytest.raises(KagedError) as other:
        await lab.store.sessions.get("prj_2", made)
    assert other.value.code == "session_not_found"


async def test_entries_come_back_in_the_order_in_which_they_were_appended(lab: SessionLab) -> None:
    session = await lab.session()
    await lab.transcript.append(session, [message(f"m{n}") for n in range(5)])
    lab.clock.advance(1)
    made = await lab.transcript.append(session, [message("last", EntryRole.ASSISTANT)])
    found = await lab.transcript.entries(session)
    assert texts(found) == ["m0", "m1", "m2", "m3", "m4", "last"]
    assert found[-1] == made[0]
    assert found[-1].ts_ms == lab.clock.now_ms()


async def test_ids_of_entries_sort_within_a_millisecond_when_the_clock_goes_back_and_anew(
    lab: SessionLab,
) -> None:
    """A thousand at once, then a day back, then a new daemon two days back."""
    session = await lab.session()
    await lab.transcript.append(session, [message(str(n)) for n in range(1000)])
    lab.clock.set_wall(lab.clock.now_ms() - 86_400_000)
    await lab.transcript.append(session, [message("a day back")])
    await lab.reopen(clock=ManualClock(now_ms=lab.clock.now_ms() - 86_400_000))
    await lab.transcript.append(session, [message("anew"), message("and more")])
    found = await lab.transcript.entries(session)
    ids = [entry.id for entry in found]
    assert ids == sorted(set(ids))
    assert len(ids) == 1004
    assert texts(found)[-3:] == ["a day back", "anew", "and more"]


async def test_an_entry_once_written_cannot_be_changed_even_by_sql(lab: SessionLab) -> None:
    session = await lab.session("hello")
    with pytest.raises(KagedError) as caught:
        await lab.store.write(lambda conn: conn.exec_driver_sql("UPDATE entries SET content='{}'"))
    assert caught.value.code == "store_conflict"
    assert texts(await lab.transcript.entries(session)) == ["hello"]


async def test_entries_can_be_read_a_piece_at_a_time(lab: SessionLab) -> None:
    session = await lab.session("a", "b", "c")
    fork = (await lab.transcript.fork(session)).id
    await lab.say(fork, "d", "e")
    for one in (session, fork):
        whole = await lab.transcript.entries(one)
        after, found = None, []
        while batch := await lab.transcript.entries(one, after=after, limit=2):
            found += batch
            after = batch[-1].id
        assert found == whole
    assert texts(await lab.transcript.last(fork, 3)) == ["c", "d", "e"]
    assert texts(await lab.transcript.last(fork, 99)) == ["a", "b", "c", "d", "e"]


async def test_either_all_entries_of_an_append_are_kept_or_none(lab: SessionLab) -> None:
    session = await lab.session("before")
    whole = await lab.transcript.entries(session)
    bad: list[EntryDraft] = [
        EntryDraft(EntryKind.MESSAGE, {"content": []}),
        EntryDraft(EntryKind.CUSTOM, {}, role=EntryRole.USER),
        EntryDraft(EntryKind.HEADER, {}),
        EntryDraft(EntryKind.CUSTOM, {"x": object()}),  # type: ignore[dict-item] - what is tested
        EntryDraft(EntryKind.CUSTOM, {"x": "y" * (8 * 1024 * 1024)}),
    ]
    for draft in bad:
        with pytest.raises(KagedError) as caught:
            await lab.transcript.append(session, [message("fine"), draft])
        assert caught.value.code in {"entry_invalid", "entry_too_large"}
    assert await lab.transcript.entries(session) == whole
    with pytest.raises(KagedError) as unknown:
        await lab.transcript.append("ses_none", [message("x")])
    assert unknown.value.code == "session_not_found"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False,
    allow_infinity=False) | st.text(st.characters(), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner,
    max_size=4),
    max_leaves=10,
)  # fmt: skip


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.dictionaries(st.text(max_size=8), JSON, max_size=4))
async def test_whatever_json_an_entry_holds_comes_back_as_it_was(
    lab: SessionLab, content: dict[str, Any]
) -> None:
    session = await lab.session()
    await lab.transcript.append(session, [EntryDraft(EntryKind.CUSTOM, content)])
    assert (await lab.transcript.entries(session))[-1].content == content


async def test_half_a_surrogate_pair_in_a_tools_output_is_kept(lab: SessionLab) -> None:
    session = await lab.session("bad \ud83d byte")
    assert texts(await lab.transcript.entries(session)) == ["bad \ud83d byte"]


# -- forks --------------------------------------------------------------------------------------


async def test_a_fork_shows_what_was_before_it_under_the_same_ids(lab: SessionLab) -> None:
    source = await lab.session("a", "b", "c")
    before = await lab.transcript.entries(source)
    fork = await lab.transcript.fork(source, before[2].id)
    await lab.say(fork.id, "x")
    await lab.say(source, "d")
    shown = await lab.transcript.entries(fork.id)
    assert texts(shown) == ["a", "b", "x"]
    assert shown[1:3] == before[1:3]
    assert shown[0].id not in {entry.id for entry in before}
    assert shown[0].content == {
        **before[0].content,
        "parent_session": source,
        "parent_entry": before[2].id,
    }
    assert texts(await lab.transcript.entries(source)) == ["a", "b", "c", "d"]
    assert (fork.parent_session, fork.parent_entry) == (source, before[2].id)


async def test_a_fork_without_a_place_is_at_the_last_entry(lab: SessionLab) -> None:
    source = await lab.session("a", "b")
    fork = await lab.transcript.fork(source)
    assert texts(await lab.transcript.entries(fork.id)) == ["a", "b"]
    assert fork.entry_count == 3


async def test_a_fork_at_the_header_has_nothing_but_a_header(lab: SessionLab) -> None:
    source = await lab.session("a")
    header = (await lab.transcript.entries(source))[0]
    fork = await lab.transcript.fork(source, header.id)
    (own,) = await lab.transcript.entries(fork.id)
    assert own.kind is EntryKind.HEADER
    assert own.id != header.id
    await lab.say(fork.id, "new")
    assert texts(await lab.transcript.entries(fork.id)) == ["new"]


async def test_a_session_of_a_header_only_has_nothing_to_fork_at(lab: SessionLab) -> None:
    with pytest.raises(KagedError) as caught:
        await lab.transcript.fork(await lab.session())
    assert caught.value.code == "nothing_to_fork"


async def test_every_entry_of_a_fork_of_forks_is_a_place_to_fork_at(lab: SessionLab) -> None:
    """Also entries of ancestors: the branch ends there whoever wrote them."""
    first = await lab.session("a", "b")
    second = (await lab.transcript.fork(first)).id
    await lab.say(second, "c", "d")
    third = (await lab.transcript.fork(second, (await lab.transcript.entries(second))[3].id)).id
    await lab.say(third, "e")
    shown = await lab.transcript.entries(third)
    assert texts(shown) == ["a", "b", "c", "e"]
    for number, entry in enumerate(shown[1:], 1):
        branch = await lab.transcript.fork(third, entry.id)
        assert texts(await lab.transcript.entries(branch.id)) == ["a", "b", "c", "e"][:number]
        assert branch.parent_session == third


async def test_a_long_line_of_forks_reads_as_one_session(lab: SessionLab) -> None:
    session = await lab.session("0")
    for number in range(1, 25):
        session = (await lab.transcript.fork(session)).id
        await lab.say(session, str(number))
    assert texts(await lab.transcript.entries(session)) == [str(n) for n in range(25)]
    assert len(await lab.transcript.window(session)) == 25


async def test_an_entry_is_found_by_the_beginning_of_its_id(lab: SessionLab) -> None:
    session = await lab.session()
    lab.clock.advance(40_000)
    (one,) = await lab.transcript.append(session, [message("one")])
    lab.clock.advance(40_000)
    (two,) = await lab.transcript.append(session, [message("two")])
    assert await lab.transcript.find_entry(session, one.id[:8].lower()) == one
    assert await lab.transcript.find_entry(session, two.id) == two
    for prefix, code in (
        (one.id[:3], "entry_ambiguous"),
        ("7ZZZ", "entry_not_found"),
        ("", "entry_not_found"),
        ("%", "entry_not_found"),
        (one.id + "0", "entry_not_found"),
    ):
        with pytest.raises(KagedError) as caught:
            await lab.transcript.find_entry(session, prefix)
        assert caught.value.code == code
    stranger = await lab.session("elsewhere")
    foreign = (await lab.transcript.entries(stranger))[1]
    with pytest.raises(KagedError) as caught:
        await lab.transcript.find_entry(session, foreign.id)
    assert caught.value.code == "entry_not_found"


# -- windows ------------------------------------------------------------------------------------


def compaction(summary: str, agent: str = "primary") -> EntryDraft:
    return EntryDraft(EntryKind.COMPACTION, {"summary": summary}, agent=agent)


async def test_a_compaction_takes_entries_out_of_the_window_and_of_nothing_else(
    lab: SessionLab,
) -> None:
    session = await lab.session("a", "b", "c")
    entries = await lab.transcript.entries(session)
    made = await lab.transcript.compact(
        session, [entries[1].id, entries[2].id], compaction("a and b")
    )
    window = await lab.transcript.window(session)
    assert [entry.id for entry in window] == [entries[3].id, made.id]
    after = await lab.transcript.entries(session)
    assert texts(after) == ["a", "b", "c"]
    assert [entry.superseded_by for entry in after] == [None, made.id, made.id, None, None]


async def test_a_fork_from_before_a_compaction_has_the_originals_in_its_window(
    lab: SessionLab,
) -> None:
    session = await lab.session("a", "b")
    entries = await lab.transcript.entries(session)
    before = (await lab.transcript.fork(session)).id
    await lab.transcript.compact(session, [entries[1].id], compaction("a"))
    await lab.say(session, "c")
    early = (await lab.transcript.fork(session, entries[2].id)).id
    late = (await lab.transcript.fork(session)).id
    assert texts(await lab.transcript.window(before)) == ["a", "b"]
    assert texts(await lab.transcript.window(early)) == ["a", "b"]
    assert texts(await lab.transcript.window(late)) == ["b", "c"]
    # What the fork compacts is its own affair.
    await lab.transcript.compact(late, [entries[2].id], compaction("b"))
    assert texts(await lab.transcript.window(late)) == ["c"]
    assert texts(await lab.transcript.window(session)) == ["b", "c"]


async def test_the_windows_of_agents_are_apart(lab: SessionLab) -> None:
    session = await lab.session("mine")
    child = "primary.subagents.coder"
    await lab.transcript.append(session, [message("yours", agent=child)])
    await lab.transcript.append(session, [EntryDraft(EntryKind.LABEL, {"text": "here"})])
    assert texts(await lab.transcript.window(session)) == ["mine"]
    assert texts(await lab.transcript.window(session, child)) == ["yours"]


async def test_a_compaction_of_what_is_not_there_changes_nothing(lab: SessionLab) -> None:
    session = await lab.session("a")
    entries = await lab.transcript.entries(session)
    for wrong in ("01ARZ3NDEKTSV4RRFFQ69G5FAV", entries[0].id, entries[1].id[:10]):
        with pytest.raises(KagedError) as caught:
            await lab.transcript.compact(session, [entries[1].id, wrong], compaction("x"))
        assert caught.value.code == "entry_not_found"
    with pytest.raises(KagedError) as caught:
        await lab.transcript.compact(session, [], message("no compaction"))
    assert caught.value.code == "entry_invalid"
    assert await lab.transcript.entries(session) == entries


# -- what listeners hear ------------------------------------------------------------------------


async def test_listeners_hear_of_entries_without_their_text(lab: SessionLab) -> None:
    session = await lab.session()
    lab.events.clear()
    (made,) = await lab.transcript.append(
        session, [message("MARKER", EntryRole.ASSISTANT, run_id="run_1")]
    )
    (event,) = lab.events
    assert (event.name, event.session_id, event.run_id) == ("entry.appended", session, "run_1")
    assert event.data["id"] == made.id
    assert event.data["role"] == "assistant"
    assert "MARKER" not in json.dumps(event.as_json())


async def test_a_title_and_a_model_are_the_sessions_own_from_then_on(lab: SessionLab) -> None:
    session = await lab.session()
    await lab.transcript.append(
        session,
        [
            EntryDraft(EntryKind.TITLE, {"title": "First"}),
            EntryDraft(EntryKind.TITLE, {"title": "Last"}),
            EntryDraft(EntryKind.MODEL_CHANGE, {"model": "large"}),
        ],
    )
    found = await lab.store.sessions.get(PROJECT, session)
    assert (found.title, found.model) == ("Last", "large")
    assert [event.data for event in lab.events if event.name == "session.titled"] == [
        {"title": "Last"}
    ]


async def test_a_listener_that_raises_is_nobodys_problem(lab: SessionLab) -> None:
    def broken(event: object) -> None:
        raise RuntimeError(str(event))

    off = lab.lifecycle.subscribe(broken)
    session = await lab.session("a")
    assert [event.name for event in lab.events][-1] == "entry.appended"
    off()
    off()
    assert texts(await lab.transcript.entries(session)) == ["a"]


async def test_a_workflows_session_gets_its_header_once(lab: SessionLab) -> None:
    run_id = lab.ids.ulid()
    await lab.store.sessions.ensure(run_id, PROJECT, SessionKind.WORKFLOW)
    made = await lab.transcript.create(
        PROJECT, kind=SessionKind.WORKFLOW, cwd="/", model=None, session_id=run_id
    )
    assert (made.kind, made.status, made.entry_count) == ("workflow", "running", 1)
    with pytest.raises(KagedError) as caught:
        await lab.transcript.create(PROJECT, cwd="/", model=None, session_id=run_id)
    assert caught.value.code == "session_exists"
