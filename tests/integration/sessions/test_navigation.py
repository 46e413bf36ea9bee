from __future__ import annotations

import asyncio

import pytest

from fakes.readiness import always_ready
from fakes.session_lab import PROJECT, SessionLab, texts
from kaged.sessions.move import MoveVeto, Redirect, SwitchIntent, SwitchOutcome
from kaged.sessions.navigation import Navigation
from kaged.sessions.session_service import locator
from kaged.store.agent_run_rows import AgentRunStatus, RunResult


class Asked:
    """A handler that notes what it is asked, and answers as it was told to."""

    def __init__(self, answer: MoveVeto | Redirect | Exception | None = None) -> None:
        self.answer = answer
        self.intents: list[SwitchIntent] = []

    async def __call__(self, intent: SwitchIntent) -> MoveVeto | Redirect | None:
        self.intents.append(intent)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def live(lab: SessionLab, *said: str) -> str:
    session = await lab.session(*said)
    await lab.navigation.enter(PROJECT, session)
    return session


def moves(lab: SessionLab) -> list[str]:
    return [one for one in lab.names() if one.startswith("session.switch")]


async def applied(lab: SessionLab, session: str) -> SwitchOutcome:
    outcome = await lab.navigation.apply(session)
    assert outcome is not None
    return outcome


async def test_a_switch_moves_the_projects_current_session(lab: SessionLab) -> None:
    here = await live(lab, "a")
    there = await lab.session("b")
    for name in (there, locator(there)):
        await lab.store.branches.set_current(PROJECT, here)
        lab.navigation.request_switch(here, name, asked_by="rewind")
        assert await lab.service.current(PROJECT) == here
        outcome = await applied(lab, here)
        assert (outcome.to, outcome.moved) == (there, True)
        assert await lab.service.current(PROJECT) == there
    event = lab.events[-1]
    assert (event.name, event.session_id) == ("session.switched", here)
    assert (event.data["from"], event.data["to"]) == (here, there)
    assert event.data["asked_by"] == "rewind"


async def test_a_fork_is_made_and_gone_to_in_one_step(lab: SessionLab) -> None:
    here = await live(lab, "a", "b", "c")
    entries = await lab.transcript.entries(here)
    lab.navigation.request_fork_to(here, entries[2].id)
    outcome = await applied(lab, here)
    assert outcome.to is not None
    assert await lab.service.current(PROJECT) == outcome.to
    assert texts(await lab.transcript.entries(outcome.to)) == ["a", "b"]
    assert await lab.transcript.entries(here) == entries
    lab.navigation.request_fork_to(outcome.to)
    last = await applied(lab, outcome.to)
    assert texts(await lab.transcript.entries(str(last.to))) == ["a", "b"]
    assert (await lab.transcript.entries(str(last.to)))[1:] == entries[1:3]


async def test_a_branch_is_made_and_nobody_moves(lab: SessionLab) -> None:
    here = await live(lab, "a")
    lab.navigation.request_fork(here)
    outcome = await applied(lab, here)
    assert outcome.to not in {None, here}
    assert await lab.service.current(PROJECT) == here
    assert "session.switched" not in lab.names()


async def test_nothing_moves_while_a_run_is_active(lab: SessionLab) -> None:
    here = await live(lab, "a")
    asked = Asked()
    lab.navigation.before_switch.append(asked)
    run = await lab.service.begin_run(here)
    lab.navigation.request_fork_to(here)
    assert await lab.navigation.apply(here) is None
    assert asked.intents == []
    assert await lab.service.current(PROJECT) == here
    assert lab.navigation.pending(here) == ["fork_to"]
    await lab.say(here, "the result")
    await lab.service.finish_run(run.id, RunResult(AgentRunStatus.COMPLETED))
    outcome = await applied(lab, here)
    assert texts(await lab.transcript.entries(str(outcome.to))) == ["a", "the result"]
    assert lab.navigation.pending(here) == []


