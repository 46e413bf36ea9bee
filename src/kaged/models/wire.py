"""The HTTP client that speaks to vendors: no redirects, no compression, answers of limited size.

Loaded with a vendor.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import httpx2

from kaged import __version__
from kaged.models.errors import ModelBadAnswer, ModelRefused

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""How much a vendor may send for one attempt, everything counted."""

CONNECT_TIMEOUT_S: Final = 15.0
MAX_CONNECTIONS: Final = 64


def vendor_client(idle_timeout_s: float) -> httpx2.AsyncClient:
    """Make a client. The caller closes it.

    Redirects are not followed: a key goes to the server that the operator named and nowhere else.
    Proxies are taken from the environment, as everywhere else.
    """
    return httpx2.AsyncClient(
        # A short answer can grow without end when it is unpacked, so nothing packed is taken.
        headers={"accept-encoding": "identity", "user-agent": f"kaged/{__version__}"},
        timeout=httpx2.Timeout(idle_timeout_s, connect=CONNECT_TIMEOUT_S),
        limits=httpx2.Limits(max_connections=MAX_CONNECTIONS),
        follow_redirects=False,
        event_hooks={"response": [_limit]},
    )


async def _limit(response: httpx2.Response) -> None:
    if 300 <= response.status_code < 400:
        raise ModelRefused(
            f"The server answers with a redirect (status {response.status_code}).",
            fix="Set base_url to where it leads, if that is a server you trust with the key.",
        )
    packed = response.headers.get("content-encoding", "identity").strip().lower()
    if packed not in {"", "identity"}:
        raise ModelBadAnswer("The server compresses its answers although it was asked not to.")
    whole = response.stream
    assert isinstance(whole, httpx2.AsyncByteStream)
    response.stream = _Limited(whole)


class _Limited(httpx2.AsyncByteStream):
    """A body that ends with an error when it grows too large."""

    def __init__(self, whole: httpx2.AsyncByteStream) -> None:
        self._whole = whole

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_ANSWER_BYTES
        async for piece in self._whole:
            left -= len(piece)
            if left < 0:
                raise ModelBadAnswer(
                    f"The server sent more than {MAX_ANSWER_BYTES} bytes for one answer.",
                    limit=MAX_ANSWER_BYTES,
                )
            yield piece

    async def aclose(self) -> None:
        await self._whole.aclose()
