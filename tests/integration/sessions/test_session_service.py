from __future__ import annotations

import asyncio

import pytest

from fakes.session_lab import PROJECT, SessionLab, message, texts
from kaged.base import JsonObject, JsonValue, KagedError
from kaged.sessions.entry import EntryDraft, EntryKind, EntryRole
from kaged.sessions.session_service import locator
from kaged.store.agent_run_rows import AgentRunStatus, RunResult
from kaged.store.inbox_rows import RequestDraft, RequestKind
from kaged.store.interaction_rows import InteractionKind, pause_session
from kaged.store.session_rows import SessionKind


async def count(lab: SessionLab, rows: str) -> int:
    sql = f"SELECT count(*) FROM {rows}"
    return int(await lab.store.read(lambda conn: conn.exec_driver_sql(sql).scalar()) or 0)


async def test_sessions_are_listed_last_used_first(lab: SessionLab) -> None:
    first = await lab.session("a")
    lab.clock.advance(1)
    second = await lab.session("b")
    lab.clock.advance(1)
    await lab.say(first, "again")
    await lab.session("c", project_id="prj_2")
    found, total = await lab.service.list(PROJECT)
    assert [one.id for one in found] == [first, second]
    assert total == 2
    flows, none = await lab.service.list(PROJECT, kind=SessionKind.WORKFLOW)
    assert (list(flows), none) == ([], 0)
    page, total = await lab.service.list(PROJECT, limit=1, offset=1)
    assert ([one.id for one in page], total) == ([second], 2)


async def test_a_session_is_named_by_id_beginning_or_locator_and_nothing_else(
    lab: SessionLab,
) -> None:
    first = await lab.session()
    lab.clock.advance(40_000)
    second = await lab.session()
    for name in (first, first[:11], first[4:11].lower(), locator(first), f" {first} "):
        assert (await lab.service.resolve(PROJECT, name)).id == first
    for name, code in (
        ("ses_", "session_ambiguous"),
        ("ses_7ZZZ", "session_not_found"),
        ("", "session_not_found"),
        ("../../other/session", "session_not_found"),
        ("/etc/passwd", "session_not_found"),
        ("ses_%", "session_not_found"),
        (locator("/etc/passwd"), "session_not_found"),
    ):
        with pytest.raises(KagedError) as caught:
            await lab.service.resolve(PROJECT, name)
        assert caught.value.code == code, name
    with pytest.raises(KagedError):
        await lab.service.resolve("prj_2", second)


# -- search -------------------------------------------------------------------------------------


async def test_words_find_entries_of_the_project_newest_first(lab: SessionLab) -> None:
    old = await lab.session("The quick brown fox.", "nothing here")
    new = await lab.session("A fox again, und Füchse.")
    await lab.session("fox of another project", project_id="prj_2")
    hits, total = await lab.service.search(PROJECT, "fox")
    assert [(hit.session_id, hit.snippet) for hit in hits] == [
        (new, "A fox again, und Füchse."),
        (old, "The quick brown fox."),
    ]
    assert total == 2
    assert [hit.session_id for hit in (await lab.service.search(PROJECT, "fuchse"))[0]] == [new]
    assert (await lab.service.search(PROJECT, '"brown fox" -again'))[1] == 1
    with pytest.raises(KagedError) as caught:
        await lab.service.search(PROJECT, '"')
    assert caught.value.code == "invalid_params"


async def test_thoughts_results_titles_and_summaries_are_found_and_arguments_are_not(
    lab: SessionLab,
) -> None:
    session = await lab.session()
    blocks: list[JsonValue] = [
        {"type": "thinking", "text": "apple"},
        {"type": "tool_call", "id": "1", "name": "file.read", "input": {"path": "banana"}},
    ]
    result: list[JsonValue] = [
        {"type": "tool_result_block", "call_id": "1", "output": {"lines": ["cherry"]}}
    ]
    await lab.transcript.append(
        session,
        [
            EntryDraft(EntryKind.MESSAGE, {"content": blocks}, role=EntryRole.ASSISTANT),
            EntryDraft(EntryKind.MESSAGE, {"content": result}, role=EntryRole.TOOL_RESULT),
            EntryDraft(EntryKind.TITLE, {"title": "damson"}),
            EntryDraft(EntryKind.COMPACTION, {"summary": "elder"}),
            EntryDraft(EntryKind.CUSTOM, {"data": "fig"}),
        ],
    )
    found = {
        word: (await lab.service.search(PROJECT, word))[1]
        for word in ("apple", "file", "cherry", "damson", "elder", "banana", "fig")
    }
    assert found == {
        "apple": 1, "file": 1, "cherry": 1, "damson": 1, "elder": 1, "banana": 0, "fig": 0,
    }  # fmt: skip


