"""`ProxyHandshake`: CONNECT and SOCKS5 as a conversation without sockets.

Bytes in, one of three things out: more is needed, bytes to send back before more is needed, or an
end: a destination asked for, or a refusal with the answer that says why. Only CONNECT exists in
both protocols; everything else is refused by name.
"""

from __future__ import annotations

import re
from dataclasses import replace
from enum import StrEnum
from socket import AF_INET, AF_INET6, inet_ntop
from typing import TypeAlias

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.net import MAX_PORT

MAX_HEADER_FIELDS = 64
_SOCKS5 = 5
_SOCKS4 = 4
_NO_AUTHENTICATION = 0
_NONE_ACCEPTABLE = 0xFF
_SOCKS_CONNECT = 1
_SOCKS_IPV4, _SOCKS_NAME, _SOCKS_IPV6 = 1, 3, 4
_A, _Z = b"AZ"
_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) ([\x21-\x7e]{1,2048}) HTTP/1\.[01]")
_FIELD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\x20-\x7e\x80-\xff\t]*")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,254}):([0-9]{1,5})")


class ProxyKind(StrEnum):
    """Which of the two protocols a client speaks."""

    CONNECT = "connect"
    SOCKS5 = "socks5"


class ProxyOutcome(StrEnum):
    """How an asked-for connection came out, in terms both protocols can say."""

    OPEN = "open"
    DENIED = "denied"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    TIMED_OUT = "timed_out"
    UNKNOWN_HOST = "unknown_host"
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class More:
    """The client has more to say; `reply` goes back first, if there is any."""

    reply: bytes = b""


@dataclass(frozen=True, slots=True)
class Asked:
    """A destination as the client wrote it, and what it sent beyond its question.

    `before` must be sent ahead of the answer: the client asked without waiting for it.
    """

    kind: ProxyKind
    host: str
    port: int
    rest: bytes
    before: bytes = b""


@dataclass(frozen=True, slots=True)
class ProxyRefused:
    """No destination came of it; `reply` says so in the client's protocol, `reason` in words."""

    reply: bytes
    reason: str


Step: TypeAlias = More | Asked | ProxyRefused


class ProxyHandshake:
    """Reads one client's question, a few bytes at a time.

    What it keeps never exceeds `limit_bytes`; more than that without an end is refused. After an
    `Asked` or `ProxyRefused` it takes no more input.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._buffer = bytearray()
        self._greeted = False
        self._ended = False

    def feed(self, chunk: bytes) -> Step:
        """Take the next bytes from the client."""
        if self._ended:
            raise RuntimeError("the handshake has ended")
        self._buffer += chunk
        try:
            step = self._read()
            if isinstance(step, More) and len(self._buffer) > self._limit:
                raise _no_http(431, "the request is too long")
        except _No as no:
            step = no.refused
        self._ended = not isinstance(step, More)
        return step

    def _read(self) -> Step:
        if not self._buffer:
            return More()
        first = self._buffer[0]
        if self._greeted:
            return self._read_socks()
        if first == _SOCKS5:
            return self._read_greeting()
        if first == _SOCKS4:
            raise _No(b"\x00\x5b" + bytes(6), "SOCKS4 is not supported; use SOCKS5")
        if not _A <= first <= _Z:
            raise _no_http(400, "this is neither HTTP nor SOCKS5")
        return self._read_http()

    def _read_http(self) -> Step:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return More()
        if end + 4 > self._limit:
            raise _no_http(431, "the request is too long")
        line, *fields = bytes(self._buffer[:end]).split(b"\r\n")
        host, port = _parse_connect(line, fields)
        return Asked(ProxyKind.CONNECT, host, port, bytes(self._buffer[end + 4 :]))

    def _read_greeting(self) -> Step:
        if len(self._buffer) < 2 or len(self._buffer) < 2 + self._buffer[1]:
            return More()
        count = self._buffer[1]
        methods = bytes(self._buffer[2 : 2 + count])
        del self._buffer[: 2 + count]
        if _NO_AUTHENTICATION not in methods:
            raise _No(
                bytes([_SOCKS5, _NONE_ACCEPTABLE]), "only SOCKS5 without authentication is served"
            )
        self._greeted = True
        welcome = bytes([_SOCKS5, _NO_AUTHENTICATION])
        # A client that did not wait for the welcome still gets it, in front of whatever follows.
        try:
            step = self._read_socks()
        except _No as no:
            raise _No(welcome + no.refused.reply, no.refused.reason) from no
        return More(welcome) if isinstance(step, More) else replace(step, before=welcome)

    def _read_socks(self) -> More | Asked:
        data = bytes(self._buffer)
        if len(data) < 5:
            return More()
        version, command, reserved, kind = data[:4]
        if version != _SOCKS5 or reserved != 0:
            raise _no_socks(1, "the SOCKS5 request is malformed")
        lengths = {_SOCKS_IPV4: 4, _SOCKS_NAME: 1 + data[4], _SOCKS_IPV6: 16}
        if kind not in lengths:
            raise _no_socks(8, "the SOCKS5 address type is unknown")
        end = 4 + lengths[kind]
        if len(data) < end + 2:
            return More()
        if command != _SOCKS_CONNECT:
            raise _no_socks(7, "only the SOCKS5 command CONNECT is served")
        host = _socks_host(kind, data[4:end])
        port = int.from_bytes(data[end : end + 2], "big")
        if host is None or port == 0:
            raise _no_socks(2, "the SOCKS5 destination is no host and port")
        return Asked(ProxyKind.SOCKS5, host, port, data[end + 2 :])


def reply_for(kind: ProxyKind, outcome: ProxyOutcome, reason: str) -> bytes:
    """Return the answer to the client's request in its own protocol."""
    match kind:
        case ProxyKind.CONNECT:
            if outcome is ProxyOutcome.OPEN:
                return b"HTTP/1.1 200 Connection established\r\n\r\n"
            return _http_reply(_HTTP_STATUS[outcome], reason)
        case ProxyKind.SOCKS5:
            return _socks_reply(_SOCKS_STATUS[outcome])


