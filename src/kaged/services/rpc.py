"""`CapabilityRpc`: the capability methods by name, for whoever speaks with sandboxes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.services.caller import TOKEN_PARAM
from kaged.services.manager import CapabilityManager

Handler = Callable[[JsonValue, JsonObject], Awaitable[JsonObject]]
Before = Callable[[JsonObject], Awaitable[None]]


class CapabilityRpc:
    """Takes requests of sandboxes. A request without a valid token reaches nothing at all.

    `before` is awaited with the params of each request first: it may keep requests waiting.
    """

    def __init__(self, manager: CapabilityManager, before: Before | None = None) -> None:
        linking = manager.linking
        self._before = before
        self._methods: dict[str, Handler] = {
            "capability.list": linking.list,
            "capability.invoke": manager.invoke,
            "capability.auth.begin": linking.auth_begin,
            "capability.auth.list": linking.auth_list,
            "capability.auth.complete": linking.auth_complete,
            "capability.auth.complete_callback": linking.auth_complete_callback,
            "capability.auth.poll": linking.auth_poll,
            "capability.auth.cancel": linking.auth_cancel,
            "capability.auth.revoke": linking.auth_revoke,
        }

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of all methods."""
        return tuple(self._methods)

    async def call(self, method: str, params: JsonObject) -> JsonObject:
        """Answer one request; `params` hold the caller's `context_token`.

        Raises:
            KagedError: `capability_method_unknown`; there is no such method (-32601).
            TokenRejected: the token is missing or not valid (-32602); nothing was looked at.
            CapabilityError: everything else (-32603), with a message that may be shown.
        """
        handler = self._methods.get(method)
        if handler is None:
            raise KagedError("there is no such method", code="capability_method_unknown")
        if self._before is not None:
            await self._before(params)
        return await handler(params.get(TOKEN_PARAM), params)