async def test_search_in_a_fork_finds_what_it_shows_and_no_more(lab: SessionLab) -> None:
    source = await lab.session("shared pear", "left pear")
    entries = await lab.transcript.entries(source)
    fork = (await lab.transcript.fork(source, entries[1].id)).id
    await lab.say(fork, "own pear")
    hits, total = await lab.service.search(PROJECT, "pear", session_id=fork)
    assert [hit.snippet for hit in hits] == ["own pear", "shared pear"]
    assert {hit.session_id for hit in hits} == {fork}
    assert total == 2
    assert (await lab.service.search(PROJECT, "pear"))[1] == 3


async def test_a_snippet_shows_the_words_in_a_long_text(lab: SessionLab) -> None:
    await lab.session("begin " + "x " * 500 + "needle\nhere " + "y " * 500)
    ((hit,), _) = await lab.service.search(PROJECT, "needle")
    assert "needle here" in hit.snippet
    assert hit.snippet.startswith("…")
    assert hit.snippet.endswith("…")
    assert len(hit.snippet) <= 162


# -- taking away --------------------------------------------------------------------------------


async def test_a_deleted_session_leaves_nothing_behind(lab: SessionLab) -> None:
    kept = await lab.session("kept")
    session = await lab.session("unforgettable")
    await lab.navigation.enter(PROJECT, session)
    run = await lab.service.begin_run(session)
    await lab.service.finish_run(run.id, RunResult(AgentRunStatus.COMPLETED))
    await lab.service.delete(PROJECT, session)
    # What comes into the place of its entries is not found by their words.
    await lab.session("quite another", "thing")
    assert (await lab.service.search(PROJECT, "unforgettable"))[1] == 0
    assert (await lab.service.search(PROJECT, "another"))[1] == 1
    assert await lab.service.current(PROJECT) is None

    for table, column in (
        ("sessions", "id"),
        ("entries", "session_id"),
        ("agent_runs", "session_id"),
    ):
        assert await count(lab, f"{table} WHERE {column} = '{session}'") == 0, table
    assert kept in {one.id for one in (await lab.service.list(PROJECT))[0]}
    with pytest.raises(KagedError) as caught:
        await lab.service.delete(PROJECT, session)
    assert caught.value.code == "session_not_found"


async def test_forks_keep_what_they_share_with_a_deleted_session(lab: SessionLab) -> None:
    first = await lab.session("a plum", "b", "c damson")
    entries = await lab.transcript.entries(first)
    fork = (await lab.transcript.fork(first, entries[2].id)).id
    grand = (await lab.transcript.fork(fork)).id
    await lab.say(grand, "g")
    await lab.service.delete(PROJECT, first)
    await lab.service.delete(PROJECT, fork)
    assert texts(await lab.transcript.entries(grand)) == ["a plum", "b", "g"]
    ((hit,), _) = await lab.service.search(PROJECT, "plum")
    assert hit.session_id == grand
    assert (await lab.service.search(PROJECT, "damson"))[1] == 0
    for gone in (first, fork):
        with pytest.raises(KagedError):
            await lab.transcript.entries(gone)
    await lab.service.delete(PROJECT, grand)
    for table in ("sessions", "entries", "entry_marks"):
        assert await count(lab, table) == 0, table


async def test_a_session_that_runs_is_not_deleted(lab: SessionLab) -> None:
    session = await lab.session("a")
    await lab.service.begin_run(session)
    with pytest.raises(KagedError) as caught:
        await lab.service.delete(PROJECT, session)
    assert caught.value.code == "session_busy"


# -- runs ---------------------------------------------------------------------------------------


