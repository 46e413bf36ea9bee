"""`admit`: from the head of a request to what may be sent on, without any I/O.

Where a placeholder stands is found out here, once, for HTTP/1.1 and HTTP/2 alike. A request holds
at most one; it must stand in a place of its binding, at one of its destinations, for a request that
the binding's rules allow. The value is put in by `Admitted.filled_in`, when it is known.
"""

from __future__ import annotations

import base64
import re
from typing import Final
from urllib.parse import quote

from kaged.base.lazy_dataclass import dataclass
from kaged.credentials.placeholders import holds_placeholder
from kaged.credentials.refusals import RefusalRule, RequestRefused, denied, malformed, refused
from kaged.credentials.request_places import (
    Found,
    Header,
    find_placeholder,
    misplaced,
    parameters,
)
from kaged.kernel.bindings import (
    CageCredentials,
    CredentialBinding,
    PlaceKind,
    RequestLine,
    body_rule,
    decide_request,
)
from kaged.kernel.hosts import NetTargetInvalid, normalise_host
from kaged.kernel.request_rules import GitRule, GraphqlRule

MAX_TARGET_BYTES: Final = 16 * 1024
MAX_HEADERS: Final = 256
MAX_HEADER_BYTES: Final = 64 * 1024
_METHOD = re.compile(rb"[A-Z][A-Z-]{0,31}")
_TARGET = re.compile(rb"/[\x21-\x7e]*")
_FIELD_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_FIELD_VALUE = re.compile(rb"[\x21-\x7e\x80-\xff]?(?:[\x20-\x7e\x80-\xff\t]*[\x21-\x7e\x80-\xff])?")
_VALUE_TEXT = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_PORT = re.compile(r"[0-9]{1,5}")
# Between two neighbors only; the gate is a neighbor of both.
HOP_BY_HOP: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authorization",
        b"proxy-authenticate",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
        b"expect",
    )
)
# Answers must be readable: whole, because a part of a value is not found, and not compressed.
# And nothing that makes a server take another method or path than those that were decided about.
_NOT_SENT: Final = HOP_BY_HOP | {
    b"range",
    b"if-range",
    b"accept-encoding",
    b"host",
    b"sec-websocket-extensions",
    b"x-http-method",
    b"x-http-method-override",
    b"x-method-override",
    b"x-original-method",
    b"x-original-url",
    b"x-rewrite-url",
}
_ONCE: Final = frozenset(
    (
        b"host",
        b"content-length",
        b"transfer-encoding",
        b"authorization",
        b"content-type",
        b"content-encoding",
        b"expect",
    )
)


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The head of a request as a client sent it; names of headers are lower case."""

    method: bytes
    target: bytes
    authority: bytes
    headers: list[Header]


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that may be sent, with the credential's value where `found` says, if it says so.

    `headers` are those that go on, without what is between neighbors and without the authority.
    """

    line: RequestLine
    target: bytes
    headers: list[Header]
    binding: CredentialBinding
    found: Found | None
    body_rule: GitRule | GraphqlRule | None

    @property
    def credential(self) -> str:
        """The name of the credential that the request carries, or empty."""
        return self.found.credential.binding.name if self.found else ""

    def filled_in(self, value: str) -> tuple[bytes, list[Header]]:
        """Return the target and the headers with the value in its place.

        Raises:
            RequestRefused: the value cannot stand in a request.
        """
        found = self.found
        if found is None:
            return self.target, self.headers
        if not _VALUE_TEXT.fullmatch(value) or len(value) > MAX_TARGET_BYTES:
            raise refused(
                RefusalRule.NO_VALUE,
                f"The value of the credential {self.credential} cannot stand in a request.",
                f"set it anew: kaged credential set {self.credential}",
                status=503,
            )
        raw = value.encode("ascii")
        if found.at < 0:
            placeholder = found.credential.placeholder.encode("ascii")
            path, _, query = self.target.partition(b"?")
            parts = [
                name + b"=" + quote(value, safe="").encode() if unquoted == placeholder else whole
                for whole, name, unquoted in parameters(query)
            ]
            return path + b"?" + b"&".join(parts), self.headers
        match found.place.kind:
            case PlaceKind.BASIC:
                if b":" in found.user:
                    raise refused(RefusalRule.PLACE, "A user name holds no colon.")
                text = found.prefix + base64.b64encode(found.user + b":" + raw)
            case PlaceKind.BASIC_USER:
                text = found.prefix + base64.b64encode(raw + b":" + found.user)
            case _:
                text = found.prefix + raw
        headers = list(self.headers)
        headers[found.at] = (headers[found.at][0], text)
        return self.target, headers


