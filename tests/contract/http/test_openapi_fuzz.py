"""schemathesis over the whole OpenAPI document: no request makes a 5xx or breaks the document."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks as openapi_checks

from fakes.running_daemon import daemon_in_process, make_project
from kaged.serve.http.connection import STATE_KEY, PeerConnection
from thorough import THOROUGH, examples

PATIENCE_S = 600 * (6 if THOROUGH else 1)  # a hundred routes, beside other work
drawn = settings(
    max_examples=examples(2),
    deadline=None,
    derandomize=not THOROUGH,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
NOT_MEANT = [
    # Over the Unix socket nobody is asked for a credential, so there is none to ignore.
    openapi_checks.ignored_auth,
    # A made-up folder is no project: it fits the schema and is refused all the same.
    openapi_checks.positive_data_acceptance,
]


# Requests that reach a loaded project, with something in it to work on.
PROJECT = """\
version: 1
project: sample
primary: {model: default, system_prompt: You help.}
workflows:
  deploy: {inputs: {branch: {type: string}, table: {type: file}}}
"""
REAL = {"number": 1, "name": "deploy"}
SENT: Counter[str] = Counter()
"""How many requests were sent, by their path; `make fuzz` shows how many."""


@dataclass(slots=True)
class Fuzzed:
    """The schema of a running daemon, and a project that it has loaded."""

    schema: Any
    project_id: str


def fuzz_beside(fuzz: Callable[[Fuzzed], None]) -> None:
    """Run a daemon on this thread and `fuzz` it, without a socket, from another.

    The daemon starts processes, which it does from the main thread only.
    """

    async def main() -> None:
        with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
            async with daemon_in_process(Path(folder) / "h") as inside:
                root = make_project(Path(folder) / "sample", PROJECT)
                made = await inside.client.post(
                    "/api/v1/projects", json={"root": str(root), "trust": True}
                )
                project_id = made.json()["id"]
                filed = {"title": "Title", "body": "Body"}
                await inside.client.post(f"/api/v1/projects/{project_id}/issues", json=filed)
                home = asyncio.get_running_loop()
                app: Any = inside.daemon.server.config.app
                own = PeerConnection("unix", uid=os.getuid())

                async def as_operator(scope: Any, receive: Any, send: Any) -> None:
                    if scope["type"] == "lifespan":
                        return
                    scope.setdefault("state", {})[STATE_KEY] = own
                    # The daemon's objects live on its own loop; the caller's only carries bytes.
                    await _bridge(home, app, scope, receive, send)

                def there() -> None:
                    schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", as_operator)
                    fuzz(Fuzzed(schema, project_id))

                await asyncio.to_thread(there)
                if THOROUGH:
                    sys.stdout.write(f"{SENT.total()} requests to {len(SENT)} paths\n")

    asyncio.run(main())


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


@pytest.mark.thorough(random=True)
@pytest.mark.timeout(PATIENCE_S)
def test_no_request_breaks_the_daemon_or_the_document() -> None:
    fuzz_beside(_fuzz_all)


@pytest.mark.thorough(random=True)
@pytest.mark.timeout(PATIENCE_S)
def test_no_request_to_a_loaded_project_breaks_the_daemon() -> None:
    fuzz_beside(_fuzz_project)


def _send(case: Any) -> None:
    SENT[case.operation.path] += 1
    if "wait_s" in (case.query or {}) and isinstance(case.query["wait_s"], float | int):
        case.query["wait_s"] = 0  # nothing will come, and waiting for it breaks nothing
    case.call_and_validate(excluded_checks=NOT_MEANT)


def _fuzz(cases: Any, known: Mapping[str, Any] | None = None) -> None:
    """Send drawn requests; what is known of their paths takes the place of what was drawn."""

    @drawn
    @given(case=cases)
    def fuzz(case: Any) -> None:
        if known is not None:
            given_ids: dict[str, Any] = dict(case.path_parameters or {})
            case.path_parameters = {name: known.get(name, given_ids[name]) for name in given_ids}
        _send(case)

    fuzz()


def _fuzz_all(fuzzed: Fuzzed) -> None:
    tried: set[str] = set()
    for found in fuzzed.schema.get_all_operations():
        operation = found.ok()
        tried.add(f"{operation.method.upper()} {operation.path}")
        _fuzz(operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
        if operation.body or operation.query or operation.path_parameters:
            _fuzz(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))
    assert "POST /api/v1/projects" in tried
    assert len(tried) >= 19


def _fuzz_project(fuzzed: Fuzzed) -> None:
    """Send requests that fit to a project which exists, so that they pass its checks."""
    below = "/api/v1/projects/{project_id}/"
    known = {**REAL, "project_id": fuzzed.project_id}
    tried = 0
    for found in fuzzed.schema.get_all_operations():
        operation = found.ok()
        if not operation.path.startswith(below):
            continue
        tried += 1

        _fuzz(operation.as_strategy(generation_mode=GenerationMode.POSITIVE), known)
    assert tried >= 18