_HTTP_STATUS = {
    ProxyOutcome.DENIED: 403,
    ProxyOutcome.UNREACHABLE: 502,
    ProxyOutcome.REFUSED: 502,
    ProxyOutcome.TIMED_OUT: 504,
    ProxyOutcome.UNKNOWN_HOST: 502,
    ProxyOutcome.BUSY: 503,
}
_SOCKS_STATUS = {
    ProxyOutcome.OPEN: 0,
    ProxyOutcome.DENIED: 2,
    ProxyOutcome.UNREACHABLE: 3,
    ProxyOutcome.REFUSED: 5,
    ProxyOutcome.TIMED_OUT: 6,
    ProxyOutcome.UNKNOWN_HOST: 4,
    ProxyOutcome.BUSY: 1,
}
_HTTP_PHRASE = {
    400: "Bad Request",
    403: "Forbidden",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}


class _No(Exception):
    """The client asked for something that is not served."""

    def __init__(self, reply: bytes, reason: str) -> None:
        super().__init__(reason)
        self.refused = ProxyRefused(reply, reason)


def _no_http(status: int, reason: str) -> _No:
    return _No(_http_reply(status, reason), reason)


def _no_socks(code: int, reason: str) -> _No:
    return _No(_socks_reply(code), reason)


def _parse_connect(line: bytes, fields: list[bytes]) -> tuple[str, int]:
    request = _REQUEST_LINE.fullmatch(line)
    if request is None:
        raise _no_http(400, "the request line is malformed")
    if len(fields) > MAX_HEADER_FIELDS:
        raise _no_http(431, "there are too many header fields")
    if not all(_FIELD.fullmatch(field) for field in fields):
        raise _no_http(400, "a header field is malformed")
    if request[1] != b"CONNECT":
        raise _no_http(
            405, "this proxy only supports CONNECT; send plain requests directly to the host"
        )
    found = _AUTHORITY.fullmatch(request[2].decode("ascii"))
    if found is None or not 0 < int(found[2]) <= MAX_PORT:
        raise _no_http(400, "CONNECT takes host:port and nothing else")
    return found[1], int(found[2])


def _http_reply(status: int, reason: str) -> bytes:
    body = ascii(reason)[1:-1] + "\n"
    allow = "Allow: CONNECT\r\n" if status == 405 else ""
    head = (
        f"HTTP/1.1 {status} {_HTTP_PHRASE[status]}\r\n{allow}Content-Type: text/plain\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return (head + body).encode("ascii")


def _socks_reply(code: int) -> bytes:
    return bytes([_SOCKS5, code, 0, 1, 0, 0, 0, 0, 0, 0])


def _socks_host(kind: int, raw: bytes) -> str | None:
    if kind == _SOCKS_IPV4:
        return inet_ntop(AF_INET, raw)
    if kind == _SOCKS_IPV6:
        return inet_ntop(AF_INET6, raw)
    name = raw[1:]  # behind its length
    if not name or not name.isascii() or not name.decode("ascii").isprintable():
        return None
    return name.decode("ascii")
