"""Scripts: which turn comes next, read from the window alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from kaged.base import Ids
from kaged.models.errors import ModelError, ModelRateLimited
from kaged.models.script import ModelScript
from kaged.models.scripted import BUILT_IN, ScriptedModel
from kaged.models.turn import (
    AssistantMessage,
    ModelMessage,
    ModelRequest,
    SystemMessage,
    TextDelta,
    ThinkingDelta,
    ToolResultMessage,
    ToolSpec,
    TurnFinished,
    UserMessage,
)
from raising import raises_code

STORY = """
turns:
  - when: { user: fold }
    think: Paper first.
    say: I read the log.
    call: [{ tool: file.read, with: { path: log.txt } }, { tool: file.read, raw: "{oops" }]
  - when: { tool: file.read, contains: rocks }
    say: There are rocks.
  - when: { tool: file.read }
    say: No rocks.
  - say: Done.
  - agent: "primary.subagents.*"
    say: I look out.
  - repeat: true
    when: { user: "" }
    say: I have nothing to say to that.
"""


def model_of(text: str, ids: Ids) -> ScriptedModel:
    return ScriptedModel("s", ModelScript.parse(text, "test.yaml"), ids=ids)


async def turn_of(
    model: ScriptedModel, *messages: ModelMessage, agent: str = "primary"
) -> AssistantMessage:
    request = ModelRequest(messages, [ToolSpec("file_read", "", {})], agent=agent)
    events = [event async for event in model.attempt(request, 1)]
    last = events[-1]
    assert isinstance(last, TurnFinished)
    said = "".join(event.text for event in events if isinstance(event, TextDelta))
    thought = "".join(event.text for event in events if isinstance(event, ThinkingDelta))
    assert (said, thought) == (last.turn.message.text, last.turn.message.thinking)
    return last.turn.message


def results_of(message: AssistantMessage, content: str) -> list[ModelMessage]:
    return [ToolResultMessage(call.id, call.name, content) for call in message.tool_calls]


async def test_turns_are_played_in_order_and_by_what_came_last(ids: Ids) -> None:
    model = model_of(STORY, ids)
    window: list[ModelMessage] = [SystemMessage("You fold."), UserMessage("fold a boat")]
    first = await turn_of(model, *window)
    assert first.thinking == "Paper first."
    good, bad = first.tool_calls
    assert (good.name, good.arguments) == ("file_read", {"path": "log.txt"})
    assert (bad.arguments, bad.raw) == (None, "{oops")
    for content, said in (("rocks ahead", "There are rocks."), ("calm", "No rocks.")):
        after = [*window, first, *results_of(first, content)]
        second = await turn_of(model, *after)
        assert second.text == said
        third = await turn_of(model, *after, second, UserMessage("and now?"))
        assert third.text == "Done."


async def test_a_fresh_model_goes_on_where_the_window_ends(ids: Ids) -> None:
    """As after a restart: nothing is remembered but the window."""
    window: list[ModelMessage] = [UserMessage("fold a boat")]
    first = await turn_of(model_of(STORY, ids), *window)
    window += [first, *results_of(first, "calm")]
    second = await turn_of(model_of(STORY, ids), *window)
    assert second.text == "No rocks."
    # And the same window forked earlier starts from there.
    again = await turn_of(model_of(STORY, ids), UserMessage("fold a boat"))
    assert again.text == first.text
    assert again.tool_calls[0].id != first.tool_calls[0].id


async def test_agents_have_turns_of_their_own(ids: Ids) -> None:
    model = model_of(STORY, ids)
    said = await turn_of(model, UserMessage("look"), agent="primary.subagents.lookout")
    assert said.text == "I look out."


async def test_repeating_turns_come_when_no_other_fits(ids: Ids) -> None:
    model = model_of(STORY, ids)
    done = AssistantMessage("Done.")
    said = await turn_of(model, UserMessage("x"), done, UserMessage("y"))
    assert said.text == "I have nothing to say to that."
    again = await turn_of(model, UserMessage("x"), done, UserMessage("y"), said, UserMessage("z"))
    assert again.text == said.text


async def test_what_follows_belongs_to_the_part_that_has_begun(ids: Ids) -> None:
    model = model_of(
        """
        turns:
          - { when: { user: one }, say: First. }
          - { say: More of the first. }
          - { when: { user: two }, say: Second. }
          - { say: More of the second. }
        """,
        ids,
    )
    two = await turn_of(model, UserMessage("two"))
    assert two.text == "Second."
    more = await turn_of(model, UserMessage("two"), two, UserMessage("go on"))
    assert more.text == "More of the second."
    one = await turn_of(model, UserMessage("one"))
    more = await turn_of(model, UserMessage("one"), one, UserMessage("go on"))
    assert more.text == "More of the first."


async def test_a_script_that_has_ended_says_so(ids: Ids) -> None:
    model = model_of("turns: [{ say: Hi. }]", ids)
    with raises_code("model_script_ended", ModelError, match="primary"):
        await turn_of(model, UserMessage("a"), AssistantMessage("Hi."), UserMessage("b"))


async def test_failures_come_before_the_turn_succeeds(ids: Ids) -> None:
    model = model_of(
        "turns: [{ say: Hi., fail: [{ as: rate_limited, after: Hal, retry_after_s: 3 }] }]", ids
    )
    request = ModelRequest([UserMessage("a")])
    stream = model.attempt(request, 1)
    assert await anext(stream) == TextDelta("Hal")
    with pytest.raises(ModelRateLimited) as caught:
        await anext(stream)
    assert caught.value.retry_after_s == 3
    assert isinstance([event async for event in model.attempt(request, 2)][-1], TurnFinished)


def test_every_problem_of_a_script_is_reported() -> None:
    with raises_code("model_script_invalid", ModelError) as caught:
        ModelScript.parse("turns: [{ sai: x }, { call: [{ with: {} }] }]", "bad.yaml")
    assert "sai" in caught.value.message
    assert "tool" in caught.value.message


def test_a_script_that_would_never_end_is_refused() -> None:
    with raises_code("model_script_invalid", ModelError, match="never end"):
        ModelScript.parse("turns: [{ repeat: true, call: [{ tool: x }] }]", "loop.yaml")
    ModelScript.parse(
        "turns: [{ repeat: true, when: { user: go }, call: [{ tool: x }] }]", "ok.yaml"
    )


def test_a_missing_script_names_the_file(tmp_path: Path) -> None:
    with raises_code("model_script_invalid", ModelError, match=r"nowhere\.yaml"):
        ModelScript.load(tmp_path / "nowhere.yaml")


async def test_without_a_script_it_explains_itself(ids: Ids) -> None:
    said = await turn_of(model_of(BUILT_IN, ids), UserMessage("hi"), agent="primary.subagents.x")
    assert "scripted model" in said.text


async def test_a_turn_that_names_the_system_prompt_comes_before_others(ids: Ids) -> None:
    model = model_of(
        "turns: [{ say: Any. }, { when: { system: Summarize }, repeat: true, say: A summary. }]",
        ids,
    )
    said = await turn_of(model, SystemMessage("Summarize this."), UserMessage("a long story"))
    assert said.text == "A summary."
    said = await turn_of(model, SystemMessage("You help."), UserMessage("a long story"))
    assert said.text == "Any."
