"""The inside of a caged plugin: one class, asked over standard input, answering over output.

Started as `python -m kaged.pipeline.worker` in a cage of its own. Whatever the plugin prints goes
to standard error, so that it cannot break the conversation.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from kaged.base import KagedError
from kaged.base.foreign import cancellations, describe_error
from kaged.pipeline.binding import HookCall, bind_hook
from kaged.pipeline.kinds import load_class
from kaged.pipeline.payloads.registry import HookRegistry
from kaged.pipeline.plugin import Plugin
from kaged.pipeline.remote import decode_call, encode_error, encode_result, foreign_result
from kaged.pipeline.results import PluginResult
from kaged.pipeline.settings import PluginConfig
from kaged.pipeline.slots import Extensions

MAX_LINE_BYTES = 4 * 1024 * 1024
_INTERNAL = -32603
_UNKNOWN_METHOD = -32601
_CANCELLED = "the plugin cancelled the task that it runs in"


class Worker:
    """Answers `load`, `invoke` and `ping`, each in a task of its own, until told to `shutdown`."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._registry = HookRegistry()
        self._plugin: Plugin | None = None
        self._hooks: dict[str, HookCall] = {}
        self._calls: dict[Any, asyncio.Task[None]] = {}
        self._given_up: set[Any] = set()
        """Calls that the host cancelled; of any other cancellation the plugin is the cause."""
        self._ending = asyncio.Event()

    async def run(self, lines: asyncio.StreamReader) -> None:
        """Answer until the input ends or somebody asks to stop."""
        async with asyncio.TaskGroup() as calls:
            reading = calls.create_task(self._read(lines, calls))
            await self._ending.wait()
            reading.cancel()
            for call in self._calls.values():
                call.cancel()
        if self._plugin is not None:
            await self._plugin.shutdown()

    async def _read(self, lines: asyncio.StreamReader, calls: asyncio.TaskGroup) -> None:
        while line := await lines.readline():
            message = json.loads(line)
            identity = message.get("id")
            params = message.get("params") or {}
            if message.get("method") == "kaged.cancel":
                call = self._calls.get(params.get("id"))
                if call is not None:
                    self._given_up.add(params.get("id"))
                    call.cancel()
            elif message.get("method") == "shutdown":
                break
            elif identity is not None:
                task = calls.create_task(self._answer(identity, message.get("method"), params))
                self._calls[identity] = task
                task.add_done_callback(lambda _task, key=identity: self._ended(key))
        self._ending.set()

    def _ended(self, identity: Any) -> None:
        self._calls.pop(identity, None)
        self._given_up.discard(identity)

    async def _answer(self, identity: Any, method: Any, params: dict[str, Any]) -> None:
        try:
            if method == "invoke":
                result = await self._invoke(identity, params)
            elif method == "load":
                result = await self._load(params)
            elif method == "ping":
                result = {}
            else:
                self._send(identity, error={"code": _UNKNOWN_METHOD, "message": "unknown method"})
                return
        except asyncio.CancelledError:
            if self._given_up_on(identity):
                raise
            self._send(identity, error={"code": _INTERNAL, "message": _CANCELLED})
            return
        except BaseException as error:  # noqa: BLE001 - request boundary: told to the host, not lost
            self._send(
                identity, error={"code": _INTERNAL, "message": describe_error(error, as_repr=True)}
            )
            return
        self._send(identity, result=result)

    async def _load(self, params: dict[str, Any]) -> dict[str, Any]:
        config = PluginConfig.model_validate(params["config"])
        plugin = load_class(params["class_name"])(config)
        await plugin.initialize()
        if cancellations():
            raise asyncio.CancelledError  # it would arrive at the next wait, whoever waits then
        self._hooks = {hook: bind_hook(plugin, config.name, hook) for hook in config.hooks}
        self._plugin = plugin
        return {"hooks": list(self._hooks)}

    def _given_up_on(self, identity: Any) -> bool:
        return self._ending.is_set() or identity in self._given_up

    async def _invoke(self, identity: Any, params: dict[str, Any]) -> dict[str, Any]:
        hook = str(params["hook_type"])
        call = self._hooks[hook]
        payload, context, extensions = decode_call(params, self._registry.kind(hook))
        shown = _as_shown(extensions)
        try:
            result = await call(payload, context, extensions)
            if cancellations():
                raise asyncio.CancelledError  # also when the hook swallowed it
        except asyncio.CancelledError:
            if self._given_up_on(identity):
                raise
            return encode_error(KagedError(_CANCELLED, code="plugin_cancelled"), context)
        except BaseException as error:  # noqa: BLE001 - boundary: the hook's failure is the answer
            return encode_error(error, context)
        if result is not None and not isinstance(result, PluginResult):
            return encode_error(foreign_result(hook, result), context)
        return encode_result(result, context, shown)

    def _send(self, identity: Any, **body: Any) -> None:
        message = {"jsonrpc": "2.0", "id": identity, **body}
        self._write(json.dumps(message, separators=(",", ":")).encode() + b"\n")


def _as_shown(extensions: Extensions | None) -> Extensions | None:
    """Return what a hook is given, to compare its answer with.

    A slot counts as changed when another object comes back. Only `custom` may be edited in place,
    so that it is kept as it was.
    """
    if extensions is None or extensions.custom is None:
        return extensions
    return extensions.model_copy(update={"custom": copy.deepcopy(extensions.custom)})


async def serve(read_fd: int, write_fd: int) -> None:
    """Run a worker on two file descriptors until its input ends."""
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    with os.fdopen(read_fd, "rb", buffering=0) as source:
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), source
        )

        def write(data: bytes) -> None:
            view = memoryview(data)
            while view:
                view = view[os.write(write_fd, view) :]

        try:
            await Worker(write).run(lines)
        finally:
            transport.close()


def main() -> None:
    """Start the worker on standard input and output."""
    answers = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    asyncio.run(serve(os.dup(0), answers))


if __name__ == "__main__":
    main()
