"""`Conversation`: the protocol from initialize to shutdown, without any pipe.

Lines go in through `receive`, answers come out through the `write` it was given. Everything a host
can send, broken input included, is answered or ignored as the wire protocol says; nothing raises.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, cast

from kaged.sdk.answers import answer_line
from kaged.sdk.context import Cancellation, split_params
from kaged.sdk.declared import DeclaredPlugin
from kaged.sdk.handshake import API_VERSION, HandshakePhase, introduction
from kaged.sdk.outlet import Outlet
from kaged.sdk.threads import Threads
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
from kaged.wire.messages import (
    VERSION,
    Notification,
    Outgoing,
    Request,
    Response,
    failure,
    rejection,
)
from kaged.wire.methods import SystemMethod
from kaged.wire.strictjson import decode_message, encode_json, encode_message

if TYPE_CHECKING:
    from kaged.base.jsonvalue import JsonObject, JsonValue
    from kaged.sdk.context import CallContext
    from kaged.wire.messages import MessageId

CANCEL = "kaged.cancel"
CANCELLED = "cancelled by the host"
_OPEN_REQUESTS = 1024

T = TypeVar("T")


class _OpenCall:
    """One call of the host that has no answer yet; `id` is None when none is wanted."""

    __slots__ = ("answered", "cancellation", "id", "method", "task")

    def __init__(self, call_id: MessageId | None, method: str) -> None:
        self.id = call_id
        self.method = method
        self.answered = False
        self.cancellation = Cancellation()
        self.task: asyncio.Task[None] | None = None


class Conversation:
    """One plugin talking to one host. Make it on the event loop that will run the handlers.

    `phase` is where a greeting that went before has come to.
    """

    def __init__(
        self,
        plugin: DeclaredPlugin,
        write: Callable[[bytes], None],
        phase: HandshakePhase = HandshakePhase.NEW,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.stopped = asyncio.Event()
        self.exit_code = 0
        self._plugin = plugin
        self._handlers = plugin.handlers
        self._phase = phase
        self._asked: Correlator[asyncio.Future[Any]] = Correlator(open_limit=_OPEN_REQUESTS)
        self._outlet = Outlet(write)
        if phase is HandshakePhase.READY:
            self._outlet.open()
        self._threads = Threads()
        self._answering = threading.Lock()
        self._open: dict[object, _OpenCall] = {}  # by id; calls without one stand for themselves
        self._is_async: dict[str, tuple[Callable[..., Any], bool]] = {}

    def receive(self, line: bytes) -> None:
        """Take one line of the host, without its line feed."""
        message = decode_message(line)
        if isinstance(message, Request):
            handler = self._handlers.get(message.method)
            if handler is not None and self._phase is HandshakePhase.READY:
                self._call(handler, message.id, message.method, message.params)
            else:
                self._route(message.id, message.method, message.params)
        elif isinstance(message, Notification):
            self._route(None, message.method, message.params)
        elif isinstance(message, Response):
            self._answered(message)
        else:
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

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it in another thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Notify the host; callable from any thread."""
        self._send(Notification(method, params))

    async def stop(self) -> None:
        """Run the author's shutdown handler once and let the runner end the process."""
        if self._phase is HandshakePhase.STOPPING:
            return
        self._phase = HandshakePhase.STOPPING
        self._outlet.open(send_held=False)
        try:
            if self._plugin.on_shutdown is not None:
                await self._run(self._plugin.on_shutdown)
        except Exception as problem:  # noqa: BLE001 - the author's code; the process must still end
            self._plugin.log.error("sdk.shutdown_handler_raised", error=repr(problem))
            self.exit_code = 1
        self._threads.close()
        self.stopped.set()

    def flush(self) -> None:
        """Write what was gathered; the runner's last word before the process ends."""
        self._outlet.flush()

    # -- incoming ------------------------------------------------------------------------------

    def _answered(self, message: Response) -> None:
        request = self._asked.settle(message)
        if isinstance(request, Ignored):
            # Never answered: two sides that reject each other's messages must not loop.
            self._plugin.log.warning("sdk.response_ignored", id=message.id, reason=request.value)
        elif not request.waiter.done():
            if message.error is not None:
                request.waiter.set_exception(message.error.to_exception())
            else:
                request.waiter.set_result(message.result)

    def _route(self, request_id: MessageId | None, method: str, params: Any) -> None:
        if (
            method == SystemMethod.PING
            and self._phase is HandshakePhase.READY
            and request_id is not None
        ):
            self._put(Response(request_id, {"status": "ok"}))
        elif method == SystemMethod.INITIALIZE:
            self._initialize(request_id, params)
        elif method == SystemMethod.INITIALIZED:
            self._ready()
        elif method == CANCEL:
            self._cancel(params)
        else:
            call = self._opened(request_id, method)
            work = self._answer(call, self._handle, call, params)
            call.task = self.loop.create_task(work, name=method)

    def _call(
        self, handler: Callable[..., Any], request_id: MessageId, method: str, params: Any
    ) -> None:
        """Start the author's handler: on the loop if it is a coroutine function, else aside."""
        call = self._opened(request_id, method)
        try:
            own, context = split_params(_object(params, method), call.cancellation)
        except RpcError as problem:
            self._refuse(call, problem.number, problem.message, problem.detail)
            return
        known = self._is_async.get(method)
        if known is None or known[0] is not handler:
            known = self._is_async[method] = (handler, inspect.iscoroutinefunction(handler))
        if known[1]:
            work = self._answer(call, handler, own, context)
            call.task = self.loop.create_task(work, name=method)
        else:
            self._threads.submit(self._call_plain, call, handler, own, context)

    def _initialize(self, request_id: MessageId | None, params: Any) -> None:
        problem = self._greeting_problem(request_id, params)
        if problem is not None:
            self._put(failure(request_id, *problem))
            return
        self._put(Response(request_id, introduction(self._plugin)))
        self._phase = HandshakePhase.GREETED

    def _greeting_problem(
        self, request_id: MessageId | None, params: Any
    ) -> tuple[int, str] | None:
        if request_id is None or self._phase is not HandshakePhase.NEW:
            return ErrorCode.INVALID_REQUEST, "initialize comes once, as a request"
        given = cast("dict[str, Any]", params) if isinstance(params, dict) else {}
        name, api = given.get("plugin_name"), given.get("api_version")
        if name != self._plugin.name:
            mine = self._plugin.name
            return ErrorCode.INVALID_PARAMS, f"loaded as {name!r}, but this plugin is {mine!r}"
        if isinstance(api, bool) or api != API_VERSION:
            return (
                ErrorCode.INVALID_PARAMS,
                f"the host uses plugin API {api!r}, this SDK supports {API_VERSION}",
            )
        return None

    def _ready(self) -> None:
        if self._phase is not HandshakePhase.GREETED:
            self._plugin.log.warning("sdk.initialized_ignored", phase=self._phase.value)
            return
        self._phase = HandshakePhase.READY
        self._outlet.open()

    def _cancel(self, params: Any) -> None:
        if not isinstance(params, dict):
            return
        key = cast("dict[str, Any]", params).get("id")
        call = self._open.get(key) if type(key) is int or isinstance(key, str) else None
        if call is not None:
            # Answered now: a plain handler cannot be interrupted, it can only look at its context.
            call.cancellation.requested = True
            self._refuse(call, ErrorCode.INTERNAL_ERROR, CANCELLED, None)
            if call.task is not None:
                call.task.cancel()

    # -- handlers ------------------------------------------------------------------------------

    async def _answer(self, call: _OpenCall, handler: Callable[..., Any], *args: Any) -> None:
        """Await a handler and answer the call with what it returns or raises."""
        try:
            result = await handler(*args)
        except BaseException as problem:
            self._raised(call, problem)
            if not isinstance(problem, Exception):
                raise
        else:
            self._finish(call, result)

    def _call_plain(
        self, call: _OpenCall, handler: Callable[..., Any], own: JsonObject, context: CallContext
    ) -> None:
        """Run a plain handler, in a thread of its own, and answer from there."""
        try:
            result = handler(own, context)
        except BaseException as problem:  # noqa: BLE001 - the author's code; the caller is told
            self._raised(call, problem)
            return
        if inspect.isawaitable(result):
            self.loop.call_soon_threadsafe(self._await, call, result)
        else:
            self._finish(call, result)

    def _await(self, call: _OpenCall, result: Any) -> None:
        call.task = self.loop.create_task(self._answer(call, _awaited, result), name=call.method)

    def _raised(self, call: _OpenCall, problem: BaseException) -> None:
        if isinstance(problem, RpcError):
            self._refuse(call, problem.number, problem.message, problem.detail)
        elif isinstance(problem, asyncio.CancelledError):
            self._refuse(call, ErrorCode.INTERNAL_ERROR, CANCELLED, None)
        else:
            text = f"Internal error: {type(problem).__name__}: {problem}"
            self._plugin.log.error("sdk.handler_raised", method=call.method, error=repr(problem))
            self._refuse(call, ErrorCode.INTERNAL_ERROR, text, None)

    async def _handle(self, call: _OpenCall, params: Any) -> Any:
        method = call.method
        if method == SystemMethod.SHUTDOWN:
            await self.stop()
            return {}
        if method == SystemMethod.CONFIG_UPDATE:
            return await self._config(params)
        if self._phase is not HandshakePhase.READY:
            raise NotInitialized("not initialized yet")
        if method in {SystemMethod.PROJECTS_ACTIVATED, SystemMethod.PROJECTS_DEACTIVATED}:
            return await self._project(method, params)
        handler = self._plugin.handlers.get(method)
        if handler is None:
            if call.id is None:
                return None
            raise MethodNotFound(f"Method not found: {method}")
        own, context = split_params(_object(params, method), call.cancellation)
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
        result = await self._threads.call(handler, *args)
        return await result if inspect.isawaitable(result) else result

    # -- outgoing ------------------------------------------------------------------------------

    def _opened(self, request_id: MessageId | None, method: str) -> _OpenCall:
        call = _OpenCall(request_id, method)
        self._open[call if request_id is None else request_id] = call
        return call

    def _finish(self, call: _OpenCall, result: Any) -> None:
        self._end(call, b"" if call.id is None else _result_line(call.id, result))

    def _end(self, call: _OpenCall, line: bytes) -> None:
        """Answer a call once, from any thread; nobody waits for what comes after a cancellation."""
        with self._answering:
            if call.answered:
                return
            call.answered = True
            key = call if call.id is None else call.id
            if self._open.get(key) is call:
                del self._open[key]
        if call.id is not None:
            self._outlet.put(line, alone=not self._open)

    def _refuse(self, call: _OpenCall, code: int, message: str, data: JsonValue) -> None:
        if call.id is None:
            self._plugin.log.error("sdk.call_failed", method=call.method, code=code, error=message)
        self._end(call, answer_line(failure(call.id, code, message, data)))

    def _send(self, message: Outgoing) -> None:
        line = encode_line(encode_message(message))
        self._outlet.put_when_ready(line, alone=len(self._open) <= 1)

    def _put(self, answer: Response) -> None:
        self._outlet.put(answer_line(answer), alone=not self._open)


async def _awaited(result: Any) -> Any:
    return await result


def _result_line(call_id: MessageId, result: Any) -> bytes:
    try:
        return encode_line(encode_json({"jsonrpc": VERSION, "id": call_id, "result": result}))
    except Unsendable:
        return answer_line(Response(call_id, result))


def _object(params: Any, method: str) -> JsonObject:
    if params is None:
        return {}
    if not isinstance(params, dict):
        raise InvalidParams(f"the params of {method} are no object")
    return cast("JsonObject", params)
