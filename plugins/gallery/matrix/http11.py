"""`request`: JSON over HTTP/1.1 with sockets alone, because this plugin always has one open.

A client library would take twice the memory of all else here. TLS is loaded for https only.
"""

from __future__ import annotations

import json
import socket
from typing import Any

LIMIT_BYTES = 8 * 1024 * 1024


class Unreachable(Exception):
    """There was no answer that could be read."""


def request(
    method: str, url: str, headers: dict[str, str], body: Any = None, patience_s: float = 30.0
) -> tuple[int, Any]:
    """Make a request; returns its status and its JSON. Raises Unreachable."""
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    host, _, port = authority.partition(":")
    if scheme not in ("http", "https") or not host:
        raise Unreachable(f"{scheme}://{host} is no address")
    data = b"" if body is None else json.dumps(body).encode()
    head = {
        "Host": authority, "Accept": "application/json", "Connection": "close",
        "Content-Type": "application/json", "Content-Length": str(len(data)), **headers,
    }  # fmt: skip
    if any("\r" in one or "\n" in one for one in (path, *head.values())):
        raise Unreachable("a header or path has a line end in it")
    lines = [f"{method} {slash or '/'}{path} HTTP/1.1", *(f"{k}: {v}" for k, v in head.items())]
    try:
        where = (host, int(port or (443 if scheme == "https" else 80)))
        with socket.create_connection(where, timeout=patience_s) as plain:
            link: Any = plain
            if scheme == "https":
                import ssl  # noqa: PLC0415 - a homeserver on this machine needs none

                link = ssl.create_default_context().wrap_socket(plain, server_hostname=host)
            link.sendall("\r\n".join((*lines, "", "")).encode() + data)
            with link.makefile("rb") as answer:
                return _read(answer)
    except (OSError, ValueError) as error:
        raise Unreachable(f"{host}: {error}") from None


def _read(answer: Any) -> tuple[int, Any]:
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
    return status, json.loads(data) if data.strip() else None
