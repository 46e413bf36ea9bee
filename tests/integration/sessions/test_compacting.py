"""Windows that are full: strategies, fallbacks, what is kept, and the preview."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from fakes.loop_lab import LoopLab, loop_lab
from fakes.played_model import PlayedModel, call, hang, say
from fakes.tool_lab import Spy, make_tool
from kaged.models.errors import ModelUnavailable
from kaged.plugins.hooks import PreCompactOutcome
from kaged.plugins.observers import Observed
from raising import raises_code

WAIT_S = 30


def project(**compaction: Any) -> str:
    words = ", ".join(f"{name}: {value}" for name, value in compaction.items())
    return (
        "primary: {model: default, system_prompt: You help., tools: {'kaged.*': {enabled: false}},"
        f" compaction: {{{words}}}}}\n"
    )


async def talked(lab: LoopLab, turns: int = 8) -> str:
    """Send messages until the window is nearly full; returns the session."""
    lab.model.turns[:] = [say(f"Answer {number}. " + "x" * 400) for number in range(turns)]
    lab.model.context_tokens = 100_000
    session = await lab.session()
    for number in range(turns):
        await lab.run(session, f"Question {number}. " + "y" * 400)
    lab.model.context_tokens = 1800
    lab.model.turns[:] = [say("Done.")]
    return session


async def test_drop_leaves_the_first_words_a_note_and_the_last_ones(tmp_path: Path) -> None:
    """The old messages stay in the store, marked with what replaced them."""
    async with loop_lab(tmp_path, project=project()) as lab:
        session = await talked(lab)
        before = await lab.transcript.entries(session)
        assert (await lab.run(session, "Last.")).text == "Done."

        texts = lab.model.texts()
        assert texts[1].startswith("user: Question 0.")
        assert texts[2].startswith("system: (")
        assert texts[-1] == "user: Last."
        entries = await lab.transcript.entries(session)
        marked = [one for one in entries if one.superseded_by]
        assert [one.id for one in entries[: len(before)]] == [one.id for one in before]
        (compaction,) = [one for one in entries if one.kind == "compaction"]
        assert {one.superseded_by for one in marked} == {compaction.id}
        assert len(marked) == 17 - (len(texts) - 2)
        assert [name for name in lab.audit.names() if name.startswith("compaction")] == [
            "compaction.triggered",
            "compaction.completed",
        ]
        (done,) = lab.audit.of("compaction.completed")
        assert (done["strategy"], done["fallback"]) == ("drop", False)
        assert done["messages_after"] < done["messages_before"]
        assert [one.name for one in lab.told("compaction.started", "compaction.finished")] == [
            "compaction.started",
            "compaction.finished",
        ]


@pytest.mark.parametrize("failure", [ModelUnavailable("gone"), say(""), ValueError("a bug")])
async def test_a_summary_that_fails_falls_back_to_drop(tmp_path: Path, failure: Any) -> None:
    """One failure chain, and the session goes on."""
    async with loop_lab(tmp_path, project=project(strategy="summarize")) as lab:
        session = await talked(lab)
        lab.model.turns[:] = [failure, say("Done.")]
        with capture_logs():
            assert (await lab.run(session, "Last.")).text == "Done."
        names = [name for name in lab.audit.names() if name.startswith("compaction")]
        assert names == ["compaction.triggered", "compaction.failed", "compaction.completed"]


async def test_a_summary_stands_in_for_what_it_sums_up_and_can_be_summed_up_again(
    tmp_path: Path,
) -> None:
    """Its tokens count; a second compaction takes the first one's note along."""
    async with loop_lab(tmp_path, project=project(strategy="summarize")) as lab:
        session = await talked(lab)
        lab.model.turns[:] = [say("Numbers were discussed."), say("Done.")]
        await lab.run(session, "Last.")
        assert "Numbers were discussed." in lab.model.texts()[2]
        assert "## user\nQuestion 1." in lab.model.texts(-2)[1]

        lab.model.context_tokens = 100_000
        lab.model.turns[:] = [say("z" * 400) for _ in range(6)]
        for _ in range(6):
            await lab.run(session, "More " + "w" * 400)
        lab.model.context_tokens = 1800
        lab.model.turns[:] = [say("All in all: numbers."), say("Done again.")]
        await lab.run(session, "Very last.")
        assert "Numbers were discussed." in lab.model.texts(-2)[1]
        shown = "\n".join(lab.model.texts())
        assert "All in all: numbers." in shown
        assert "Numbers were discussed." not in shown


async def test_what_observers_retain_and_inject_stays_in_the_window(tmp_path: Path) -> None:
    """In plugin order, behind the host's own note."""
    async with loop_lab(tmp_path, project=project()) as lab:
        session = await talked(lab)
        lab.hooks.outcome = PreCompactOutcome(
            Observed(("<plugin:a>before</plugin:a>",), ("the key is under the mat",))
        )
        lab.hooks.after = Observed(("<plugin:b>after</plugin:b>",), ("feed the cat",))
        await lab.run(session, "Last.")
        note = lab.model.texts()[2]
        assert note.index("under the mat") < note.index("feed the cat")
        assert note.index("before") < note.index("after")


