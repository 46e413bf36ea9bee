"""`EventExchange`: events from plugin to plugin, through the host and by consent only.

A plugin with `kaged:events:publish` hands an event to the host, and the host hands it to the
plugins with `kaged:events:subscribe` that asked for its topic. Nobody learns who listens, nothing
is kept for later, and a receiver that does not read loses events, not the sender its time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import field
from typing import Final

import msgspec

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.capabilities import CapabilitySet, EventsAccess, EventsCapability
from kaged.wire.errors import InvalidParams, MethodNotFound, ResourceBusy, RpcCapabilityDenied
from kaged.wire.methods import EventsMethod, is_plugin_method_name

MAX_TOPICS: Final = 64
MAX_EVENT_BYTES: Final = 64 * 1024
PER_SECOND: Final = 50
WINDOW_S: Final = 1.0
ALL_BELOW: Final = ".*"
DELIVERY: Final = "kaged.event"
_NEEDED: Final = {
    EventsMethod.PUBLISH: EventsAccess.PUBLISH,
    EventsMethod.SUBSCRIBE: EventsAccess.SUBSCRIBE,
}

Send = Callable[[str, JsonObject], None]
Post = Callable[[str, JsonObject], None]


@dataclass(slots=True)
class _Participant:
    """One running plugin: how to reach it, what it listens to, when it sent lately."""

    send: Send
    topics: frozenset[str] = frozenset()
    sent_s: deque[float] = field(default_factory=deque)


class EventExchange:
    """Takes events from running plugins and hands them to the others that want them."""

    def __init__(self) -> None:
        self._running: dict[str, _Participant] = {}

    def answer(
        self,
        plugin: str,
        capabilities: CapabilitySet,
        method: str,
        params: JsonValue,
        *,
        now_s: float,
        send: Send,
        post: Post,
    ) -> JsonValue:
        """Answer a request of a plugin; `send` reaches it later, `post` writes an audit event.

        Raises:
            RpcCapabilityDenied: its manifest does not have the capability.
            InvalidParams: no topic, or an event that is too large.
            ResourceBusy: too many events in a second.
        """
        try:
            wanted = EventsMethod(method)
        except ValueError:
            raise MethodNotFound(f"the host has no method {method[:100]}") from None
        needed = EventsCapability(_NEEDED[wanted])
        if needed not in capabilities.items:
            raise RpcCapabilityDenied(
                f"{wanted} needs the capability {needed.text}", detail={"capability": needed.text}
            )
        given = params if isinstance(params, dict) else {}
        # A plugin that was started anew has another connection, and has asked for nothing yet.
        known = self._running.get(plugin)
        if known is None or known.send != send:
            known = self._running[plugin] = _Participant(send)
        if wanted is EventsMethod.SUBSCRIBE:
            return self._subscribe(known, given)
        told, reached = self._publish(plugin, known, given, now_s)
        post("plugin.event_published", {"name": plugin, "topic": told, "to": reached})
        return {"accepted": True}

    def leave(self, plugin: str, send: Send) -> None:
        """Forget a plugin that ended, unless it is running again by now."""
        known = self._running.get(plugin)
        if known is not None and known.send == send:
            del self._running[plugin]

    def _subscribe(self, who: _Participant, given: JsonObject) -> JsonValue:
        topics = given.get("topics")
        if not isinstance(topics, list) or len(topics) > MAX_TOPICS:
            raise InvalidParams(f"topics must be a list of at most {MAX_TOPICS}")
        kept: list[str] = []
        for one in topics:
            if not isinstance(one, str) or not _is_pattern(one):
                raise InvalidParams(
                    f"{str(one)[:100]!r} is no topic", detail={"example": "build.finished"}
                )
            kept.append(one)
        who.topics = frozenset(kept)
        told: list[JsonValue] = [*sorted(who.topics)]
        return {"topics": told}

    def _publish(
        self, plugin: str, who: _Participant, given: JsonObject, now_s: float
    ) -> tuple[str, list[JsonValue]]:
        """Hand an event on; returns its topic and who got it."""
        topic, data = given.get("topic"), given.get("data")
        if not isinstance(topic, str) or not is_plugin_method_name(topic):
            raise InvalidParams("topic must be a name like build.finished")
        if len(msgspec.json.encode(data)) > MAX_EVENT_BYTES:
            raise InvalidParams(f"data must have at most {MAX_EVENT_BYTES} bytes")
        while who.sent_s and now_s - who.sent_s[0] >= WINDOW_S:
            who.sent_s.popleft()
        if len(who.sent_s) >= PER_SECOND:
            raise ResourceBusy(f"a plugin may publish {PER_SECOND} events per second")
        who.sent_s.append(now_s)
        event: JsonObject = {"topic": topic, "from": plugin, "data": data}
        reached: list[JsonValue] = []
        for name, other in sorted(self._running.items()):
            if name != plugin and _matches(topic, other.topics):
                try:
                    other.send(DELIVERY, event)
                except KagedError:
                    continue  # it ends, or does not read; either is told where it is found out
                reached.append(name)
        return topic, reached


def _is_pattern(text: str) -> bool:
    """Return whether a text is a topic, or all topics below a name: `build.*`."""
    if text.endswith(ALL_BELOW):
        return is_plugin_method_name(f"{text.removesuffix(ALL_BELOW)}.x")
    return is_plugin_method_name(text)


def _matches(topic: str, wanted: frozenset[str]) -> bool:
    if topic in wanted:
        return True
    parts = topic.split(".")
    return any(".".join(parts[:end]) + ALL_BELOW in wanted for end in range(1, len(parts)))
