"""schemathesis over the whole OpenAPI document: no request makes a 5xx or breaks the document."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Coroutine, Generator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks as openapi_checks

from fakes.running_daemon import InProcess, daemon_in_process
from kaged.serve.http.connection import STATE_KEY, PeerConnection

T = TypeVar("T")
EXAMPLES = 15
NOT_MEANT = [
    # Over the Unix socket nobody is asked for a credential, so there is none to ignore.
    openapi_checks.ignored_auth,
    # A made-up folder is no project: it fits the schema and is refused all the same.
    openapi_checks.positive_data_acceptance,
]


class _Loop:
    """An event loop in a thread of its own, on which the daemon lives while requests are made."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture(scope="module")
def fuzzed() -> Generator[Any]:
    """Give the schema of a daemon that runs beside the test, called without a socket."""
    loop = _Loop()
    stack = AsyncExitStack()
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:

        async def start() -> InProcess:
            return await stack.enter_async_context(daemon_in_process(Path(folder) / "h"))

        inside = loop.run(start())
        app: Any = inside.daemon.server.config.app
        own = PeerConnection("unix", uid=os.getuid())

        async def as_operator(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "lifespan":
                return
            scope.setdefault("state", {})[STATE_KEY] = own
            # The daemon's objects live on its own loop; the caller's loop only carries the bytes.
            await _bridge(loop.loop, app, scope, receive, send)

        yield schemathesis.openapi.from_asgi("/api/v1/openapi.json", as_operator)
        loop.run(stack.aclose())
    loop.close()


async def _bridge(
    home: asyncio.AbstractEventLoop, app: Any, scope: Any, receive: Any, send: Any
) -> None:
    here = asyncio.get_running_loop()

    async def across(work: Any) -> Any:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, here))

    async def receive_there() -> Any:
        return await across(receive())

    async def send_there(message: Any) -> None:
        await across(send(message))

    future = asyncio.run_coroutine_threadsafe(app(scope, receive_there, send_there), home)
    await asyncio.wrap_future(future)


def test_no_request_breaks_the_daemon_or_the_document(fuzzed: Any) -> None:
    tried: set[str] = set()
    for found in fuzzed.get_all_operations():
        operation = found.ok()
        tried.add(f"{operation.method.upper()} {operation.path}")
        fitting = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
        # A route without parameters has nothing to get wrong.
        wrong = (
            operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
            if operation.body or operation.query or operation.path_parameters
            else fitting
        )

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        )
        @given(case=st.one_of(fitting, wrong))
        def fuzz(case: Any) -> None:
            case.call_and_validate(excluded_checks=NOT_MEANT)

        fuzz()
    assert "POST /api/v1/projects" in tried
    assert len(tried) >= 19
