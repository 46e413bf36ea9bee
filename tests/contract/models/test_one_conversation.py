"""One conversation, two models: the `scripted` one, and a vendor's over HTTP; same events.

What holds here for the script holds for a server, so tests of sessions may use the script.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from types import MappingProxyType

import pytest

from fakes.openai_server import OpenAIServer, playing
from kaged.base import Ids, SystemClock
from kaged.config.localconfig import ModelEntry
from kaged.config.sections import Sections
from kaged.models.catalogue import ModelCatalogue
from kaged.models.errors import ModelContextExceeded, ModelError, ModelRefused
from kaged.models.script import ModelScript
from kaged.models.turn import (
    Model,
    ModelMessage,
    ModelRequest,
    SystemMessage,
    TextDelta,
    ThinkingDelta,
    ToolResultMessage,
    ToolSpec,
    TurnFinished,
    TurnRetried,
    UserMessage,
)

SCRIPT = """
turns:
  - when: { user: fold }
    think: Paper first, then water.
    say: I read the log and look out at the same time.
    call:
      - { tool: file.read, with: { path: log.txt, limit: 3 } }
      - { tool: file.read, raw: "{oops" }
    usage: { input: 40, output: 9 }
  - when: { tool: file.read, contains: rocks }
    fail:
      - { as: rate_limited, retry_after_s: 2 }
      - { as: cut, after: There are }
      - { as: unavailable }
      - { as: bad_answer }
    say: There are rocks.
    usage: { input: 60, output: 4 }
  - say: Cut short by leng
    finish: length
    usage: { input: 70, output: 4 }
  - when: { user: more }
    error: context_exceeded
  - when: { user: last }
    error: refused
"""
TOOLS = [ToolSpec("file_read", "Reads.", {"type": "object", "properties": {}})]


@pytest.fixture(params=["scripted", "http"])
async def model(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Model]:
    path = tmp_path / "script.yaml"
    path.write_text(SCRIPT, encoding="utf-8")
    with OpenAIServer(playing(ModelScript.load(path))) as server:
        entries = {
            "scripted": ModelEntry(model="scripted:script.yaml"),
            "http": ModelEntry(model="acme:tiny", base_url=server.url),
        }
        sections = Sections(MappingProxyType(entries))
        clock = SystemClock()
        catalogue = ModelCatalogue(
            lambda: sections,
            folder=tmp_path,
            clock=clock,
            ids=Ids(clock),
            sleep=lambda _seconds: asyncio.sleep(0),
        )
        yield catalogue.get(request.param)
        await catalogue.close()


async def test_the_conversation_goes_the_same_way(model: Model) -> None:
    window: list[ModelMessage] = [SystemMessage("You fold."), UserMessage("fold a boat")]

    first, _ = await ask(model, window)
    message = first.turn.message
    assert message.thinking == "Paper first, then water."
    assert message.text == "I read the log and look out at the same time."
    good, bad = message.tool_calls
    assert (good.name, good.arguments) == ("file_read", {"path": "log.txt", "limit": 3})
    assert (bad.arguments, bad.raw) == (None, "{oops")
    assert (first.turn.finish_reason, first.turn.usage.input_tokens) == ("tool_calls", 40)

    window += [message]
    window += [ToolResultMessage(one.id, one.name, "rocks") for one in message.tool_calls]
    second, retried = await ask(model, window)
    assert second.turn.message.text == "There are rocks."
    assert [one.reason.split(":")[0] for one in retried] == [
        "model_rate_limited",
        "model_unavailable",
        "model_unavailable",
        "model_bad_answer",
    ]
    assert retried[0].wait_s >= 2

    window += [second.turn.message, UserMessage("go on")]
    third, _ = await ask(model, window)
    assert (third.turn.finish_reason, third.turn.usage.output_tokens) == ("length", 4)

    window += [third.turn.message]
    for text, error in (("more", ModelContextExceeded), ("last", ModelRefused)):
        with pytest.raises(ModelError) as caught:
            await ask(model, [*window, UserMessage(text)])
        assert type(caught.value) is error


async def ask(model: Model, window: list[ModelMessage]) -> tuple[TurnFinished, list[TurnRetried]]:
    """Ask, and check that what was streamed of the last attempt is what the turn holds."""
    said = thought = ""
    retried: list[TurnRetried] = []
    finished: TurnFinished | None = None
    async for event in model.stream(ModelRequest(list(window), TOOLS)):
        assert finished is None, "nothing comes after the end"
        match event:
            case TextDelta():
                said += event.text
            case ThinkingDelta():
                thought += event.text
            case TurnRetried():
                retried.append(event)
                said = thought = ""
            case TurnFinished():
                finished = event
    assert finished is not None
    assert said == finished.turn.message.text
    assert thought == finished.turn.message.thinking
    return finished, retried