async def test_a_second_run_is_refused_while_one_is_active(lab: SessionLab) -> None:
    session = await lab.session()
    outcomes = await asyncio.gather(
        *(lab.service.begin_run(session) for _ in range(5)), return_exceptions=True
    )
    begun = [one for one in outcomes if not isinstance(one, BaseException)]
    refused = [one for one in outcomes if isinstance(one, KagedError)]
    assert len(begun) == 1
    assert {one.code for one in refused} == {"session_busy"}
    assert len(refused) == 4
    assert lab.service.active_run(session) == begun[0].id
    other = await lab.session()
    await lab.service.begin_run(other)


@pytest.mark.parametrize("status", [one for one in AgentRunStatus if one != "running"])
async def test_a_run_ends_once_and_its_session_is_free_again(
    lab: SessionLab, status: AgentRunStatus
) -> None:
    session = await lab.session()
    run = await lab.service.begin_run(session, model="fast", operator_id="anna")
    assert (await lab.service.get(PROJECT, session)).status == "running"
    lab.clock.advance(3)
    error: JsonObject | None = {"code": "x"} if status is AgentRunStatus.FAILED else None
    ended = await lab.service.finish_run(run.id, RunResult(status, 4, {"input_tokens": 7}, error))
    again = await lab.service.finish_run(run.id, RunResult(AgentRunStatus.FAILED))
    assert ended == again == await lab.store.agent_runs.get(run.id)
    assert (ended.status, ended.steps, ended.usage, ended.error) == (
        status, 4, {"input_tokens": 7}, error,
    )  # fmt: skip
    assert ended.ended_at_ms == run.started_at_ms + 3000
    assert (await lab.service.get(PROJECT, session)).status == "idle"
    said = [event.name for event in lab.events if event.name.startswith("run.")]
    completed = ["run.completed"] if status is AgentRunStatus.COMPLETED else []
    assert said == ["run.started", "run.ended", *completed]
    assert await lab.service.begin_run(session)


async def test_a_session_at_a_checkpoint_stays_there_when_its_run_ends(lab: SessionLab) -> None:
    session = await lab.session()
    run = await lab.service.begin_run(session)
    await lab.store.inbox.add(
        RequestDraft("req_1", RequestKind.QUESTION, "Why?", chat_id=session),
        pause_session(PROJECT, session, InteractionKind.ASK, "req_1"),
    )
    await lab.service.finish_run(run.id, RunResult(AgentRunStatus.PAUSED))
    found = await lab.service.get(PROJECT, session)
    assert (found.status, found.detail) == ("checkpoint", "interaction:ask:req_1")
    with pytest.raises(KagedError) as caught:
        await lab.service.delete(PROJECT, session)
    assert caught.value.code == "session_busy"


async def test_after_a_restart_what_was_active_is_interrupted_and_what_was_said_is_there(
    lab: SessionLab,
) -> None:
    session = await lab.session("said")
    done = await lab.service.begin_run(session)
    await lab.service.finish_run(done.id, RunResult(AgentRunStatus.COMPLETED))
    run = await lab.service.begin_run(session)
    await lab.transcript.append(session, [message("half", EntryRole.ASSISTANT, run_id=run.id)])
    await lab.reopen()
    left = await lab.service.recover()
    assert [(one.id, one.status) for one in left] == [(run.id, AgentRunStatus.INTERRUPTED)]
    found, _ = await lab.service.runs(session)
    assert {one.id: one.status.value for one in found} == {
        run.id: "interrupted",
        done.id: "completed",
    }
    assert (await lab.service.get(PROJECT, session)).status == "idle"
    assert texts(await lab.transcript.entries(session)) == ["said", "half"]
    assert await lab.service.begin_run(session)
    assert await lab.service.recover()


async def test_a_run_whose_end_could_not_be_written_blocks_nobody(lab: SessionLab) -> None:
    session = await lab.session()
    lost = await lab.store.agent_runs.begin(session, cause=lab.MESSAGE)
    run = await lab.service.begin_run(session)
    assert (await lab.store.agent_runs.get(lost.id)).status is AgentRunStatus.INTERRUPTED
    assert lab.service.active_run(session) == run.id
    with pytest.raises(KagedError):
        await lab.service.begin_run("ses_none")
    assert lab.service.active_run("ses_none") is None
