"""`HttpExchange`: a provider's questions to one HTTP server, each with a bounded answer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, Self

from kaged.base.lazy_dataclass import dataclass
from kaged.services.errors import CapabilityBackendUnavailable
from kaged.services.tls import tls_fault, trusting

if TYPE_CHECKING:
    from httpx import AsyncBaseTransport


@cache
def _public_authorities() -> SSLContext:
    """Return what the HTTP library trusts by itself; it would read that for each exchange."""
    import httpx  # noqa: PLC0415 - see `HttpExchange`

    return httpx.create_ssl_context(trust_env=False)


class AnswerTooLarge(CapabilityBackendUnavailable):
    """The server sent more than the limit."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What a server sent back; the names of `headers` are looked up in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpExchange:
    """Asks a server, which messages call `what`. Use it as a context.

    Redirects are not followed and the proxies of the environment do not count: credentials go to
    the address that the operator configured and nowhere else. The authorities in `ca_file` are
    trusted besides the machine's. A `plain` exchange is for addresses without TLS.
    """

    def __init__(
        self,
        what: str,
        limit_bytes: int,
        *,
        timeout_s: float,
        transport: AsyncBaseTransport | None = None,
        headers: Mapping[str, str] | None = None,
        ca_file: str | None = None,
        plain: bool = False,
    ) -> None:
        # Heavy, and of no use to a daemon without such providers.
        import httpx  # noqa: PLC0415 - see above

        self._what = what
        self._limit_bytes = limit_bytes
        self._errors = (httpx.HTTPError, httpx.InvalidURL, ValueError)
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=timeout_s,
            follow_redirects=False,
            trust_env=False,
            transport=transport,
            # For who asks without TLS, reading the machine's authorities is work for nothing.
            verify=(
                trusting(ca_file) if ca_file is not None else not plain and _public_authorities()
            ),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def ask(self, method: str, url: str, **request: Any) -> HttpAnswer:
        """Send one request, with the options of `httpx`.

        Raises:
            AnswerTooLarge: the answer is beyond the limit.
            CapabilityBackendUnavailable: anything else went wrong on the way; not what was said.
        """
        read = bytearray()
        try:
            async with self._client.stream(method, url, **request) as response:
                async for chunk in response.aiter_bytes():
                    read += chunk
                    if len(read) > self._limit_bytes:
                        break
        except self._errors as error:
            fault = tls_fault(error, self._what)
            raise fault or CapabilityBackendUnavailable(f"{self._what} cannot be reached") from None
        if len(read) > self._limit_bytes:
            raise AnswerTooLarge(f"{self._what}'s answer is too large")
        return HttpAnswer(response.status_code, response.headers, bytes(read))