async def test_the_loop_moves_between_turns_of_a_run(lab: SessionLab) -> None:
    here = await live(lab, "a")
    await lab.service.begin_run(here)
    lab.navigation.request_fork_to(here)
    outcome = await lab.navigation.apply(here, between_turns=True)
    assert outcome is not None
    assert outcome.moved


async def test_of_several_requests_the_last_is_made(lab: SessionLab) -> None:
    here = await live(lab, "a")
    there = await lab.session("b")
    lab.navigation.request_switch(here, there)
    lab.navigation.request_fork_to(here)
    outcome = await applied(lab, here)
    assert outcome.move == "fork_to"
    assert await lab.navigation.apply(here) is None
    lab.navigation.request_switch(here, there, asked_by="a")
    lab.navigation.request_fork(here, asked_by="b")
    lab.navigation.withdraw(asked_by="a")
    assert lab.navigation.pending(here) == ["fork"]
    lab.navigation.withdraw(here)
    assert await lab.navigation.apply(here) is None


@pytest.mark.parametrize("veto", [MoveVeto("not now", by="guard"), RuntimeError("broken")])
async def test_a_veto_leaves_everything_as_it_was_and_says_why(
    lab: SessionLab, veto: MoveVeto | Exception
) -> None:
    here = await live(lab, "a")
    there = await lab.session("b")
    first, second = Asked(veto), Asked()
    lab.navigation.before_switch += [first, second]
    before = len(await lab.service.family(PROJECT))
    lab.navigation.request_fork_to(here, asked_by="rewind")
    outcome = await applied(lab, here)
    assert not outcome.made
    assert (outcome.reason or "").startswith("session_before_switch: ")
    assert [intent.target for intent in first.intents] == [""]
    assert second.intents == []
    lab.navigation.request_switch(here, there)
    assert not (await applied(lab, here)).made
    assert first.intents[1].target == there
    assert await lab.service.current(PROJECT) == here
    assert len(await lab.service.family(PROJECT)) == before
    assert moves(lab) == ["session.switch_vetoed"] * 2
    if isinstance(veto, MoveVeto):
        assert outcome.vetoed_by == "guard"
        assert lab.events[-1].data["reason"] == "session_before_switch: not now"


async def test_a_handler_that_takes_too_long_has_said_no(lab: SessionLab) -> None:
    here = await live(lab, "a")
    navigation = Navigation(
        lab.store, lab.transcript, lab.service, lab.lifecycle, ready=always_ready, timeout_s=0.01
    )

    async def forever(_: SwitchIntent) -> None:
        await asyncio.Event().wait()

    navigation.before_switch.append(forever)
    navigation.request_fork_to(here)
    outcome = await navigation.apply(here)
    assert outcome is not None
    assert not outcome.made


async def test_a_handler_sends_a_move_elsewhere(lab: SessionLab) -> None:
    here = await live(lab, "a", "b")
    there = await lab.session("c")
    other = await lab.session("d")
    entries = await lab.transcript.entries(here)
    redirect, unasked = Asked(Redirect(other)), Asked(MoveVeto("never asked"))
    lab.navigation.before_switch += [redirect, unasked]
    lab.navigation.request_switch(here, there)
    assert (await applied(lab, here)).to == other
    await lab.store.branches.set_current(PROJECT, here)
    redirect.answer = Redirect(entries[1].id)
    lab.navigation.request_fork_to(here)
    assert texts(await lab.transcript.entries(str((await applied(lab, here)).to))) == ["a"]
    redirect.answer = Redirect("nowhere")
    await lab.store.branches.set_current(PROJECT, here)
    lab.navigation.request_switch(here, there)
    assert (await applied(lab, here)).error is not None
    assert await lab.service.current(PROJECT) == here
    assert unasked.intents == []


async def test_a_branch_asks_its_own_list(lab: SessionLab) -> None:
    here = await live(lab, "a")
    lab.navigation.before_switch.append(Asked(MoveVeto("no moves")))
    lab.navigation.request_fork(here)
    assert (await applied(lab, here)).made
    lab.navigation.before_fork.append(Asked(MoveVeto("no forks")))
    lab.navigation.request_fork(here)
    outcome = await applied(lab, here)
    assert outcome.reason == "session_before_fork: no forks"
    assert lab.events[-1].name == "session.fork_vetoed"