async def test_pinned_words_stay(tmp_path: Path) -> None:
    """However old they are."""
    async with loop_lab(tmp_path, project=project()) as lab:
        lab.model.turns[:] = [say("ok"), say("noted")]
        session = await lab.session()
        await lab.run(session, "First.")
        await lab.run(session, "Never forget this.", pinned=True)
        lab.model.turns[:] = [say("x" * 400) for _ in range(8)]
        for _ in range(8):
            await lab.run(session, "y" * 400)
        await lab.driver.windows.compact(session)
        lab.model.turns[:] = [say("Done.")]
        await lab.run(session, "Last.")
        assert "user: Never forget this." in lab.model.texts()
        assert "assistant: noted" not in lab.model.texts()


async def test_the_preview_tells_what_would_happen_and_does_nothing(tmp_path: Path) -> None:
    """Then the real thing does just that."""
    async with loop_lab(tmp_path, project=project()) as lab:
        session = await talked(lab)
        before = await lab.transcript.entries(session)
        preview = await lab.driver.windows.compact(session, dry_run=True)
        assert await lab.transcript.entries(session) == before
        assert lab.hooks.names() == ["on_session_start"]
        going = preview["would_compact"]
        assert isinstance(going, list)
        assert going
        assert preview["strategy"] == "drop"

        done = await lab.driver.windows.compact(session)
        assert done["compacted"] is True
        after = await lab.transcript.entries(session)
        assert [one.id for one in after if one.superseded_by] == going
        (trigger,) = [event.trigger for name, _, event in lab.hooks.fired if name == "pre_compact"]
        assert trigger == "requested"
        with raises_code("agent_not_found"):
            await lab.driver.windows.compact(session, "primary.subagents.nobody")


async def test_a_running_session_is_not_compacted_from_outside(tmp_path: Path) -> None:
    """Its own run does that when it is due."""
    async with loop_lab(tmp_path, PlayedModel(hang())) as lab:
        session = await lab.session()
        await lab.driver.send(session, "Hi")
        await asyncio.wait_for(lab.model.asked.wait(), WAIT_S)
        with raises_code("session_busy"):
            await lab.driver.windows.compact(session)
        assert (await lab.driver.windows.compact(session, dry_run=True))["would_compact"] == []


async def test_a_window_that_cannot_be_made_smaller_is_flagged_once(tmp_path: Path) -> None:
    """Not at every step anew."""
    turns = [say("", call("file_peek")) for _ in range(6)]
    text = project().replace("'kaged.*': {enabled: false}", "'*': {enabled: true}")
    async with loop_lab(
        tmp_path,
        PlayedModel(*turns, say("ok"), context_tokens=300),
        tools=[make_tool("file.peek", handler=Spy("z"))],
        project=text,
    ) as lab:
        await lab.talk("q" * 2000)
        flags = [one["flag"] for one in lab.audit.of("compaction.flagged")]
        assert 1 <= len(flags) <= 3
        assert flags[0] == "nothing_to_compact"


async def test_a_window_that_stays_full_after_its_compaction_is_flagged_and_left_alone(
    tmp_path: Path,
) -> None:
    """What must stay is more than the threshold: the steps after it would find nothing to do."""
    text = project(threshold="0.25").replace("'kaged.*': {enabled: false}", "'*': {enabled: true}")
    peek = make_tool("file.peek", handler=Spy("z"))
    async with loop_lab(tmp_path, project=text, tools=[peek]) as lab:
        session = await talked(lab)
        lab.model.turns[:] = [say("", call("file_peek")), say("", call("file_peek")), say("Done.")]
        await lab.run(session, "Last.")
        (done,) = lab.audit.of("compaction.completed")
        (flagged,) = lab.audit.of("compaction.flagged")
        assert flagged["flag"] == "still_full"
        assert flagged["compaction_id"] == done["compaction_id"]
        assert done["messages_after"] < done["messages_before"]


async def test_each_agent_compacts_its_own_window(tmp_path: Path) -> None:
    """The child's is full, the root's is not touched."""
    tree = """
primary:
  model: default
  system_prompt: You lead.
  subagents:
    coder:
      model: small
      system_prompt: You code.
      max_steps: 30
      tools: {file.peek: {enabled: true}}
      compaction: {threshold: 900}
"""
    small = PlayedModel(
        *[say("k" * 300, call("file_peek")) for _ in range(12)], say("Coded."), alias="small"
    )
    root = PlayedModel(say("", call("agent-coder", {"message": "Go"})), say("Done."))
    async with loop_lab(
        tmp_path,
        root,
        models={"small": small},
        project=tree,
        tools=[make_tool("file.peek", handler=Spy("z" * 300))],
    ) as lab:
        end = await lab.talk("Go")
        assert end.text == "Done."
        placed = {(one["agent_path"]) for one in lab.audit.of("compaction.completed")}
        assert placed == {"primary.subagents.coder"}
        assert {one.agent_path for name, one, _ in lab.hooks.fired if "compact" in name} == placed
        assert small.texts()[1] == "user: Go"
        kinds = {one.agent for one in await lab.transcript.entries(end.session_id)
                 if one.kind == "compaction"}  # fmt: skip
        assert all(one.startswith("primary.subagents.coder#") for one in kinds)
