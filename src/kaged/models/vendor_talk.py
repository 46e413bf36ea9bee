"""`VendorTalk`: the conversation with one vendor's server. Loaded when a model is first asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from typing import Any, Final, cast

from pydantic_ai import messages as theirs
from pydantic_ai.direct import model_request_stream
from pydantic_ai.models import Model as TheirModel
from pydantic_ai.usage import RequestUsage

from kaged.base import Clock
from kaged.base.log import get_logger
from kaged.config.localconfig import ModelEntry
from kaged.models import turn
from kaged.models.answer import TurnBuilder
from kaged.models.errors import ModelRefused, ModelUnavailable
from kaged.models.prices import counted, known_context_tokens, priced
from kaged.models.retrying import AttemptEvent
from kaged.models.vendor_errors import model_error
from kaged.models.vendor_layer import (
    open_model,
    their_messages,
    their_parameters,
    their_settings,
    vendor_parts,
)
from kaged.models.wire import vendor_client

_FINISHES: Final[dict[str, turn.FinishReason]] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
    "tool_call": "tool_calls",
}
_CUT: Final = "incomplete"
_log = get_logger("kaged.models")


class VendorTalk:
    """Asks one server. Made off the event loop, since the library takes a second to load."""

    def __init__(self, alias: str, entry: ModelEntry, *, clock: Clock) -> None:
        self._alias = alias
        self._entry = entry
        self._clock = clock
        self._client = vendor_client(entry.idle_timeout_s)
        vendor, _, name = entry.model.partition(":")
        self.known_tokens = known_context_tokens(vendor, name)
        self._model: TheirModel[Any] | None = None

    async def ask(self, request: turn.ModelRequest) -> AsyncGenerator[AttemptEvent]:
        """Ask once; leaving the iteration closes the connection.

        Raises:
            ModelError: the server did not answer, or not with an answer.
        """
        try:
            async with AsyncExitStack() as stack, aclosing(self._ask(request, stack)) as events:
                async for event in events:
                    yield event
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001  # boundary: a library over what a server sent
            failed = model_error(error, self._alias, self._entry.api_key)
            _log.info("model.failed", alias=self._alias, code=failed.code)
            # Without a cause: a traceback of it would show what was sent, key included.
            raise failed from None

    def priced(self, usage: turn.Usage) -> turn.Usage:
        """Add what this costs, if that is known."""
        vendor, _, name = self._entry.model.partition(":")
        return priced(vendor, name, usage, self._entry.usd_per_million)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _ask(
        self, request: turn.ModelRequest, stack: AsyncExitStack
    ) -> AsyncGenerator[AttemptEvent]:
        if self._model is None:
            self._model = open_model(self._alias, self._entry, self._client)
        until_s = self._clock.monotonic_s() + self._entry.timeout_s
        async with asyncio.timeout(self._patience_s(until_s)):
            response = await stack.enter_async_context(
                model_request_stream(
                    self._model,
                    their_messages(request.messages, self._entry.model),
                    model_settings=their_settings(self._entry, request),
                    model_request_parameters=their_parameters(request.tools),
                )
            )
        events = aiter(response)
        answer = TurnBuilder()
        told = turn.Usage()
        while True:
            async with asyncio.timeout(self._patience_s(until_s)):
                event = await anext(events, None)
            if event is None:
                break
            counted_now = _usage(response.usage)
            if counted_now != told:
                told = counted_now
                yield turn.UsageSoFar(told)
            piece = _take(event, answer)
            if piece is not None:
                yield piece
        yield turn.TurnFinished(self._turn(answer, response.get()))

    def _patience_s(self, until_s: float) -> float:
        left_s = until_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise TimeoutError
        return min(left_s, self._entry.idle_timeout_s)

    def _turn(self, answer: TurnBuilder, response: theirs.ModelResponse) -> turn.ModelTurn:
        message = answer.message()
        parts = vendor_parts(response, self._entry.model)
        if parts is not None and parts.fits(
            message.thinking, message.text, len(message.tool_calls)
        ):
            message = replace(message, parts=parts)
        reason = response.finish_reason
        if reason == "error":
            raise ModelUnavailable(
                f"The server behind {self._alias} stopped before the answer was complete."
            )
        if reason == "content_filter" and not message.text and not message.tool_calls:
            raise ModelRefused(f"The vendor of {self._alias} does not let the model answer this.")
        if reason is None and (response.provider_details or {}).get("finish_reason") == _CUT:
            reason = "length"  # a server that does not say what else ended it
        finish = _FINISHES.get(reason or "stop", "other")
        return turn.ModelTurn(
            message,
            self.priced(_usage(response.usage)),
            # Some servers say `stop` when the model calls tools.
            "tool_calls" if message.tool_calls and finish == "stop" else finish,
            self._entry.model,
        )


def _usage(took: RequestUsage) -> turn.Usage:
    return turn.Usage(
        counted(took.input_tokens),
        counted(took.output_tokens),
        counted(took.cache_read_tokens),
    )


def _take(
    event: theirs.ModelResponseStreamEvent, answer: TurnBuilder
) -> turn.TextDelta | turn.ThinkingDelta | None:
    if isinstance(event, theirs.PartStartEvent):
        part = event.part
        if isinstance(part, theirs.TextPart):
            return turn.TextDelta(answer.say(part.content)) if part.content else None
        if isinstance(part, theirs.ThinkingPart):
            return turn.ThinkingDelta(answer.think(part.content)) if part.content else None
        if isinstance(part, theirs.ToolCallPart):
            answer.call(
                event.index,
                call_id=part.tool_call_id,
                name=part.tool_name,
                arguments=_written(part.args),
            )
    elif isinstance(event, theirs.PartDeltaEvent):
        delta = event.delta
        if isinstance(delta, theirs.TextPartDelta):
            return turn.TextDelta(answer.say(delta.content_delta)) if delta.content_delta else None
        if isinstance(delta, theirs.ThinkingPartDelta):
            said = delta.content_delta
            return turn.ThinkingDelta(answer.think(said)) if said else None
        if isinstance(delta, theirs.ToolCallPartDelta):
            answer.call(
                event.index,
                call_id=delta.tool_call_id or "",
                name=delta.tool_name_delta or "",
                arguments=_written(delta.args_delta),
            )
    return None


def _written(arguments: object) -> str:
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return json.dumps(cast("dict[str, Any]", arguments))
