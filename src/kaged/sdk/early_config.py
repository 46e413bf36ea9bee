"""`EarlyConfig`: a configuration for a plain handler, before anything else is loaded.

Most plugins are configured right after the handshake and then wait. A plain function needs no
event loop for that; it runs in a thread of its own, so that the health check goes on.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Awaitable, Callable
from types import FunctionType, MethodType
from typing import Any, cast

from kaged.sdk.declared import DeclaredPlugin
from kaged.wire.errors import ConfigInvalid, ErrorCode, RpcError
from kaged.wire.lines import encode_line
from kaged.wire.methods import SystemMethod

_CO_COROUTINES = 0x80 | 0x100  # coroutine functions, and generators that are marked as such


def is_plain(handler: Callable[..., Any] | None) -> bool:
    """Return whether a handler is certainly no coroutine function."""
    function = handler.__func__ if isinstance(handler, MethodType) else handler
    if not isinstance(function, FunctionType):
        return function is None
    return not function.__code__.co_flags & _CO_COROUTINES


class EarlyConfig:
    """One `config.update`: runs the author's handler and answers as a conversation would."""

    def __init__(
        self,
        plugin: DeclaredPlugin,
        message_id: int | str,
        config: dict[str, Any],
        write: Callable[[bytes], None],
    ) -> None:
        self._plugin = plugin
        self._id = message_id
        self._config = config
        self._write = write

    def start(self) -> None:
        """Run it in a thread; the process ends without waiting for it."""
        threading.Thread(target=self._run, name="config", daemon=True).start()

    def _run(self) -> None:
        handler = self._plugin.on_config_update
        try:
            result = None if handler is None else handler(self._config)
            if hasattr(result, "__await__"):
                self._plugin.wait_for(_awaited(cast("Awaitable[Any]", result)))
        except RpcError as problem:
            line = self._refusal(problem)
        except Exception as problem:  # noqa: BLE001 - the author's code; the host is told
            line = self._refusal(ConfigInvalid(f"{type(problem).__name__}: {problem}"))
        except BaseException as problem:  # noqa: BLE001 - see above
            text = f"Internal error: {type(problem).__name__}: {problem}"
            self._plugin.log.error(
                "sdk.handler_raised", method=SystemMethod.CONFIG_UPDATE, error=repr(problem)
            )
            line = self._refusal(RpcError(text, number=ErrorCode.INTERNAL_ERROR))
        else:
            answer = {"jsonrpc": "2.0", "id": self._id, "result": dict[str, Any]()}
            line = encode_line(json.dumps(answer, separators=(",", ":")).encode())
        self._write(line)

    def _refusal(self, problem: RpcError) -> bytes:
        from kaged.sdk.answers import answer_line  # noqa: PLC0415 - few are refused
        from kaged.wire.messages import failure  # noqa: PLC0415 - see above

        return answer_line(failure(self._id, problem.number, problem.message, problem.detail))


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result
