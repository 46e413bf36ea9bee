"""`RequestBody` and `AnswerBody`: what becomes of bodies on their way, without any I/O.

A request's body is looked at before its head is sent, as far as it is here: up to a window, all of
a short one, and as much as a rule needs. What comes later is looked at while it streams.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

from kaged.base.errors import KagedError
from kaged.credentials.git_push import pushed_refs
from kaged.credentials.graphql_body import MAX_GRAPHQL_BYTES, root_fields
from kaged.credentials.needles import Needles, StreamWindow
from kaged.credentials.placeholders import PlaceholderWatch
from kaged.credentials.refusals import RefusalRule, RequestRefused, denied, refused
from kaged.credentials.request_places import Header
from kaged.credentials.requests import HOP_BY_HOP, Admitted
from kaged.kernel.request_rules import GitRule

WINDOW_BYTES: Final = 64 * 1024
_DECODED_AT_ONCE: Final = 256 * 1024
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS
_DECODED: Final = frozenset((b"gzip", b"x-gzip", b"deflate"))
_NOT_PASSED_BACK: Final = HOP_BY_HOP | {b"alt-svc", b"accept-ranges"}


class RequestBody:
    """The body of one request. Until `released`, nothing of the request may be sent.

    `feed` and `end` return what may be sent then, what was held before included, and raise
    `RequestRefused` when it must not be.
    """

    def __init__(self, admitted: Admitted) -> None:
        self._admitted = admitted
        self._limit = admitted.binding.limits.body_bytes
        self._watch = PlaceholderWatch()
        self._held = bytearray()
        self._size = 0
        self.released = False
        length = next((v for n, v in admitted.headers if n == b"content-length"), b"")
        self._length = int(length) if length else None
        if self._length is not None:
            self._require_size(self._length)
        coded = any(n == b"content-encoding" for n, _ in admitted.headers)
        if coded and admitted.body_rule is not None:
            raise refused(
                RefusalRule.BODY,
                "A body that a rule must read cannot be compressed.",
                "send it as it is",
            )

    @property
    def may_go_early(self) -> bool:
        """Whether what is here may be sent before all that is looked at at first has come."""
        short = self._length is not None and self._length <= WINDOW_BYTES
        return self._admitted.body_rule is None and not short

    def feed(self, data: bytes) -> bytes:
        """Take what came; return what may be sent."""
        self._size += len(data)
        self._require_size(self._size)
        data = self._watch.feed(data)
        if self.released:
            return data
        self._held += data
        if self._admitted.body_rule is not None:
            ready = self._rule_content(ended=False)
        else:
            ready = len(self._held) >= WINDOW_BYTES and self.may_go_early
        return self.release() if ready else b""

    def end(self) -> bytes:
        """Take note that the body is over; return what is left to be sent."""
        if self._length is not None and self._length != self._size:
            raise refused(
                RefusalRule.MALFORMED, "The body is not as long as the request says.", status=400
            )
        data = self._watch.end()
        if self.released:
            return data
        self._held += data
        if self._admitted.body_rule is not None:
            self._rule_content(ended=True)
        return self.release()

    def release(self) -> bytes:
        """Return what was held; from here on everything goes on as it comes."""
        self.released = True
        data = bytes(self._held)
        self._held.clear()
        return data

    def _rule_content(self, *, ended: bool) -> bool:
        """Return whether the rule has seen enough and allows it."""
        rule = self._admitted.body_rule
        try:
            if isinstance(rule, GitRule):
                refs = pushed_refs(bytes(self._held), ended=ended)
                if refs is None:
                    return False
                decision = rule.decide_push(refs)
                if not decision.allowed:
                    raise denied(decision)
                return True
            if len(self._held) > MAX_GRAPHQL_BYTES:
                raise refused(RefusalRule.SIZE, "The GraphQL request is too long.", status=413)
            if not ended or rule is None:
                return False
            for kind, fields in root_fields(bytes(self._held)):
                decision = rule.decide_fields(kind, fields)
                if not decision.allowed:
                    raise denied(decision)
        except RequestRefused:
            raise
        except KagedError as error:
            raise refused(RefusalRule.BODY, error.message, error.fix or "") from None
        return True

    def _require_size(self, size: int) -> None:
        if self._limit is not None and size > self._limit:
            raise refused(
                RefusalRule.SIZE,
                f"The body is longer than the {self._limit} bytes that the credential"
                f" {self._admitted.binding.name} allows.",
                "send less at once",
                status=413,
            )


class AnswerBody:
    """The body of one answer: decoded if it was compressed, and without any value."""

    def __init__(self, secrets: Needles, *, decode: bool) -> None:
        self._window = StreamWindow(secrets)
        self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB) if decode else None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield what may go to the program, in pieces of bounded size.

        Raises:
            RequestRefused: it cannot be decoded.
        """
        if self._inflate is None:
            out = self._window.feed(data)
            if out:
                yield out
            return
        while data:
            try:
                piece = self._inflate.decompress(data, _DECODED_AT_ONCE)
            except zlib.error:
                raise refused(
                    RefusalRule.ENCODING, "The server's answer cannot be decoded.", status=502
                ) from None
            data = self._inflate.unconsumed_tail
            out = self._window.feed(piece)
            if out:
                yield out

    def end(self) -> bytes:
        """Return what is left of it."""
        return self._window.end()


def clean_answer(headers: list[Header], secrets: Needles) -> tuple[list[Header], bool]:
    """Return an answer's headers for the program, and whether its body must be decoded.

    Raises:
        RequestRefused: the body is compressed in a way that cannot be looked into.
    """
    codings = [
        one.strip().lower()
        for name, value in headers
        if name == b"content-encoding"
        for one in value.split(b",")
        if one.strip() not in (b"", b"identity")
    ]
    if len(codings) > 1 or not _DECODED.issuperset(codings):
        raise refused(
            RefusalRule.ENCODING,
            "The server's answer is compressed although it was asked not to be.",
            status=502,
        )
    dropped = _NOT_PASSED_BACK
    if codings:
        dropped |= {b"content-encoding", b"content-length", b"content-md5", b"content-digest"}
    kept = [
        (secrets.starred(name), secrets.starred(value))
        for name, value in headers
        if name not in dropped
    ]
    return kept, bool(codings)
