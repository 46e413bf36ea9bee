"""`kage.http`: requests of scripts, dialled by the network gate's own rules.

Names are looked up here and each address is decided before anything connects to it; a redirect is
decided anew. The environment's proxies are not used.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from kaged.base import JsonObject
from kaged.cage.net.dial import Dialled, Dialler, NotDialled, Resolver
from kaged.cage.net.handshake import ProxyOutcome
from kaged.cage.net.http_transport import dialled_transport
from kaged.cage.net.limits import GateLimits
from kaged.kernel.hosts import NetTargetInvalid
from kaged.kernel.net import NetTarget, decide_net
from kaged.lua.errors import ScriptCallRefused
from kaged.lua.values import from_bytes, to_bytes

DEFAULT_BYTES: Final = 1024 * 1024
MAX_BYTES: Final = 2 * 1024 * 1024
DEFAULT_S: Final = 30.0
MAX_S: Final = 120.0
MAX_REDIRECTS: Final = 5
MAX_HEADERS: Final = 64


class ScriptWeb:
    """Makes requests for scripts to where these targets allow.

    Nobody outside writes what comes from the `trusted` ones, says the operator. A request to one of
    them cannot be redirected to anywhere else.
    """

    def __init__(
        self,
        targets: tuple[NetTarget, ...],
        resolver: Resolver,
        trusted: tuple[NetTarget, ...] = (),
    ) -> None:
        self._dialler = Dialler(targets, resolver, GateLimits())
        self._trusted = trusted

    def trusts(self, url: object) -> bool:
        """Return whether this is the address of a place whose answers nobody outside writes."""
        import httpx  # noqa: PLC0415 - loaded when a script first uses it

        if not self._trusted or not isinstance(url, str):
            return False
        try:
            asked = httpx.URL(url)
        except httpx.InvalidURL:
            return False
        port = asked.port or {"http": 80, "https": 443}.get(asked.scheme, 0)
        return decide_net(self._trusted, asked.host, port).allowed

    async def request(self, method: str, url: str, options: Mapping[str, Any]) -> JsonObject:
        """Make one request and return `{ status, body, content_type, truncated }`.

        Raises:
            ScriptCallRefused: not allowed, not reachable, too slow, or no URL.
        """
        limit = _number(f"kage.http.{method}", options, "max_bytes", DEFAULT_BYTES, MAX_BYTES)
        async with self.stream(method, url, options, whole=True) as response:
            kept, truncated = await _body(response, int(limit))
            return {
                "status": response.status_code,
                "body": from_bytes(kept),
                "content_type": response.headers.get("content-type"),
                "truncated": truncated,
            }

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, options: Mapping[str, Any], *, whole: bool = False
    ) -> AsyncGenerator[Any]:
        """Make one request and yield the answer, of which nothing is read yet.

        `timeout_secs` is for the answer's beginning, with `whole` for all of it.

        Raises:
            ScriptCallRefused: not allowed, not reachable, too slow, or no URL.
        """
        import httpx  # noqa: PLC0415 - loaded when a script first uses it

        who = f"kage.http.{method}" if whole else f"kage.http.{method}_stream"
        if not url.startswith(("http://", "https://")):
            raise ScriptCallRefused(f"{who}: only http and https URLs are taken")
        headers = _headers(who, options)
        body = options.get("body")
        if body is not None and not isinstance(body, str):
            raise ScriptCallRefused(f"{who}: body must be a string")
        seconds = _number(who, options, "timeout_secs", DEFAULT_S, MAX_S)
        try:
            async with (
                asyncio.timeout(seconds) as patience,
                httpx.AsyncClient(
                    transport=self._transport(self._trusted if self.trusts(url) else None),
                    follow_redirects=True,
                    max_redirects=MAX_REDIRECTS,
                    timeout=httpx.Timeout(seconds, read=seconds if whole else None),
                    trust_env=False,
                ) as client,
                client.stream(
                    method.upper(),
                    url,
                    headers=headers,
                    content=None if body is None else to_bytes(body),
                ) as response,
            ):
                if not whole:
                    patience.reschedule(None)
                yield response
        except TimeoutError as error:
            raise ScriptCallRefused(f"{who}: no answer in {seconds:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError, NetTargetInvalid, ValueError) as error:
            raise ScriptCallRefused(f"{who}: {error}") from error

    def _transport(self, only: tuple[NetTarget, ...] | None) -> Any:
        """Make what connects, to where is granted; with `only`, to nowhere else than there."""

        async def dial(host: str, port: int) -> Dialled | NotDialled:
            if only is not None and not decide_net(only, host, port).allowed:
                why = f"{host}:{port} is not in lua.net_trusted, and a trusted place led there"
                return NotDialled(host, ProxyOutcome.DENIED, why)
            return await self._dialler.dial(host, port)

        return dialled_transport(dial)


async def _body(response: Any, limit: int) -> tuple[bytes, bool]:
    kept = bytearray()
    async for piece in response.aiter_bytes():
        room = limit - len(kept)
        kept += piece[:room]
        if len(piece) > room:
            return bytes(kept), True
    return bytes(kept), False


def _headers(who: str, options: Mapping[str, Any]) -> dict[str, str]:
    given = options.get("headers") or {}
    if not isinstance(given, dict) or len(given) > MAX_HEADERS:
        raise ScriptCallRefused(f"{who}: headers must be a table of at most {MAX_HEADERS} strings")
    headers: dict[str, str] = {"content-type": "application/json"} if options.get("json") else {}
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ScriptCallRefused(f"{who}: headers must be a table of strings")
        headers[name] = value
    return headers


def _number(
    who: str, options: Mapping[str, Any], name: str, default: float, highest: float
) -> float:
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ScriptCallRefused(f"{who}: {name} must be a number above zero")
    return min(value, highest)
