"""`Offers`: prompts and resources of outside servers, fetched through the extension pipeline."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kaged.mcp.errors import McpAnswerInvalid
from kaged.mcp.texts import MAX_DESCRIPTION_CHARS, clean_text, one_line
from kaged.tools.errors import PipelineRefused
from kaged.tools.outgoing import outgoing_headers
from kaged.tools.policy_answer import policy_answer

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from kaged.base import Clock, JsonObject, JsonValue
    from kaged.mcp.outside import OutsideServer
    from kaged.pipeline.hooked_call import HookedCall
    from kaged.pipeline.pipeline import Pipeline
    from kaged.tools import ToolCallContext
    from kaged.tools.session_labels import SessionLabels

MAX_OFFERS: Final = 200
MAX_URI_CHARS: Final = 2000
_UNDONE: Final = "nothing was fetched"


class Offers:
    """Fetches what servers offer beside tools; policy plugins stand on both sides of it."""

    def __init__(
        self, pipeline: Callable[[], Pipeline | None], labels: SessionLabels, clock: Clock
    ) -> None:
        self._pipeline = pipeline
        self._labels = labels
        self._clock = clock

    async def prompts(self, server: OutsideServer) -> Sequence[JsonObject]:
        """List a server's prompts; empty when it has none or is not running."""
        return [_prompt(one) for one in await _listed(server, "prompts", "prompts/list")]

    async def resources(self, server: OutsideServer) -> Sequence[JsonObject]:
        """List a server's resources; empty when it has none or is not running."""
        found = await _listed(server, "resources", "resources/list")
        return [
            _resource(one)
            for one in found
            if isinstance(one.get("uri"), str) and len(str(one["uri"])) <= MAX_URI_CHARS
        ]

    async def get_prompt(
        self, server: OutsideServer, name: str, arguments: dict[str, str], context: ToolCallContext
    ) -> JsonObject:
        """Fetch a prompt.

        Raises:
            PipelineRefused: a policy plugin said no.
            McpServerUnavailable, McpCallFailed: the server gives none.
        """
        hooked = await self.guarded("prompt", server.name, context, server.plan.labels)
        if hooked is not None:
            from kaged.pipeline.slots import PromptMetadata  # noqa: PLC0415 - only with a pipeline

            about = PromptMetadata(name=name, server_id=server.name)
            outcome = await policy_answer(
                hooked.before_prompt(name, arguments, about), undone=_UNDONE
            )
            if outcome.changed:
                name = str(outcome.payload.prompt_id)
                arguments = {str(k): str(v) for k, v in (outcome.payload.args or {}).items()}
        await self._label(server, hooked, context)
        sent: JsonObject = {"name": name, "arguments": {**arguments}}
        headers = await _headers(hooked, server, name, "prompt")
        answer = _bounded(server, await server.fetch("prompts/get", sent, headers))
        messages = answer.get("messages")
        if not isinstance(messages, list):
            raise McpAnswerInvalid(f"{server.name} returned a prompt without messages")
        said = clean_text(answer.get("description") or "", MAX_DESCRIPTION_CHARS)
        result: JsonValue = {"description": said, "messages": messages}
        if hooked is not None:
            outcome = await policy_answer(hooked.after_prompt(name, result, about), undone=_UNDONE)  # pyright: ignore[reportPossiblyUnboundVariable] - set with `hooked`
            result = _json(outcome.payload.result) if outcome.changed else result
        if not isinstance(result, dict):
            raise McpAnswerInvalid("a policy plugin changed a prompt into something invalid")
        return result

    async def read_resource(
        self, server: OutsideServer, uri: str, context: ToolCallContext
    ) -> JsonObject:
        """Read a resource; returns `contents`. Raises as `get_prompt`."""
        hooked = await self.guarded("resource", server.name, context, server.plan.labels)
        if hooked is not None:
            from kaged.pipeline.slots import ResourceMetadata  # noqa: PLC0415 - as above

            about = ResourceMetadata(uri=uri, server_id=server.name)
            outcome = await policy_answer(hooked.before_resource(uri, {}, about), undone=_UNDONE)
            uri = str(outcome.payload.uri) if outcome.changed else uri
        await self._label(server, hooked, context)
        headers = await _headers(hooked, server, uri, "resource")
        answer = _bounded(server, await server.fetch("resources/read", {"uri": uri}, headers))
        contents = answer.get("contents")
        if not isinstance(contents, list):
            raise McpAnswerInvalid(f"{server.name} returned a resource without contents")
        result: JsonValue = {"contents": contents}
        if hooked is not None:
            outcome = await policy_answer(hooked.after_resource(uri, result, about), undone=_UNDONE)  # pyright: ignore[reportPossiblyUnboundVariable] - set with `hooked`
            result = _json(outcome.payload.content) if outcome.changed else result
        if not isinstance(result, dict):
            raise McpAnswerInvalid("a policy plugin changed a resource into something invalid")
        return result

    async def guarded(
        self,
        kind: str,
        scope: str,
        context: ToolCallContext,
        labels: frozenset[str] = frozenset(),
    ) -> HookedCall | None:
        """Open the way through the pipeline for a fetch; None when no plugin waits on it.

        `labels` are those that the host puts on what is fetched.
        """
        pipeline = self._pipeline()
        hooks = (f"{kind}_pre_fetch", f"{kind}_post_fetch", "token_delegate")
        if pipeline is None or not any(map(pipeline.has_hooks_for, hooks)):
            return None
        from kaged.pipeline.hooked_call import HookedCall  # noqa: PLC0415 - as above
        from kaged.pipeline.origin import (  # noqa: PLC0415 - only with a pipeline
            AgentPlace,
            CallOrigin,
            data_policy,
            subject_of,
        )
        from kaged.pipeline.slots import ObjectSecurityProfile  # noqa: PLC0415 - as above

        origin = CallOrigin(
            request_id=context.request_id,
            at_ms=self._clock.now_ms(),
            arrival=None if context.identity is None else context.identity.arrival,
            actor=context.identity,
            subject=subject_of(context.identity, context.operator_id),
            agent=AgentPlace(context.session_id, tuple(context.caller.split(".subagents."))),
            labels=await self._labels.of(context.session_id),
            source="agent",
            scope=scope,
            properties={"project_id": context.project_id, "run_id": context.run_id},
            objects={
                scope: ObjectSecurityProfile(trust_domain=scope, data_scope=[context.project_id])
            },
            data=data_policy(scope, labels),
        )
        keep = self._labels.keeper(context.session_id, source=scope, run_id=context.run_id)
        return HookedCall(pipeline, origin, keep)

    async def carry(
        self, session_id: str, hooked: HookedCall | None, context: ToolCallContext
    ) -> None:
        """Put the labels of a session that is read on the one that reads it."""
        labels = await self._labels.of(session_id)
        await self._labels.add(
            context.session_id,
            labels,
            source=f"kaged://sessions/{session_id}",
            run_id=context.run_id,
        )
        if hooked is not None:
            hooked.label(labels)

    async def _label(
        self, server: OutsideServer, hooked: HookedCall | None, context: ToolCallContext
    ) -> None:
        """Put what a server's content is known to be on the session, before any of it arrives."""
        labels = server.plan.labels
        await self._labels.add(
            context.session_id, labels, source=server.name, run_id=context.run_id
        )
        if hooked is not None:
            hooked.label(labels)