def admit(held: CageCredentials, host: str, port: int, head: RequestHead, *, tls: bool) -> Admitted:
    """Decide about a request on a connection to a bound host and port.

    Raises:
        RequestRefused: it is malformed, is meant for another host, holds a placeholder where none
            may stand, or is not allowed.
    """
    _require_wellformed(head)
    _require_authority(head.authority, host, port, tls=tls)
    path, _, query = head.target.partition(b"?")
    line = RequestLine(
        head.method.decode("ascii"), host, port, path.decode("ascii"), query.decode("ascii")
    )
    named = {
        one.strip().lower()
        for name, value in head.headers
        if name == b"connection"
        for one in value.split(b",")
    }
    headers = [one for one in head.headers if one[0] not in _NOT_SENT and (one[0] not in named)]
    headers.append((b"accept-encoding", b"identity"))
    _require_clean(path, head, headers)
    found = find_placeholder(held, query, headers)
    if found is not None:
        binding = found.credential.binding
        _require_channel(binding, host, port, tls=tls)
        decision = decide_request(binding, line)
        if not decision.allowed:
            raise denied(decision)
    else:
        binding = _any_that_allows(held, line)
    return Admitted(line, head.target, headers, binding, found, body_rule(binding, line))


def _any_that_allows(held: CageCredentials, line: RequestLine) -> CredentialBinding:
    """Return the binding under whose rules a request without any credential is sent."""
    last: RequestRefused | None = None
    for one in held.bound_at(line.host, line.port):
        decision = decide_request(one.binding, line)
        if decision.allowed:
            return one.binding
        last = last or denied(decision)
    raise last or refused(RefusalRule.AUTHORITY, f"{line.host} is not bound in this cage.")


def _require_wellformed(head: RequestHead) -> None:
    if not _METHOD.fullmatch(head.method):
        raise malformed("its method is none")
    if len(head.target) > MAX_TARGET_BYTES or not _TARGET.fullmatch(head.target):
        raise malformed("its target is not a path of this server")
    if b"#" in head.target:
        raise malformed("its target holds a fragment")
    if len(head.headers) > MAX_HEADERS:
        raise malformed("it has too many headers")
    if sum(len(name) + len(value) for name, value in head.headers) > MAX_HEADER_BYTES:
        raise malformed("its headers are too long")
    seen = set[bytes]()
    for name, value in head.headers:
        if not _FIELD_NAME.fullmatch(name) or not _FIELD_VALUE.fullmatch(value):
            raise malformed("a header holds characters that headers do not have")
        if b"_" in name and name.replace(b"_", b"-") in _NOT_SENT | _ONCE:
            raise malformed("a header is spelled with an underscore")  # to some servers the same
        if name in _ONCE and name in seen:
            raise malformed(f"it has several headers {name.decode('ascii')}")
        if name == b"content-length" and not _LENGTH.fullmatch(value):
            raise malformed("its length is none")
        seen.add(name)
    if {b"content-length", b"transfer-encoding"} <= seen:
        raise malformed("it says its length in two ways")


def _require_authority(authority: bytes, host: str, port: int, *, tls: bool) -> None:
    text = authority.decode("latin-1")
    name, colon, digits = text.rpartition(":")
    if not colon or text.endswith("]"):
        name, asked_port = text, (443 if tls else 80)
    elif _PORT.fullmatch(digits):
        asked_port = int(digits)
    else:
        raise malformed("its host is none")
    # A client may leave the port out where it is the usual one; some do so elsewhere, too.
    unsaid = not colon or text.endswith("]")
    try:
        same = normalise_host(name) == host and (asked_port == port or unsaid)
    except NetTargetInvalid:
        same = False
    if not same:
        raise refused(
            RefusalRule.AUTHORITY,
            f"The request is for another host than the connection, which leads to {host}:{port}.",
            "send the request to the host that it names",
            status=421,
        )


def _require_channel(binding: CredentialBinding, host: str, port: int, *, tls: bool) -> None:
    destination = binding.reaches(host, port)
    if destination is None:
        raise refused(
            RefusalRule.PLACE,
            f"The placeholder of the credential {binding.name} was sent to {host}:{port}, where"
            " it is not bound.",
            f"use it for {', '.join(one.text for one in binding.destinations[:8])}",
        )
    if destination.tls and not tls:
        raise refused(
            RefusalRule.PLACE,
            f"The credential {binding.name} is sent to {host}:{port} with TLS only.",
            "use https",
        )


def _require_clean(path: bytes, head: RequestHead, headers: list[Header]) -> None:
    if holds_placeholder(path) or holds_placeholder(head.method):
        raise misplaced("the path")
    # Headers that do not go on are looked at, too: whoever put a placeholder there is told.
    kept = {name for name, _ in headers}
    for name, value in head.headers:
        if holds_placeholder(name) or (name not in kept and holds_placeholder(value)):
            raise misplaced(f"the header {name.decode('ascii')[:64]}")
