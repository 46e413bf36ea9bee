"""`PluginDriver`: play the host for a plugin in a test, without a daemon, process or cage.

async with PluginDriver(plugin) as host:
    assert await host.call("presets.list", {"filter": "web"}) == {"presets": []}
    assert host.notifications == [("catalog.updated", {"entries_added": 3})]
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self, cast

from kaged.wire.errors import MethodNotFound, RpcError, rpc_error

if TYPE_CHECKING:
    from kaged.sdk.conversation import Conversation
    from kaged.sdk.plugin import Plugin

_PATIENCE_S = 5.0
HostMethod = Callable[[dict[str, Any]], Any]


class PluginDriver:
    """The host's side of one conversation, in memory.

    `sent` holds every message of the plugin in order, `notifications` the pushed ones. Requests of
    the plugin (storage) are answered by the functions in `host_methods`.
    """

    def __init__(
        self,
        plugin: Plugin,
        *,
        config: Mapping[str, Any] | None = None,
        host_methods: Mapping[str, HostMethod] | None = None,
        storage_available: bool = False,
        projects: tuple[str, ...] = (),
    ) -> None:
        self.sent: list[dict[str, Any]] = []
        self.notifications: list[tuple[str, dict[str, Any]]] = []
        self.host_methods: dict[str, HostMethod] = dict(host_methods or {})
        self.initialize_result: dict[str, Any] = {}
        self._plugin = plugin
        self._config = config
        self._greeting: dict[str, Any] = {
            "daemon_version": "0.0.0-test",
            "api_version": 1,
            "plugin_name": plugin.name,
            "storage_available": storage_available,
            "projects": list(projects),
        }
        self._next_id = 1
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._conversation: Conversation | None = None
        self._thread = 0

    async def __aenter__(self) -> Self:
        """Run the handshake: initialize, config.update when there is a config, initialized."""
        self._thread = threading.get_ident()
        self._conversation = self._plugin.converse(self._written)
        self.initialize_result = await self.request("initialize", self._greeting)
        if self._config is not None:
            await self.configure(self._config)
        self.tell("initialized")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Send shutdown and wait until the plugin has flushed."""
        await self.shutdown()

    async def call(
        self, method: str, params: Mapping[str, Any] | None = None, **context: str | None
    ) -> Any:
        """Call a method, or a tool by its full name. Raises RpcError when the plugin refuses.

        Keyword arguments are members of `_context` (`agent_path="primary"` …).
        """
        return await self.request(method, {**(params or {}), "_context": self._context(context)})

    async def hook(
        self, name: str, params: Mapping[str, Any] | None = None, **context: str | None
    ) -> Any:
        """Fire a lifecycle hook on the plugin and return its answer."""
        where = {"project_id": "test", "agent_path": "primary", "session_id": "ses_test", **context}
        return await self.call(f"kaged.hook.{name}", params, **where)

    async def configure(self, config: Mapping[str, Any]) -> None:
        """Deliver a configuration. Raises RpcError -32004 when the plugin refuses it."""
        await self.request("config.update", {"config": dict(config)})

    async def request(self, method: str, params: Mapping[str, Any]) -> Any:
        """Send a raw request and wait for its answer."""
        request_id = self._next_id
        self._next_id += 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open[request_id] = answer
        self._deliver(
            {"jsonrpc": "2.0", "id": request_id, "method": method, "params": dict(params)}
        )
        async with asyncio.timeout(_PATIENCE_S):
            return await answer

    def tell(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a raw notification."""
        self._deliver({"jsonrpc": "2.0", "method": method, "params": dict(params or {})})

    async def shutdown(self) -> None:
        """Send shutdown and wait until the plugin has flushed. Safe to call twice."""
        conversation = self._talk()
        self.tell("shutdown")
        async with asyncio.timeout(_PATIENCE_S):
            await conversation.stopped.wait()

    def _context(self, members: Mapping[str, str | None]) -> dict[str, str | None]:
        return {
            "operator_id": "operator",
            "project_id": None,
            "agent_path": None,
            "session_id": None,
            "request_id": f"req_test_{self._next_id}",
            **members,
        }

    def _deliver(self, message: dict[str, Any]) -> None:
        self._talk().receive(json.dumps(message).encode())

    def _written(self, data: bytes) -> None:
        """Take what the plugin wrote, whichever thread its handler runs in."""
        for line in data.splitlines():
            if threading.get_ident() == self._thread:
                self._line(line)
            else:
                self._talk().loop.call_soon_threadsafe(self._line, line)

    def _line(self, line: bytes) -> None:
        message = cast("dict[str, Any]", json.loads(line))
        self.sent.append(message)
        if "method" not in message:
            self._answered(message)
        elif "id" in message:
            self._asked(message)
        else:
            self.notifications.append((message["method"], message.get("params", {})))

    def _answered(self, message: dict[str, Any]) -> None:
        waiting = self._open.pop(message["id"], None) if message["id"] is not None else None
        if waiting is None or waiting.done():
            return
        problem = message.get("error")
        if problem is not None:
            waiting.set_exception(
                rpc_error(problem["code"], problem["message"], problem.get("data"))
            )
        else:
            waiting.set_result(message.get("result"))

    def _asked(self, message: dict[str, Any]) -> None:
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        method = self.host_methods.get(message["method"])
        try:
            if method is None:
                raise MethodNotFound(f"no host method {message['method']}")
            reply["result"] = method(message.get("params", {}))
        except RpcError as problem:
            reply["error"] = {"code": problem.number, "message": problem.message}
        # Answer on the next turn of the loop, as a real host would: never inside the plugin's send.
        asyncio.get_running_loop().call_soon(self._deliver, reply)

    def _talk(self) -> Conversation:
        if self._conversation is None:
            raise RuntimeError("use the driver as `async with PluginDriver(plugin) as host`")
        return self._conversation