async def _headers(
    hooked: HookedCall | None, server: OutsideServer, target: str, kind: str
) -> Mapping[str, str] | None:
    endpoint = server.plan.endpoint
    if hooked is None or endpoint is None:
        return None
    return await outgoing_headers(hooked, target, endpoint, kind=kind, undone=_UNDONE)


async def hooked_resource(
    hooked: HookedCall | None, uri: str, read: Callable[[], Coroutine[Any, Any, str]]
) -> str:
    """Read a resource of the host's own, with the policy plugins on both sides of it."""
    if hooked is None:
        return await read()
    from kaged.pipeline.slots import ResourceMetadata  # noqa: PLC0415 - only with a pipeline

    about = ResourceMetadata(uri=uri, server_id="kaged", mime_type="application/json")
    outcome = await policy_answer(hooked.before_resource(uri, {}, about), undone=_UNDONE)
    if outcome.changed and str(outcome.payload.uri) != uri:
        raise PipelineRefused("a policy plugin redirected this call, which is not possible here")
    text = await read()
    outcome = await policy_answer(hooked.after_resource(uri, text, about), undone=_UNDONE)
    return str(_json(outcome.payload.content)) if outcome.changed else text


async def _listed(server: OutsideServer, offer: str, method: str) -> list[JsonObject]:
    conversation = server.conversation
    if conversation is None or offer not in conversation.greeting.offers:
        return []
    answer = await server.fetch(method, {})
    found = answer.get(offer)
    listed = found[:MAX_OFFERS] if isinstance(found, list) else []
    return [one for one in listed if isinstance(one, dict)]


def _prompt(one: JsonObject) -> JsonObject:
    arguments = one.get("arguments")
    known = arguments if isinstance(arguments, list) else []
    return {
        "name": one_line(one.get("name") or "", 100),
        "description": clean_text(one.get("description") or "", MAX_DESCRIPTION_CHARS),
        "arguments": [
            {
                "name": one_line(argument.get("name") or "", 100),
                "description": one_line(argument.get("description") or ""),
                "required": argument.get("required") is True,
            }
            for argument in known[:50]
            if isinstance(argument, dict)
        ],
    }


def _resource(one: JsonObject) -> JsonObject:
    return {
        "uri": str(one["uri"]),
        "name": one_line(one.get("name") or one["uri"], 200),
        "description": clean_text(one.get("description") or "", MAX_DESCRIPTION_CHARS),
        "mime_type": one_line(one.get("mimeType") or "application/octet-stream", 100),
    }


def _bounded(server: OutsideServer, answer: JsonObject) -> JsonObject:
    if len(json.dumps(answer)) > server.plan.output_bytes:
        raise McpAnswerInvalid(
            f"{server.name} returned more than {server.plan.output_bytes} bytes",
            fix="raise max_output_kb of the server, or ask for less",
        )
    return answer


def _json(value: Any) -> JsonValue:
    from kaged.pipeline.remote import to_json  # noqa: PLC0415 - only with a pipeline

    return to_json(value)
