"""Lifecycle hooks: the harness owns the moment, this owns the conversation.

Per event: the plugins of one agent in declared order, one hook at a time per plugin. Timeouts,
errors and bad shapes all become the same nothing in `_fire`, so a session never stalls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import field
from enum import Enum

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.config.pluginwords import Hook, PluginRole
from kaged.peer import PeerTimeout
from kaged.plugins.conversation import PluginConversation
from kaged.plugins.declarations import Declaration, is_compactor
from kaged.plugins.observers import Observed, parse_observer_answer
from kaged.plugins.parts import HostParts
from kaged.plugins.plugin import HostedPlugin
from kaged.plugins.roles import CompactorFault, CompactorResult, parse_compactor_result
from kaged.wire.context import WireContext, with_context
from kaged.wire.errors import ErrorCode, number_of_error
from kaged.wire.framing import Unsendable
from kaged.wire.methods import HOOK_NAMESPACE

_LISTS = ("messages_being_compacted", "messages_remaining")


class _NoAnswer(Enum):
    """No answer at all, which is not the same as an answer of null."""

    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Participant:
    """One plugin that takes part in an agent's hooks."""

    plugin: HostedPlugin
    declaration: Declaration


@dataclass(frozen=True, slots=True)
class CompactionEvent:
    """What the harness knows when an agent's window is compacted."""

    being_compacted: Sequence[JsonObject]
    remaining: Sequence[JsonObject]
    strategy: str
    trigger: str
    always_keep: Sequence[JsonObject] = field(default_factory=tuple[JsonObject, ...])


@dataclass(frozen=True, slots=True)
class PreCompactOutcome:
    """The typed outcome for the harness (PH-AMB-51).

    `replacement` is the compactor's valid answer; `fallback` says why the harness must drop
    instead. Both are None when no compactor is designated.
    """

    observed: Observed
    replacement: CompactorResult | None = None
    fallback: str | None = None


