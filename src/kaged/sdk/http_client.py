"""`request`: JSON over HTTP/1.1 with sockets alone, for plugins that always have one open.

`http_request` starts a child for each request and fits plugins that mostly wait. A client library
would take twice the memory of all else in a plugin that listens. TLS is loaded for https only.
"""

from __future__ import annotations

import json
import socket
from typing import Any

LIMIT_BYTES = 8 * 1024 * 1024
_SECURE = {"http": False, "ws": False, "https": True, "wss": True}


class Unreachable(Exception):
    """There was no answer that could be read."""


def connect(url: str, patience_s: float) -> tuple[socket.socket, str, str]:
    """Connect to where a URL points; returns the socket, the `Host` header and the target.

    Takes `http`, `https`, `ws` and `wss`. Raises Unreachable.
    """
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    host, _, port = authority.partition(":")
    if scheme not in _SECURE or not host:
        raise Unreachable(f"{scheme}://{host} is no address")
    if not url.isprintable() or " " in url:
        raise Unreachable("the address has a line end or a space in it")
    try:
        where = (host, int(port or (443 if _SECURE[scheme] else 80)))
        link = socket.create_connection(where, timeout=patience_s)
        if _SECURE[scheme]:
            import ssl  # noqa: PLC0415 - a service on this machine needs none

            try:
                link = ssl.create_default_context().wrap_socket(link, server_hostname=host)
            except BaseException:
                link.close()
                raise
    except (OSError, ValueError) as error:
        raise Unreachable(f"{host}: {error}") from None
    return link, authority, f"{slash or '/'}{path}"


def request(
    method: str, url: str, headers: dict[str, str], body: Any = None, patience_s: float = 30.0
) -> tuple[int, Any]:
    """Make a request; returns its status and its JSON. Raises Unreachable."""
    status, _, answer = exchange(method, url, headers, body, patience_s)
    return status, answer


def exchange(
    method: str, url: str, headers: dict[str, str], body: Any = None, patience_s: float = 30.0
) -> tuple[int, dict[str, str], Any]:
    """Make a request; returns status, headers in lower case, and JSON. Raises Unreachable."""
    data = b"" if body is None else json.dumps(body).encode()
    if any("\r" in one or "\n" in one for one in headers.values()):
        raise Unreachable("a header has a line end in it")
    link, authority, target = connect(url, patience_s)
    head = {
        "Host": authority, "Accept": "application/json", "Connection": "close",
        "Content-Type": "application/json", "Content-Length": str(len(data)), **headers,
    }  # fmt: skip
    lines = [f"{method} {target} HTTP/1.1", *(f"{k}: {v}" for k, v in head.items())]
    try:
        with link:
            link.sendall("\r\n".join((*lines, "", "")).encode() + data)
            with link.makefile("rb") as answer:
                return _read(answer)
    except (OSError, ValueError, IndexError) as error:
        raise Unreachable(f"{authority}: {error}") from None


def _read(answer: Any) -> tuple[int, dict[str, str], Any]:
    status = int(answer.readline(1000).split()[1])
    headers: dict[str, str] = {}
    while (line := answer.readline(20_000).strip()) and len(headers) < 200:
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    if headers.get("transfer-encoding", "").lower() == "chunked":
        parts: list[bytes] = []
        while size := int(answer.readline(100).split(b";")[0], 16):
            if sum(map(len, parts)) + size > LIMIT_BYTES:
                raise ValueError("the answer is too large")
            parts.append(answer.read(size))
            answer.readline(10)
        data = b"".join(parts)
    else:
        length = headers.get("content-length")
        data = answer.read(min(int(length), LIMIT_BYTES + 1) if length else LIMIT_BYTES + 1)
    if len(data) > LIMIT_BYTES:
        raise ValueError("the answer is too large")
    return status, headers, json.loads(data) if data.strip() else None
