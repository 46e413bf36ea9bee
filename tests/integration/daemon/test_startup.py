"""The daemon answers first and opens its rooms behind that; what cannot open ends it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from fakes.running_daemon import KAGED, WAIT_S, InProcess, environment, make_home
from kaged.app.wiring import build
from kaged.base import KagedError, SystemClock
from kaged.config import Locations
from kaged.diagnostics.gates import Gates
from kaged.serve.http import HttpServices
from kaged.serve.http import app as http_app
from kaged.serve.http.connection import PeerConnection
from requirements import requirement


async def _built(home: Path, closing: AsyncExitStack) -> InProcess:
    make_home(home)
    environ = environment(home)
    places = Locations.from_env(environ)
    daemon = await build(places, environ, clock=SystemClock(), gates=Gates(), closing=closing)
    inside = InProcess(daemon, places, httpx.AsyncClient(timeout=WAIT_S))
    await inside.client.aclose()
    own = PeerConnection("unix", uid=os.getuid(), pid=os.getpid())
    inside.client = await closing.enter_async_context(inside.over(own, base_url="http://kaged"))
    return inside


async def test_early_requests_are_answered_and_others_wait_for_their_subsystem(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as closing:
        inside = await _built(tmp_path / "h", closing)
        async with asyncio.TaskGroup() as group:
            waiting = [
                group.create_task(inside.client.get(f"/api/v1/{path}"))
                for path in ("status", "projects", "plugins", "openapi.json")
            ]
            assert (await inside.client.get("/healthz")).status_code == 200
            assert (await inside.client.get("/api/v1/audit")).status_code == 200
            assert not any(task.done() for task in waiting)
            await inside.daemon.startup.open()
            assert [(await task).status_code for task in waiting] == [200] * 4
        drawn = (await inside.client.get("/api/v1/openapi.json")).json()
        assert "/api/v1/plugins" in drawn["paths"]


async def test_before_the_routes_are_loaded_health_is_answered_and_strangers_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, load = threading.Event(), http_app.create_app

    def load_late(services: HttpServices) -> FastAPI:
        assert release.wait(WAIT_S)
        return load(services)

    monkeypatch.setattr(http_app, "create_app", load_late)
    async with AsyncExitStack() as closing:
        inside = await _built(tmp_path / "h", closing)
        peer = PeerConnection("tcp", address="127.0.0.1")
        stranger = await closing.enter_async_context(inside.over(peer))
        async with asyncio.TaskGroup() as group:
            try:
                waiting = group.create_task(inside.client.get("/api/v1/audit"))
                early = await inside.client.get("/healthz")
                refused = await stranger.get("/api/v1/audit")
                assert not waiting.done()
            finally:
                release.set()
        late = await inside.client.get("/healthz")
        numbers = (await inside.client.get("/metrics")).text
    assert (early.status_code, early.json()) == (late.status_code, late.json())
    assert early.json() == {"status": "ok"}
    assert set(early.headers) == set(late.headers)
    assert early.headers["x-request-id"].startswith("req_")
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "unauthenticated"
    assert (await waiting).status_code == 200
    counted = 'kaged_http_requests_total{method="GET",route="/healthz",status="200"} 2.0'
    assert counted in numbers


async def test_routes_that_cannot_be_loaded_end_the_daemon_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_badly(services: HttpServices) -> FastAPI:
        raise ImportError("built for another machine")

    monkeypatch.setattr(http_app, "create_app", load_badly)
    async with AsyncExitStack() as closing:
        inside = await _built(tmp_path / "h", closing)
        startup, ended = inside.daemon.startup, asyncio.Event()
        startup.start(lambda: None, ended.set)
        async with asyncio.timeout(WAIT_S):
            await ended.wait()
        assert startup.failure is not None
        assert "built for another machine" in startup.failure.message
        answer = await inside.client.get("/api/v1/projects")
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "daemon_opening"


def test_nothing_of_the_web_framework_is_loaded_before_the_daemon_is_ready() -> None:
    asked = "import sys, kaged.app.daemon; print(*{'fastapi', 'pydantic'} & set(sys.modules))"
    ended = subprocess.run(
        [sys.executable, "-P", "-c", asked], capture_output=True, timeout=60, check=True
    )
    assert ended.stdout == b"\n"


async def test_a_subsystem_that_does_not_start_says_why_to_whoever_asks(tmp_path: Path) -> None:
    async with AsyncExitStack() as closing:
        inside = await _built(tmp_path / "h", closing)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(inside.client.get("/api/v1/projects"))
            await asyncio.sleep(0)
            error = KagedError(
                "Cages cannot be prepared: disk full.", code="home_unusable", fix="Free some space."
            )
            inside.daemon.services.readiness.fail(error)
        for answer in (await waiting, await inside.client.get("/api/v1/status")):
            assert answer.status_code == 503
            said = answer.json()["error"]
            assert said["code"] == "daemon_opening"
            assert "disk full" in said["message"]


@requirement("AT-FAIL-01", "AT-AMB-45")
def test_without_an_engine_the_daemon_does_not_start(tmp_path: Path) -> None:
    home = make_home(tmp_path / "h")
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "ast_grep_py.py").write_text("raise ImportError('built for another machine')\n")
    env = environment(home) | {"PYTHONPATH": str(blocked)}
    ended = subprocess.run(
        [KAGED[0], *KAGED[2:], "daemon", "run"],
        env=env,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode != 0
    said = ended.stderr.decode() + ended.stdout.decode()
    assert "built for another machine" in said
    assert "ast-grep-py" in said
    assert not (home / "run" / "kaged.sock").exists()
