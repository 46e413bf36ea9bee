"""`DaemonLink`: the daemon's interface for a program that waits for several answers at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from acp import RequestError

from kaged.base import KagedError
from kaged.cli.client import DaemonClient, DaemonRefused

FAILED: Final = -32000
INVALID: Final = -32602
T = TypeVar("T")


class DaemonLink:
    """Sends requests to the daemon from an event loop, one after the other in a thread.

    Every refusal becomes the protocol's error, with the daemon's code and remedy in it.
    """

    def __init__(self, client: DaemonClient) -> None:
        self._client = client
        # One thread, because the client has one connection; a caller that is canceled leaves it.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kaged-acp")

    async def get(self, path: str, params: Mapping[str, Any] | None = None) -> Any:
        """Send a GET request. Raises RequestError."""
        return await self._ask(lambda: self._client.get(path, params))

    async def post(self, path: str, body: Any = None) -> Any:
        """Send a POST request. Raises RequestError."""
        return await self._ask(lambda: self._client.post(path, body))

    async def pages(self, path: str, params: Mapping[str, Any] | None = None) -> list[Any]:
        """Return all items of a paged list. Raises RequestError."""
        return await self._ask(lambda: list(self._client.pages(path, params)))

    async def _ask(self, request: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, request)
        except DaemonRefused as error:
            raise refusal(error.code, error.message, error.fix) from None
        except KagedError as error:
            raise refusal(error.code, error.message, error.fix or None) from None


def bad_request(message: str) -> RequestError:
    """Return the protocol's error for a request that nothing can be done with."""
    return RequestError(INVALID, message, {"code": "invalid_params", "message": message})


def refusal(code: str, message: str, fix: str | None = None) -> RequestError:
    """Return an error as editors show it: what happened, then what to do."""
    words = f"{message} Fix: {fix}" if fix else message
    return RequestError(FAILED, words, {"code": code, "message": message, "fix": fix})
