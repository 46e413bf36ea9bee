"""The way to the host: `HostChannel`, JSON-RPC 2.0 in frames of four bytes of length and a message.

The address and the token come from the environment that the host made for this cage.
"""

from __future__ import annotations

import json
import socket
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

TOKEN_VARIABLE = "ASH_CONTEXT_TOKEN"  # noqa: S105 - the name of a variable, not a secret
SOCKET_VARIABLE = "ASH_RPC_SOCKET"
HOST_VARIABLE = "ASH_RPC_HOST"
PORT_VARIABLE = "ASH_RPC_PORT"
DEFAULT_SOCKET = "/opt/ash/rpc.sock"
DEFAULT_HOST = "host.docker.internal"

FRAME_LIMIT_BYTES = 10 * 1024 * 1024  # SC-AMB-33, each way
PREFIX_BYTES = 4
ATTEMPTS = 4
PAUSE_S = 0.5
CONNECT_S = 5.0
# A provider may take 300 seconds, and a call may wait for its turn.
ANSWER_S = 360.0

# What may be sent again after the host may have seen it (an invoke, with its key).
_SAFE = frozenset({"capability.list", "capability.auth.list"})


class CommandFailure(Exception):
    """What went wrong, in one line for the user; `code` is for programs."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class _Lost(Exception):
    """The connection failed; `sent` says whether the host may have the whole request."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.sent = sent


class HostChannel:
    """Asks the host. Nothing is opened before the first call."""

    def __init__(
        self, environ: Mapping[str, str], sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._environ = environ
        self._sleep = sleep

    def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send one request with the token attached, and return its result.

        Raises:
            CommandFailure: there is no token, the host cannot be reached, or it answered with an
            error.
        """
        token = self._environ.get(TOKEN_VARIABLE, "").strip()
        if not token:
            raise CommandFailure(
                f"{TOKEN_VARIABLE} is not set: this process has no access to accounts",
                "missing_token",
            )
        request = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": method,
            "params": {**params, "context_token": token},
        }
        data = json.dumps(request).encode("ascii")
        if len(data) > FRAME_LIMIT_BYTES:
            raise CommandFailure(
                f"the request has {len(data)} bytes and {FRAME_LIMIT_BYTES} are allowed",
                "invalid_input",
            )
        repeatable = method in _SAFE or (
            method == "capability.invoke" and bool(params.get("idempotency_key"))
        )
        return _result(self._exchange(data, repeatable=repeatable))

    def _exchange(self, data: bytes, *, repeatable: bool) -> bytes:
        where = _address(self._environ)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return _ask(where, data)
            except _Lost as lost:
                if lost.sent and not repeatable:
                    raise CommandFailure(
                        f"the host did not answer ({lost.reason}); "
                        "the request may have taken effect, so it is not sent again",
                        "unavailable",
                    ) from lost
                if attempt == ATTEMPTS:
                    raise CommandFailure(
                        f"the host cannot be reached ({lost.reason})", "unavailable"
                    ) from lost
            self._sleep(PAUSE_S)
        raise AssertionError("the last attempt returns or raises")


def _address(environ: Mapping[str, str]) -> str | tuple[str, int]:
    path = environ.get(SOCKET_VARIABLE, "").strip()
    port = environ.get(PORT_VARIABLE, "").strip()
    if path or not port:
        return path or DEFAULT_SOCKET
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise CommandFailure(f"{PORT_VARIABLE} must be a number from 1 to 65535", "invalid_address")
    return environ.get(HOST_VARIABLE, "").strip() or DEFAULT_HOST, int(port)


def _ask(where: str | tuple[str, int], data: bytes) -> bytes:
    sent = False
    try:
        with _connect(where) as connection:
            connection.sendall(len(data).to_bytes(PREFIX_BYTES, "big") + data)
            sent = True
            connection.settimeout(ANSWER_S)
            length = int.from_bytes(_exactly(connection, PREFIX_BYTES), "big")
            if length > FRAME_LIMIT_BYTES:
                raise CommandFailure("the host's answer is too long", "invalid_answer")
            return _exactly(connection, length)
    except TimeoutError as error:
        raise _Lost("it took too long", sent=sent) from error
    except EOFError as error:
        raise _Lost("the connection was closed", sent=sent) from error
    except OSError as error:
        raise _Lost(error.strerror or str(error), sent=sent) from error


def _connect(where: str | tuple[str, int]) -> socket.socket:
    if isinstance(where, tuple):
        return socket.create_connection(where, timeout=CONNECT_S)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(CONNECT_S)
        connection.connect(where)
    except BaseException:
        connection.close()
        raise
    return connection


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = connection.recv(min(count - len(data), 65536))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


def _result(answer: bytes) -> dict[str, Any]:
    try:
        message = json.loads(answer)
    except ValueError as error:
        raise CommandFailure("the host's answer is not JSON", "invalid_answer") from error
    if not isinstance(message, dict) or message.get("id") not in {1, None}:
        raise CommandFailure("the host's answer belongs to another request", "invalid_answer")
    error = message.get("error")
    if isinstance(error, dict):
        raise _refused(error)
    result = message.get("result")
    if not isinstance(result, dict):
        raise CommandFailure("the host's answer has no result", "invalid_answer")
    return result


def _refused(error: dict[str, Any]) -> CommandFailure:
    text = str(error.get("message") or "the host refused the request")
    data = error.get("data")
    code = data.get("code") if isinstance(data, dict) else None
    if not isinstance(code, str):
        # Hosts of earlier generations name the code only at the beginning of the message.
        head = text.partition(":")[0]
        code = head if head.startswith("capability_") else "rpc_error"
    return CommandFailure(text, code)
