"""`ScriptedModel`: plays a script, with the delays and faults of a real one. Always there."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Iterator
from typing import Final

from kaged.base import Ids
from kaged.models import errors
from kaged.models.answer import TurnBuilder
from kaged.models.retrying import AttemptEvent, Sleep
from kaged.models.script import (
    Chosen,
    Fault,
    ModelScript,
    ScriptedCall,
    ScriptedFailure,
    plain_name,
)
from kaged.models.turn import (
    AssistantMessage,
    FinishReason,
    ModelMessage,
    ModelRequest,
    ModelTurn,
    TextDelta,
    ThinkingDelta,
    ToolResultMessage,
    TurnFinished,
    Usage,
)

SCRIPTED: Final = "scripted"
DEFAULT_CONTEXT_TOKENS: Final = 200_000

BUILT_IN: Final = """\
description: What the scripted model says without a script.
turns:
  - agent: "*"
    repeat: true
    say: >-
      I am the scripted model: I play a script, and none is set.
      Name one in local.toml ([models.scripted] model = "scripted:script.yaml"), or a real model.
"""

_WORD: Final = re.compile(r"\s*\S+\s*")
_CHARS_PER_TOKEN: Final = 4


class ScriptedModel:
    """Plays the turns of a script, word by word."""

    def __init__(
        self,
        alias: str,
        script: ModelScript,
        *,
        ids: Ids,
        name: str = SCRIPTED,
        context_tokens: int = DEFAULT_CONTEXT_TOKENS,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.alias = alias
        self.context_tokens = context_tokens
        self.turns = len(script)
        self._script = script
        self._ids = ids
        self._name = name
        self._sleep = sleep

    async def attempt(self, request: ModelRequest, number: int) -> AsyncGenerator[AttemptEvent]:
        """Play the turn that comes next, or the fault that the script has for this attempt.

        Raises:
            ModelError: `model_script_ended`; the script has no turn for this.
            ModelError: as the script says.
        """
        chosen = self._script.choose(request)
        if chosen is None:
            raise errors.ModelError(
                f"The script of {self.alias} has no turn for {request.agent} after this.",
                code="model_script_ended",
                fix="Add a turn, or one with repeat: true.",
                agent=request.agent,
            )
        turn = chosen.turn
        if turn.delay_s:
            await self._sleep(turn.delay_s)
        failure = turn.fail[number - 1] if number <= len(turn.fail) else None
        if failure is None and turn.error is not None:
            failure = ScriptedFailure(fault=turn.error)
        if failure is not None:
            for word in words_of(failure.after):
                yield TextDelta(word)
            raise fault_error(failure)
        answer = TurnBuilder()
        for word in words_of(turn.think):
            yield ThinkingDelta(answer.think(word))
        for word in words_of(turn.say):
            if turn.pace_s:
                await self._sleep(turn.pace_s)
            yield TextDelta(answer.say(word))
        for index, call in enumerate(turn.call):
            answer.call(
                index,
                call_id=f"call_{chosen.number}_{index + 1}_{self._ids.ulid()}",
                name=_name_of(call.tool, request),
                arguments=arguments_of(call),
            )
        message = answer.message()
        yield TurnFinished(
            ModelTurn(message, _usage(chosen, request, message), _finish(chosen), self._name)
        )


def words_of(text: str) -> Iterator[str]:
    """Cut a text into the pieces that it is streamed in."""
    pieces = _WORD.findall(text)
    return iter(pieces or ([text] if text else []))


def arguments_of(call: ScriptedCall) -> str:
    """Write the arguments of a scripted call as a model does: as JSON, or as the script has it."""
    return json.dumps(dict(call.arguments)) if call.raw is None else call.raw


def fault_error(failure: ScriptedFailure) -> errors.ModelError:
    """Return the error that a scripted fault stands for."""
    after_s = failure.retry_after_s
    match failure.fault:
        case Fault.UNAVAILABLE:
            return errors.ModelUnavailable("The script says: unavailable.", retry_after_s=after_s)
        case Fault.CUT:
            return errors.ModelUnavailable("The script cuts the answer off.", retry_after_s=after_s)
        case Fault.RATE_LIMITED:
            return errors.ModelRateLimited("The script limits the rate.", retry_after_s=after_s)
        case Fault.REFUSED:
            return errors.ModelRefused("The script refuses.")
        case Fault.CONTEXT_EXCEEDED:
            return errors.ModelContextExceeded("The script reports that the window is too large.")
        case Fault.BAD_ANSWER:
            return errors.ModelBadAnswer("The script gives an invalid answer.")


def _name_of(tool: str, request: ModelRequest) -> str:
    plain = plain_name(tool)
    offered = {spec.name for spec in request.tools}
    return tool if tool in offered else plain


def _finish(chosen: Chosen) -> FinishReason:
    finish = chosen.turn.finish.value
    return "tool_calls" if chosen.turn.call and finish == "stop" else finish


def _usage(chosen: Chosen, request: ModelRequest, message: AssistantMessage) -> Usage:
    claimed = chosen.turn.usage
    if claimed is not None:
        return Usage(claimed.input, claimed.output, claimed.cached, claimed.cost_usd)
    read = sum(map(_length, request.messages)) // _CHARS_PER_TOKEN
    written = (_length(message) + len(message.thinking)) // _CHARS_PER_TOKEN
    return Usage(max(read, 1), max(written, 1))


def _length(message: ModelMessage) -> int:
    if isinstance(message, ToolResultMessage):
        return len(message.content)
    return len(message.text)
