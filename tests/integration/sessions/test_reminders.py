"""The sticky reminder of open todos: shown to the model at each step, stored nowhere."""

from __future__ import annotations

from pathlib import Path

from fakes.loop_lab import loop_lab
from fakes.played_model import PlayedModel, call, say
from fakes.tool_lab import make_tool
from kaged.models.turn import SystemMessage, UserMessage
from requirements import requirement

ALL_ON = "primary: {model: default, system_prompt: You help., tools: {'*': {enabled: true}}}\n"


def reminders(model: PlayedModel, number: int = -1) -> list[str]:
    """Return the system messages of a request behind the prompt."""
    asked = model.requests[number].messages
    return [one.text for one in asked[1:] if isinstance(one, SystemMessage)]


@requirement("AT-TODO-23", "AT-SESS-15")
async def test_open_todos_are_shown_near_the_end_and_stored_nowhere(tmp_path: Path) -> None:
    """A system message with a checklist, in the request only."""
    async with loop_lab(tmp_path, PlayedModel(say("ok"))) as lab:
        session, _ = await lab.bound("write it", "test it")
        await lab.run(session, "Go")

        (shown,) = reminders(lab.model)
        assert "- [ ] write it\n- [ ] test it" in shown
        asked = lab.model.requests[0].messages
        assert isinstance(asked[-1], UserMessage)
        assert isinstance(asked[-2], SystemMessage)
        stored = await lab.transcript.entries(session)
        assert all("write it" not in str(one.content) for one in stored)
        assert all(one.role != "system" for one in stored)


@requirement("AT-TODO-24")
async def test_at_most_five_are_shown_with_the_one_in_progress(tmp_path: Path) -> None:
    """Of eight, the seventh is being worked on."""
    async with loop_lab(tmp_path, PlayedModel(say("ok"))) as lab:
        session, issue = await lab.bound(*(f"item {number}" for number in range(1, 9)))
        await lab.work.todos.act(issue, {"action": "start", "content": "item 7"})
        await lab.run(session, "Go")
        (shown,) = reminders(lab.model)
        lines = [one for one in shown.splitlines() if one.startswith("- [")]
        assert len(lines) == 5
        assert "- [>] item 7" in lines


@requirement("AT-TODO-25", "AT-TODO-26")
async def test_it_is_built_anew_for_each_step_and_left_out_where_it_says_nothing_new(
    tmp_path: Path,
) -> None:
    """After a todo call, without an issue, and when all is done."""
    model = PlayedModel(
        say("", call("file_peek")),
        say("", call("kaged_todo", {"action": "done", "content": "one"})),
        say("", call("file_peek")),
        say("", call("kaged_todo", {"action": "done", "content": "two"}), call("file_peek")),
        say("", call("file_peek")),
        say("ok"),
    )
    async with loop_lab(tmp_path, model, tools=[make_tool("file.peek")], project=ALL_ON) as lab:
        session, _ = await lab.bound("one", "two")
        assert (await lab.run(session, "Go")).status == "completed"
        seen = [reminders(model, number) for number in range(6)]
        assert all("one" in seen[at][0] for at in (0, 1))
        assert seen[2] == []
        assert "two" in seen[3][0]
        assert "one" not in seen[3][0]
        assert seen[4] == []
        assert seen[5] == []
        stored = str([one.content for one in await lab.transcript.entries(session)])
        assert "Open todos" not in stored

        model.turns[:] = [say("ok")]
        await lab.talk("No issue here")
        assert reminders(model) == []