@pytest.mark.parametrize("target", ["ses_unknown", "ses_", "../../other/session", "/etc/passwd"])
async def test_an_unknown_or_ambiguous_target_leaves_the_session_and_is_told(
    lab: SessionLab, target: str
) -> None:
    here = await live(lab, "a")
    await lab.session("b")
    asked = Asked()
    lab.navigation.before_switch.append(asked)
    lab.navigation.request_switch(here, target)
    outcome = await applied(lab, here)
    assert outcome.error is not None
    assert outcome.reason
    lab.navigation.request_fork_to(here, "7ZZZ")
    assert (await applied(lab, here)).error is not None
    assert await lab.service.current(PROJECT) == here
    assert asked.intents == []
    assert moves(lab) == ["session.switch_vetoed"] * 2


async def test_a_session_of_another_project_is_no_target(lab: SessionLab) -> None:
    here = await live(lab, "a")
    foreign = await lab.session("b", project_id="prj_2")
    lab.navigation.request_switch(here, foreign)
    assert (await applied(lab, here)).error is not None


async def test_going_where_one_is_already_asks_nobody(lab: SessionLab) -> None:
    here = await live(lab, "a")
    lab.navigation.before_switch.append(Asked(MoveVeto("no")))
    lab.navigation.request_switch(here, here)
    outcome = await applied(lab, here)
    assert (outcome.to, outcome.moved) == (here, False)


async def test_a_session_nobody_follows_moves_without_the_pointer(lab: SessionLab) -> None:
    here = await live(lab, "a")
    aside = await lab.session("b")
    lab.navigation.request_fork_to(aside)
    outcome = await applied(lab, aside)
    assert outcome.made
    assert not outcome.moved
    assert await lab.service.current(PROJECT) == here


async def test_a_run_that_begins_while_a_handler_thinks_is_not_moved_under(
    lab: SessionLab,
) -> None:
    here = await live(lab, "a")
    asked, answer = asyncio.Event(), asyncio.Event()

    async def person(_: SwitchIntent) -> None:
        asked.set()
        await answer.wait()

    lab.navigation.before_switch.append(person)
    lab.navigation.request_fork_to(here)
    async with asyncio.TaskGroup() as group:
        moving = group.create_task(lab.navigation.apply(here))
        await asked.wait()
        run = await lab.service.begin_run(here)
        answer.set()
    assert moving.result() is None
    assert await lab.service.current(PROJECT) == here
    await lab.service.finish_run(run.id, RunResult(AgentRunStatus.COMPLETED))
    assert (await applied(lab, here)).made


async def test_a_handler_that_asks_for_a_move_itself_is_seen_to_afterwards(
    lab: SessionLab,
) -> None:
    here = await live(lab, "a")
    there = await lab.session("b")
    inside: list[SwitchOutcome | None] = []

    async def another(intent: SwitchIntent) -> MoveVeto | None:
        if intent.move == "switch":
            return None
        lab.navigation.request_switch(here, there)
        inside.append(await lab.navigation.apply(here))
        return MoveVeto("rather go there")

    lab.navigation.before_switch.append(another)
    lab.navigation.request_fork_to(here)
    outcome = await applied(lab, here)
    assert inside == [None]
    assert outcome.to == there
    assert moves(lab) == ["session.switch_vetoed", "session.switched"]
    assert await lab.service.current(PROJECT) == there


async def test_handlers_that_never_stop_asking_do_not_keep_the_host(lab: SessionLab) -> None:
    here = await live(lab, "a")

    async def again(_: SwitchIntent) -> MoveVeto:
        lab.navigation.request_fork_to(here)
        return MoveVeto("again")

    lab.navigation.before_switch.append(again)
    lab.navigation.request_fork_to(here)
    assert not (await applied(lab, here)).made
    assert len(moves(lab)) == 8
    assert lab.navigation.pending(here) == ["fork_to"]