class HookRunner:
    """Fires hooks on the plugins of one agent."""

    def __init__(self, parts: HostParts) -> None:
        self._parts = parts

    async def session_start(
        self, participants: Sequence[Participant], context: WireContext
    ) -> Observed:
        """Fire on_session_start on the primary's plugins; the injections go before the prompt."""
        return await self._observe(participants, Hook.ON_SESSION_START, context, {}, retain=False)

    async def session_idle(
        self,
        participants: Sequence[Participant],
        context: WireContext,
        transcript: Sequence[JsonObject],
    ) -> None:
        """Fire on_session_idle; nobody waits for an answer beyond the acknowledgement."""
        messages: list[JsonValue] = list(transcript)
        for one in _with_hook(participants, Hook.ON_SESSION_IDLE):
            await self._fire_shortened(
                one, Hook.ON_SESSION_IDLE, context, {"transcript": messages}, ("transcript",)
            )

    async def pre_compact(
        self, participants: Sequence[Participant], context: WireContext, event: CompactionEvent
    ) -> PreCompactOutcome:
        """Fire pre_compact: observers first to last, the designated compactor in its own role."""
        observed = Observed()
        replacement: CompactorResult | None = None
        fallback: str | None = None
        for one in _with_hook(participants, Hook.PRE_COMPACT):
            roles = one.plugin.installed.manifest.roles
            if one.declaration.designated_compactor and PluginRole.COMPACTOR in roles:
                checked = await self._compact(one, context, event)
                if isinstance(checked, CompactorResult):
                    replacement = checked
                else:
                    fallback = checked
            elif PluginRole.OBSERVER in roles:
                params = _compaction(event, PluginRole.OBSERVER)
                said = await self._observe([one], Hook.PRE_COMPACT, context, params, retain=True)
                observed = observed.plus(said)
        designated = any(
            one.declaration.designated_compactor and is_compactor(one.plugin.installed.manifest)
            for one in participants
        )
        if designated and replacement is None and fallback is None:
            fallback = "the designated compactor does not take part in pre_compact"
        return PreCompactOutcome(observed, replacement, fallback)

    async def post_compact(
        self, participants: Sequence[Participant], context: WireContext, event: CompactionEvent
    ) -> Observed:
        """Fire post_compact; everybody is addressed as observer."""
        params = _compaction(event, PluginRole.OBSERVER)
        return await self._observe(participants, Hook.POST_COMPACT, context, params, retain=True)

    # -- one plugin ----------------------------------------------------------------------------

    async def _observe(
        self,
        participants: Sequence[Participant],
        hook: Hook,
        context: WireContext,
        params: JsonObject,
        *,
        retain: bool,
    ) -> Observed:
        observed = Observed()
        for one in _with_hook(participants, hook):
            # A compactor-only plugin may list other hooks, but nobody listens (PH-AMB-53).
            listens = PluginRole.OBSERVER in one.plugin.installed.manifest.roles
            answer = await self._fire_shortened(one, hook, context, params, _LISTS)
            said = parse_observer_answer(one.plugin.name, answer, retain=retain)
            if isinstance(said, str):
                self._failed(one, hook, context, ErrorCode.INTERNAL_ERROR, said)
            elif listens:
                observed = observed.plus(said)
        return observed

    async def _compact(
        self, one: Participant, context: WireContext, event: CompactionEvent
    ) -> CompactorResult | str:
        params = _compaction(event, PluginRole.COMPACTOR)
        answer = await self._fire(one, Hook.PRE_COMPACT, context, params)
        if answer is _NoAnswer.NOTHING:
            return "the compactor gave no answer"
        names = (message.get("id") for message in event.being_compacted)
        ids = [name for name in names if isinstance(name, str)]
        # Each message that must stay is looked for among all that the plugin sent.
        checked = await asyncio.to_thread(
            parse_compactor_result, answer, compacted_ids=ids, always_keep=event.always_keep
        )
        if isinstance(checked, CompactorFault):
            if checked.missing:
                missing: list[JsonValue] = list(checked.missing)
                self._parts.post(
                    "compactor_dropped_always_keep", {"name": one.plugin.name, "missing": missing}
                )
            return checked.reason
        return checked

    async def _fire_shortened(
        self,
        one: Participant,
        hook: Hook,
        context: WireContext,
        params: JsonObject,
        lists: tuple[str, ...],
    ) -> JsonValue:
        """Fire for an observer; what does not fit in a line loses its oldest messages first."""
        while True:
            try:
                answer = await self._fire(one, hook, context, params)
            except Unsendable:
                shorter = {
                    name: value[len(value) // 2 + 1 :]
                    for name in lists
                    if isinstance(value := params.get(name), list) and value
                }
                if not shorter:
                    self._failed(one, hook, context, ErrorCode.INVALID_PARAMS, "does not fit")
                    return None
                params = {**params, **shorter}
            else:
                return None if answer is _NoAnswer.NOTHING else answer

    async def _fire(
        self, one: Participant, hook: Hook, context: WireContext, params: JsonObject
    ) -> JsonValue | _NoAnswer:
        """Fire one hook on one plugin. Gives `NOTHING` for every way in which it can go wrong.

        Raises:
            Unsendable: the params are too long, for observers only; a compactor then failed.
        """
        plugin = one.plugin
        async with plugin.hook_turn:
            conversation = plugin.ready_or_none()
            if conversation is None:
                return _NoAnswer.NOTHING
            timeout_s = float(plugin.installed.manifest.hook_timeout_sec)
            self._tell(
                "plugin.hook.fired",
                one,
                hook,
                session_id=context.session_id,
                request_id=context.request_id,
            )
            plugin.metrics.hooks += 1
            started_s = self._parts.clock.monotonic_s()
            body = with_context(params, context)
            config = one.declaration.deliverable(plugin.schemas, plugin.system_config)
            try:
                async with asyncio.timeout(timeout_s), plugin.under(config, body):
                    answer = await _asked(conversation, HOOK_NAMESPACE + hook, body, timeout_s)
            except (TimeoutError, PeerTimeout):
                plugin.metrics.hook_timeouts += 1
                self._tell("plugin.hook.timeout", one, hook, timeout_sec=timeout_s)
                return _NoAnswer.NOTHING
            except Unsendable as error:
                if params.get("role") == PluginRole.COMPACTOR:
                    self._failed(one, hook, context, ErrorCode.INVALID_PARAMS, error.message)
                    return _NoAnswer.NOTHING
                raise
            except KagedError as error:
                self._failed(one, hook, context, number_of_error(error), error.message)
                return _NoAnswer.NOTHING
        duration_ms = (self._parts.clock.monotonic_s() - started_s) * 1000
        self._parts.post(
            "plugin.hook.returned",
            {
                "name": plugin.name,
                "hook": hook.value,
                "duration_ms": round(duration_ms, 3),
                "has_result": answer is not None,
            },
        )
        return answer

    def _failed(
        self, one: Participant, hook: Hook, context: WireContext, code: int, message: str
    ) -> None:
        self._tell(
            "plugin.hook.failed",
            one,
            hook,
            context.request_id,
            error_code=int(code),
            error_message=message,
        )

    def _tell(
        self,
        event: str,
        one: Participant,
        hook: Hook,
        of_request: str | None = None,
        **data: JsonValue,
    ) -> None:
        about = {"name": one.plugin.name, "hook": hook.value}
        placed = {**about, "agent_path": one.declaration.agent_path, **data}
        self._parts.post(event, placed, of_request)


async def _asked(
    conversation: PluginConversation, method: str, body: JsonObject, timeout_s: float
) -> JsonValue:
    """Ask; lists that do not fit into a line pass as a file, where the plugin shares files.

    Raises:
        Unsendable: they fit into neither.
    """
    try:
        return await conversation.request(method, body, timeout_s)
    except Unsendable:
        if conversation.files is None:
            raise
    lists: JsonObject = {name: one for name, one in body.items() if isinstance(one, list)}
    rest = {name: value for name, value in body.items() if name not in lists}
    reference = await conversation.files.put(lists)
    try:
        return await conversation.request(method, {**rest, **reference}, timeout_s)
    finally:
        conversation.files.take_back(reference)


def _with_hook(participants: Sequence[Participant], hook: Hook) -> Iterator[Participant]:
    return (one for one in participants if hook in one.declaration.hooks)


def _compaction(event: CompactionEvent, role: PluginRole) -> JsonObject:
    being: list[JsonValue] = list(event.being_compacted)
    remaining: list[JsonValue] = list(event.remaining)
    return {
        "role": role.value,
        "messages_being_compacted": being,
        "messages_remaining": remaining,
        "strategy": event.strategy,
        "trigger": event.trigger,
    }
