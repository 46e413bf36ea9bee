"""`Plugin`: what an author declares. `create_plugin(...)`, then `start()`."""

from __future__ import annotations

import binascii
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from kaged.sdk.handshake import HandshakePhase
from kaged.sdk.pipes import Startable

if TYPE_CHECKING:
    from kaged.base.jsonvalue import JsonObject
    from kaged.sdk.context import CallContext
    from kaged.sdk.conversation import Conversation
    from kaged.sdk.storage import Storage

HOOKS = frozenset({"on_session_start", "on_session_idle", "pre_compact", "post_compact"})
HOOK_PREFIX = "kaged.hook."

T = TypeVar("T")
Handler: TypeAlias = "Callable[[dict[str, Any], CallContext], Any | Awaitable[Any]]"
OnConfig: TypeAlias = "Callable[[dict[str, Any]], Any | Awaitable[Any]]"
OnShutdown: TypeAlias = "Callable[[], Any | Awaitable[Any]]"


class Plugin(Startable):
    """One plugin: its handlers, its storage, its log.

    Handlers take `(params, context)` and return JSON data. Coroutine functions run concurrently on
    the event loop; plain functions run in a thread each, so a slow one never holds up the health
    check. Raise `PluginError` (or
    `InvalidParams`, `ResourceBusy`, `NotApplicable`) to answer with an error.
    """

    def __init__(self, name: str, version: str) -> None:
        super().__init__(name, version)
        self._held: list[tuple[str, JsonObject]] = []
        self._conversation: Conversation | None = None
        self._changing = threading.Lock()
        self._begun = threading.Event()
        self._ring: Callable[[], None] | None = None

    @cached_property
    def storage(self) -> Storage:
        """SQL on the plugin's own tables."""
        from kaged.sdk.storage import Storage  # noqa: PLC0415 - many plugins have none

        return Storage(self._request)

    def method(self, name: str) -> Callable[[Handler], Handler]:
        """Declare the handler of a method named in the manifest, e.g. `presets.list`."""
        return self._declare(name)

    def tool(self, name: str) -> Callable[[Handler], Handler]:
        """Declare the handler of a tool by the manifest's own (unprefixed) name."""
        return self._declare(f"{self.name}.{name}")

    def hook(self, name: str) -> Callable[[Handler], Handler]:
        """Declare the handler of a lifecycle hook, e.g. `on_session_start`."""
        if name not in HOOKS:
            raise ValueError(f"unknown hook {name!r}; the hooks are {', '.join(sorted(HOOKS))}")
        return self._declare(HOOK_PREFIX + name)

    def config(self, handler: OnConfig) -> OnConfig:
        """Declare what happens with a new configuration; raise `ConfigInvalid` to refuse it."""
        self.on_config_update = handler
        return handler

    def project_activated(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Declare what happens when a project using this plugin is loaded: `(project, config)`."""
        self.on_project_activated = handler
        return handler

    def project_deactivated(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Declare what happens when such a project is unloaded: `(project, {})`."""
        self.on_project_deactivated = handler
        return handler

    def shutdown(self, handler: OnShutdown) -> OnShutdown:
        """Declare what must be flushed before the process ends."""
        self.on_shutdown = handler
        return handler

    def notify(self, kind: str, params: Mapping[str, Any] | None = None) -> None:
        """Push a notification to the host; callable from any thread.

        Held until the handshake is complete, then sent in order.
        """
        body: dict[str, Any] = dict(params or {})
        with self._changing:
            conversation = self._conversation
            if conversation is None:
                self._held.append((kind, body))
                if self._ring is not None:
                    self._ring()
                return
        conversation.notify(kind, body)

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the plugin's loop from a plain (threaded) handler and wait for it.

        `rows = plugin.wait_for(plugin.storage.query("SELECT …"))`
        """
        try:
            conversation = self._talk()
        except RuntimeError:
            work.close()
            raise
        return conversation.wait_for(work)

    def start(self) -> None:
        """Talk to the host on stdin and stdout until it says shutdown, then exit with code 0."""
        from kaged.sdk.stdio import run  # noqa: PLC0415 - tests drive plugins without any stdio

        run(self)

    def converse(
        self, write: Callable[[bytes], None], phase: HandshakePhase = HandshakePhase.NEW
    ) -> Conversation:
        """Begin a conversation whose answers go to `write`; `start` and the test driver use it."""
        from kaged.sdk.conversation import Conversation  # noqa: PLC0415 - see `Greeting`

        conversation = Conversation(self, write, phase)
        with self._changing:
            self._conversation = conversation
            for kind, params in self._held:
                conversation.notify(kind, params)
            self._held.clear()
        self._begun.set()
        return conversation

    def when_needed(self, ring: Callable[[], None]) -> bool:
        """Register `ring`, called when a conversation is needed; True when it is needed now.

        `start` uses it: until then the plugin waits without one.
        """
        with self._changing:
            self._ring = ring
            return bool(self._held)

    def _declare(self, method: str) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            if method in self.handlers:
                raise ValueError(f"{method} has two handlers")
            self.handlers[method] = handler
            return handler

        return add

    async def _request(self, method: str, params: JsonObject) -> Any:
        return await self._talk().request(method, params)

    def _talk(self) -> Conversation:
        if self._conversation is None:
            if self._ring is None:
                raise RuntimeError("the plugin is not started; call start() first")
            self._ring()
            self._begun.wait()
        assert self._conversation is not None
        return self._conversation


def create_plugin(
    name: str,
    version: str,
    methods: Mapping[str, Handler] | None = None,
    notifications: Iterable[str] = (),
    on_config_update: OnConfig | None = None,
    on_shutdown: OnShutdown | None = None,
    *,
    tools: Mapping[str, Handler] | None = None,
    hooks: Mapping[str, Handler] | None = None,
    capabilities_used: Iterable[str] = (),
) -> Plugin:
    """Describe a plugin in one call; name and version are the manifest's. Nothing runs yet."""
    plugin = Plugin(name, version)
    for key, handler in (methods or {}).items():
        plugin.method(key)(handler)
    for key, handler in (tools or {}).items():
        plugin.tool(key)(handler)
    for key, handler in (hooks or {}).items():
        plugin.hook(key)(handler)
    plugin.notifications = list(notifications)
    plugin.capabilities_used = list(capabilities_used)
    plugin.on_config_update = on_config_update
    plugin.on_shutdown = on_shutdown
    return plugin


def base64_text(data: bytes) -> str:
    """Write binary data as text for use inside JSON; raw bytes are refused on the wire."""
    return binascii.b2a_base64(data, newline=False).decode("ascii")
