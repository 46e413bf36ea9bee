"""`Conversation`: the protocol from initialize to shutdown, without any pipe.

Lines go in through `receive`, answers come out through the `write` it was given. Everything a host
can send, broken input included, is answered or ignored as the wire protocol says; nothing raises.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, cast

from kaged.sdk.context import split_params
from kaged.wire.correlator import Correlator, Ignored
from kaged.wire.errors import (
    ConfigInvalid,
    ErrorCode,
    InvalidParams,
    MethodNotFound,
    NotInitialized,
    RpcError,
)
from kaged.wire.framing import Unsendable
from kaged.wire.lines import encode_line
from kaged.wire.messages import Notification, Outgoing, Request, Response, failure, rejection
from kaged.wire.methods import HOOK_NAMESPACE, SystemMethod
from kaged.wire.strictjson import decode_message, encode_message

if TYPE_CHECKING:
    from kaged.base.jsonvalue import JsonObject, JsonValue
    from kaged.sdk.log import Log
    from kaged.wire.messages import MessageId

API_VERSION = 1
CANCEL = "kaged.cancel"
_THREADS = 16
_OPEN_REQUESTS = 1024


class Phase(Enum):
    """Where the conversation stands."""

    NEW = "new"
    GREETED = "greeted"
    READY = "ready"
    STOPPING = "stopping"


class Declared(Protocol):
    """What a conversation needs to know of a plugin: its name, its handlers, its log."""

    name: str
    version: str
    handlers: dict[str, Callable[..., Any]]
    notifications: list[str]
    capabilities_used: list[str]
    on_config_update: Callable[..., Any] | None
    on_shutdown: Callable[..., Any] | None
    on_project_activated: Callable[..., Any] | None
    on_project_deactivated: Callable[..., Any] | None
    log: Log


class Conversation:
    """One plugin talking to one host. Make it on the event loop that will run the handlers."""

    def __init__(self, plugin: Declared, write: Callable[[bytes], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self.stopped = asyncio.Event()
        self.exit_code = 0
        self._plugin = plugin
        self._write = write
        self._phase = Phase.NEW
        self._asked: Correlator[asyncio.Future[Any]] = Correlator(open_limit=_OPEN_REQUESTS)
        self._held: list[bytes] = []
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="handler")

    def receive(self, line: bytes) -> None:
        """Take one line of the host, without its line feed."""
        message = decode_message(line)
        match message:
            case Request():
                self._route(message.id, message.method, message.params)
            case Notification():
                self._route(None, message.method, message.params)
            case Response():
                self._answered(message)
            case _:
                answer = rejection(message, answer_noise=True)
                if answer is not None:
                    self._put(answer)

    async def request(self, method: str, params: JsonObject) -> Any:
        """Ask the host and wait for its answer. Raises RpcError when it says no."""
        answer: asyncio.Future[Any] = self.loop.create_future()
        request = self._asked.open(method, answer)
        try:
            self._send(Request(request.id, method, params))
            return await answer
        finally:
            self._asked.give_up(request.id)

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Tell the host; callable from any thread."""
        self._send(Notification(method, params))

    async def stop(self) -> None:
        """Run the author's shutdown handler once and let the runner end the process."""
        if self._phase is Phase.STOPPING:
            return
        self._phase = Phase.STOPPING
        try:
            if self._plugin.on_shutdown is not None:
                await self._run(self._plugin.on_shutdown)
        except Exception as problem:  # noqa: BLE001 - the author's code; the process must still end
            self._plugin.log.error("on_shutdown raised", error=repr(problem))
            self.exit_code = 1
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.stopped.set()

    # -- incoming ------------------------------------------------------------------------------

    def _answered(self, message: Response) -> None:
        request = self._asked.settle(message)
        if isinstance(request, Ignored):
            # Never answered: two sides that reject each other's messages must not loop.
            self._plugin.log.warning("ignored a response", id=message.id, reason=request.value)
        elif not request.waiter.done():
            if message.error is not None:
                request.waiter.set_exception(message.error.to_exception())
            else:
                request.waiter.set_result(message.result)

    def _route(self, request_id: MessageId | None, method: str, params: Any) -> None:
        if method == SystemMethod.PING and self._phase is Phase.READY and request_id is not None:
            self._put(Response(request_id, {"status": "ok"}))
        elif method == SystemMethod.INITIALIZE:
            self._initialize(request_id, params)
        elif method == SystemMethod.INITIALIZED:
            self._ready()
        elif method == CANCEL:
            self._cancel(params)
        else:
            task = self.loop.create_task(self._serve(request_id, method, params), name=method)
            key = object() if request_id is None else request_id
            self._tasks[key] = task
            task.add_done_callback(lambda _: self._tasks.pop(key, None))

    def _initialize(self, request_id: MessageId | None, params: Any) -> None:
        problem = self._greeting_problem(request_id, params)
        if problem is not None:
            self._put(failure(request_id, *problem))
            return
        plugin = self._plugin
        result: dict[str, Any] = {
            "name": plugin.name,
            "version": plugin.version,
            "api_version": API_VERSION,
            # Tools may stand among the methods (PH-AMB-18); hooks are the host's own names.
            "methods": [n for n in plugin.handlers if not n.startswith(HOOK_NAMESPACE)],
            "notifications": plugin.notifications,
            "capabilities_used": plugin.capabilities_used,
        }
        self._put(Response(request_id, result))
        self._phase = Phase.GREETED

    def _greeting_problem(
        self, request_id: MessageId | None, params: Any
    ) -> tuple[int, str] | None:
        if request_id is None or self._phase is not Phase.NEW:
            return ErrorCode.INVALID_REQUEST, "initialize comes once, as a request"
        given = cast("dict[str, Any]", params) if isinstance(params, dict) else {}
        name, api = given.get("plugin_name"), given.get("api_version")
        if name != self._plugin.name:
            mine = self._plugin.name
            return ErrorCode.INVALID_PARAMS, f"loaded as {name!r}, but this plugin is {mine!r}"
        if isinstance(api, bool) or api != API_VERSION:
            return (
                ErrorCode.INVALID_PARAMS,
                f"the host speaks plugin API {api!r}, this SDK speaks {API_VERSION}",
            )
        return None

    def _ready(self) -> None:
        if self._phase is not Phase.GREETED:
            self._plugin.log.warning("ignored initialized out of order", phase=self._phase.value)
            return
        with self._lock:
            self._phase = Phase.READY
            held, self._held = self._held, []
            for line in held:
                self._write(line)

    def _cancel(self, params: Any) -> None:
        if isinstance(params, dict):
            key = cast("dict[str, Any]", params).get("id")
            task = self._tasks.get(key) if isinstance(key, (int, str)) else None
            if task is not None:
                task.cancel()

    # -- handlers ------------------------------------------------------------------------------

    async def _serve(self, request_id: MessageId | None, method: str, params: Any) -> None:
        try:
            result = await self._handle(request_id, method, params)
        except RpcError as problem:
            self._refuse(request_id, method, problem.number, problem.message, problem.detail)
        except asyncio.CancelledError:
            self._refuse(
                request_id, method, ErrorCode.INTERNAL_ERROR, "cancelled by the host", None
            )
            raise
        except Exception as problem:  # noqa: BLE001 - the author's code; the caller gets -32603
            text = f"Internal error: {type(problem).__name__}: {problem}"
            self._plugin.log.error(f"{method} raised", error=repr(problem))
            self._refuse(request_id, method, ErrorCode.INTERNAL_ERROR, text, None)
        else:
            if request_id is not None:
                self._put(Response(request_id, result))

    async def _handle(self, request_id: MessageId | None, method: str, params: Any) -> Any:
        if method == SystemMethod.SHUTDOWN:
            await self.stop()
            return {}
        if method == SystemMethod.CONFIG_UPDATE:
            return await self._config(params)
        if self._phase is not Phase.READY:
            raise NotInitialized("not initialized yet")
        if method in {SystemMethod.PROJECTS_ACTIVATED, SystemMethod.PROJECTS_DEACTIVATED}:
            return await self._project(method, params)
        handler = self._plugin.handlers.get(method)
        if handler is None:
            if request_id is None:
                return None
            raise MethodNotFound(f"Method not found: {method}")
        own, context = split_params(_object(params, method))
        return await self._run(handler, own, context)

    async def _config(self, params: Any) -> dict[str, Any]:
        given = _object(params, SystemMethod.CONFIG_UPDATE)
        wrapped = given.get("config")
        config = wrapped if isinstance(wrapped, dict) else given
        if self._plugin.on_config_update is not None:
            try:
                await self._run(self._plugin.on_config_update, config)
            except RpcError:
                raise
            except Exception as problem:
                raise ConfigInvalid(f"{type(problem).__name__}: {problem}") from problem
        return {}

    async def _project(self, method: str, params: Any) -> None:
        given = cast("dict[str, Any]", params if isinstance(params, dict) else {})
        activated = method == SystemMethod.PROJECTS_ACTIVATED
        plugin = self._plugin
        handler = plugin.on_project_activated if activated else plugin.on_project_deactivated
        if handler is not None:
            await self._run(handler, str(given.get("project")), given.get("config") or {})

    async def _run(self, handler: Callable[..., Any], *args: Any) -> Any:
        if inspect.iscoroutinefunction(handler):
            return await handler(*args)
        result = await self.loop.run_in_executor(self._pool, handler, *args)
        return await result if inspect.isawaitable(result) else result

    # -- outgoing ------------------------------------------------------------------------------

    def _send(self, message: Outgoing) -> None:
        line = encode_line(encode_message(message))
        with self._lock:
            if self._phase in {Phase.READY, Phase.STOPPING}:
                self._write(line)
            else:
                self._held.append(line)

    def _put(self, answer: Response) -> None:
        try:
            line = encode_line(encode_message(answer))
        except Unsendable as problem:
            text = f"the answer cannot be sent: {problem}"
            line = encode_line(encode_message(failure(answer.id, ErrorCode.INTERNAL_ERROR, text)))
        with self._lock:
            self._write(line)

    def _refuse(
        self, request_id: MessageId | None, method: str, code: int, message: str, data: JsonValue
    ) -> None:
        if request_id is None:
            self._plugin.log.error(f"{method} failed", code=code, error=message)
        else:
            self._put(failure(request_id, code, message, data))


def _object(params: Any, method: str) -> JsonObject:
    if params is None:
        return {}
    if not isinstance(params, dict):
        raise InvalidParams(f"the params of {method} are no object")
    return cast("JsonObject", params)


__all__ = ["API_VERSION", "Conversation", "Declared", "Phase"]
