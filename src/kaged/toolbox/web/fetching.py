"""`PageFetcher`: one GET with its redirects, where a `Dialler` connects, within bounds."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from kaged.base.lazy_dataclass import dataclass
from kaged.cage.gate_port import AskHost
from kaged.cage.net.dial import Dialled, Dialler, NotDialled, Resolver
from kaged.cage.net.http_transport import dialled_transport, refusal_of
from kaged.cage.net.limits import GateLimits
from kaged.kernel.net import NetTarget, decide_net
from kaged.toolbox.web.content import PageKind, kind_of, mime_of
from kaged.toolbox.web.errors import (
    HostUnreachable,
    PageFailed,
    PageNotText,
    PageTooLarge,
    PageTooSlow,
    bad_status,
    not_dialled,
)
from kaged.toolbox.web.places import WebPlace, read_place
from kaged.tools import InvalidToolParams

MAX_BYTES: Final = 5 * 1024 * 1024
MAX_S: Final = 30.0
MAX_REDIRECTS: Final = 5
AT_ONCE: Final = 8
"""How many pages are fetched at a time, for all agents."""

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_OK: Final = range(200, 300)
_HEADERS: Final = {
    "user-agent": "kaged web.fetch",
    "accept": "text/html, text/markdown, application/json, text/*;q=0.9, */*;q=0.5",
    "accept-encoding": "gzip",
}
_GZIP: Final = 16 + zlib.MAX_WBITS

OnAnswer = Callable[[WebPlace, int], None]
"""Called with each place that answered, and the status that it answered with."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """The bounds of one fetch in one value, so that tests can make them small."""

    bytes: int = MAX_BYTES
    seconds: float = MAX_S
    redirects: int = MAX_REDIRECTS


class FetchedPage(NamedTuple):
    """What a server sent. `body` is None for what is no text; `size` is None if nobody said it.

    With `by_grants` every host on the way was one of the grants, and nobody had to be asked.
    """

    place: WebPlace
    content_type: str
    body: bytes | None
    size: int | None
    by_grants: bool


class PageFetcher:
    """Fetches pages for callers with grants."""

    def __init__(self, resolver: Resolver, limits: FetchLimits | None = None) -> None:
        self._resolver = resolver
        self._limits = limits or FetchLimits()
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def fetch(
        self, place: WebPlace, targets: tuple[NetTarget, ...], ask: AskHost | None, told: OnAnswer
    ) -> FetchedPage:
        """Fetch a page from where `targets` allow; `ask` is asked about other hosts.

        Raises:
            ToolError: not granted, not there, not reachable, too slow, too large.
        """
        seconds = self._limits.seconds
        try:
            async with asyncio.timeout(seconds) as patience, self._turns:
                return await self._follow(
                    place, targets, None if ask is None else _unhurried(ask, patience), told
                )
        except TimeoutError:
            raise PageTooSlow(
                f"{place.shown} did not arrive within {seconds:g} s",
                fix="try again later, or fetch a smaller page",
            ) from None

    async def _follow(
        self, place: WebPlace, targets: tuple[NetTarget, ...], ask: AskHost | None, told: OnAnswer
    ) -> FetchedPage:
        import httpx  # noqa: PLC0415 - loaded when a page is first fetched

        dialler = Dialler(targets, self._resolver, GateLimits(), ask)
        by_grants, led_from = True, ""

        async def dial(host: str, port: int) -> Dialled | NotDialled:
            nonlocal by_grants
            by_grants = by_grants and decide_net(targets, host, port).allowed
            return await dialler.dial(host, port)

        transport = dialled_transport(dial)
        async with httpx.AsyncClient(
            transport=transport, timeout=self._limits.seconds, trust_env=False
        ) as client:
            for _ in range(self._limits.redirects + 1):
                try:
                    async with client.stream("GET", place.url, headers=_HEADERS) as answer:
                        told(place, answer.status_code)
                        if answer.status_code not in _REDIRECTS:
                            body, size = await self._read(answer, place)
                            header = answer.headers.get("content-type", "")
                            return FetchedPage(place, header, body, size, by_grants)
                        following = _next_place(answer, place)
                # The connection itself fails with errors of the system, such as a bad certificate.
                except (httpx.HTTPError, OSError) as error:
                    refused = refusal_of(error)
                    if refused is not None:
                        raise not_dialled(refused, place.port, led_from) from error
                    if isinstance(error, OSError | httpx.ConnectError):
                        raise HostUnreachable(
                            f"no connection to {place.shown}: {str(error) or type(error).__name__}",
                            fix="check the address, and whether its certificate is good",
                        ) from error
                    raise PageFailed(
                        f"{place.shown} broke off: {type(error).__name__}", fix="try again later"
                    ) from error
                # A cookie of one place is no business of the next.
                client.cookies.clear()
                led_from, place = place.shown, following
        raise PageFailed(
            f"{led_from} still leads elsewhere after {self._limits.redirects} redirects",
            fix="fetch the page where it really is",
        )

    async def _read(self, answer: Any, place: WebPlace) -> tuple[bytes | None, int | None]:
        """Return the body of a page, if it is text, and its size."""
        if answer.status_code not in _OK:
            raise bad_status(answer.status_code, place.shown)
        encoding = answer.headers.get("content-encoding", "identity").strip().lower()
        length = answer.headers.get("content-length", "")
        said = int(length) if length.isascii() and length.isdigit() and len(length) < 16 else None
        if kind_of(mime_of(answer.headers.get("content-type", ""))) is PageKind.OTHER:
            return None, said if encoding == "identity" else None
        if encoding not in ("identity", "gzip", "x-gzip", ""):
            raise PageNotText(f"{place.shown} is encoded in a way that was not asked for")
        unzip = zlib.decompressobj(_GZIP) if encoding.endswith("gzip") else None
        if said is not None and said > self._limits.bytes:
            raise self._too_large(place, said)
        body = bytearray()
        async for piece in answer.aiter_raw():
            room = self._limits.bytes - len(body) + 1
            try:
                body += piece[:room] if unzip is None else unzip.decompress(piece, room)
            except zlib.error as error:
                raise PageFailed(f"{place.shown} is not the gzip that it says it is") from error
            if len(body) > self._limits.bytes:
                raise self._too_large(place, None)
        if unzip is not None and not unzip.eof and body:
            raise PageFailed(f"{place.shown} broke off within its gzip", fix="try again later")
        return bytes(body), len(body)

    def _too_large(self, place: WebPlace, size: int | None) -> PageTooLarge:
        shown = "more" if size is None else f"{size} bytes"
        return PageTooLarge(
            f"{place.shown} has {shown}; at most {self._limits.bytes} bytes are fetched",
            fix="fetch a page with a part of it; shell commands of the agent may download more",
        )


def _next_place(answer: Any, place: WebPlace) -> WebPlace:
    target = answer.headers.get("location", "")
    try:
        return read_place(target, base=place)
    except InvalidToolParams as error:
        raise PageFailed(
            f"{place.shown} leads to something that is no web address",
            fix="fetch the page where it really is",
        ) from error


def _unhurried(ask: AskHost, patience: asyncio.Timeout) -> AskHost:
    """Return what asks while the time of the fetch stands still: people take longer than pages."""

    async def asked(host: str, port: int) -> bool:
        until, now = patience.when(), asyncio.get_running_loop().time()
        patience.reschedule(None)
        try:
            return await ask(host, port)
        finally:
            left = 0.0 if until is None else until - now
            patience.reschedule(asyncio.get_running_loop().time() + left)

    return asked
