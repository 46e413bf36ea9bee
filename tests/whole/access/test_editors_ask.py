"""What a refused call lacks is asked at the editor whose person began the run."""

from __future__ import annotations

import asyncio

import pytest

from whole.access.conftest import Asking, reads
from whole.harness.acp import editor
from whole.harness.daemon import PATIENCE_S
from whole.harness.model import say
from whole.harness.talk import fresh

KINDS = {
    "once": "allow_once",
    "run": "allow_always",
    "session": "allow_always",
    "always": "allow_always",
    "no": "reject_once",
}


@pytest.mark.parametrize(("choice", "status"), [("once", "completed"), ("no", "failed")])
def test_an_editor_asks_its_person(asking: Asking, choice: str, status: str) -> None:
    word = fresh()
    asking.model.play(word, reads("notes/n.txt"), reads("src/a.txt"), say("Done."))

    async def talk() -> None:
        def pick(options: list[str]) -> str:
            return choice if choice in options else options[-1]

        async with (
            asyncio.timeout(PATIENCE_S),
            editor(asking.daemon, asking.project.root, pick=pick) as one,
        ):
            made = await one.agent.new_session(str(asking.project.root))
            assert await one.say(made.session_id, f"{word} please") == "end_turn"
            (asked,) = one.asked
            assert asked["call"]["title"] == "Let primary read ./notes/n.txt?"
            assert {row["optionId"]: row["kind"] for row in asked["options"]} == KINDS
            assert "read ./notes/n.txt" in str(asked["call"]["content"])
            ends = [row["status"] for row in one.of("tool_call_update")]
            assert ends == [status, "completed"]

    asyncio.run(talk())
    assert asking.waiting() == []


def test_an_answer_given_elsewhere_lets_the_run_go_on(asking: Asking) -> None:
    word = fresh()
    asking.model.play(word, reads("notes/n.txt"), say("Done."))

    async def talk() -> None:
        never = asyncio.Event()

        async with (
            asyncio.timeout(PATIENCE_S),
            editor(asking.daemon, asking.project.root) as one,
            asyncio.TaskGroup() as group,
        ):
            one.wait_before_answering = never
            made = await one.agent.new_session(str(asking.project.root))
            turn = group.create_task(one.say(made.session_id, f"{word} please"))
            await one.until(lambda: one.asked)
            question = await asyncio.to_thread(asking.question)
            await asyncio.to_thread(asking.answer, question, "once")
            assert await turn == "end_turn"
            assert one.of("tool_call_update")[-1]["status"] == "completed"

    asyncio.run(talk())
