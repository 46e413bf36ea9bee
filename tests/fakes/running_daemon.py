"""A real daemon for tests: inside this process on the test's loop, or as a process of its own.

Nothing here is fake but the home: the wiring, the store, the sockets and the commands are the
product's own.
"""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from fakes.command_server import Forked, command_server
from fakes.prepared_cache import prepared_cache
from kaged.app.wiring import Daemon, build
from kaged.base import Clock, SystemClock
from kaged.config import Locations
from kaged.diagnostics.gates import Gates
from kaged.serve.http.connection import STATE_KEY, PeerConnection

WAIT_S = 60
ANY_PORT = '[daemon]\nbind = "127.0.0.1:0"\n'
KAGED = (sys.executable, "-P", "-m", "kaged.cli")


def make_home(home: Path, config: str = ANY_PORT) -> Path:
    """Make a home with a configuration that takes any free port."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    (home / "config.toml").write_text(config, encoding="utf-8")
    (home / "config.toml").chmod(0o600)
    return home


def make_project(root: Path, text: str | None = None) -> Path:
    """Make a project with one subagent, or with this project file."""
    (root / ".kaged").mkdir(parents=True, exist_ok=True)
    (root / ".kaged" / "project.yaml").write_text(
        text
        or (
            "version: 1\nproject: sample\nprimary:\n  model: default\n"
            "  system_prompt: You help.\n  subagents:\n    reader:\n      model: default\n"
            "      system_prompt: You read.\n      cage: {fs: [{mode: ro, path: .}]}\n"
        ),
        encoding="utf-8",
    )
    return root


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return the environment in which commands use this home and nothing of the real user's."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    return {**kept, "HOME": str(home), "KAGED_HOME": str(home), "KAGED_DEBUG": "1", **more}


@dataclass(slots=True)
class InProcess:
    """A built daemon in this process. `client` speaks to the application without a socket."""

    daemon: Daemon
    places: Locations
    client: httpx.AsyncClient

    @property
    def url(self) -> str:
        """Where TCP is served."""
        assert self.daemon.state.url is not None
        return self.daemon.state.url

    @property
    def port(self) -> int:
        """The TCP port."""
        return int(self.url.rpartition(":")[2])

    @property
    def socket(self) -> str:
        """The path of the Unix socket."""
        return str(self.places.socket)

    def over(
        self, connection: PeerConnection | None, *, base_url: str = "http://127.0.0.1"
    ) -> httpx.AsyncClient:
        """Return a client whose requests seem to come over `connection`."""
        return client_over(self.daemon, connection, base_url)


def client_over(
    daemon: Daemon, connection: PeerConnection | None, base_url: str
) -> httpx.AsyncClient:
    """Return a client whose requests seem to come over `connection`, without a socket."""
    app: Any = daemon.server.config.app

    async def with_peer(scope: Any, receive: Any, send: Any) -> None:
        scope.setdefault("state", {})[STATE_KEY] = connection
        await app(scope, receive, send)

    return httpx.AsyncClient(
        transport=httpx.ASGITransport(with_peer, raise_app_exceptions=False), base_url=base_url
    )


@asynccontextmanager
async def daemon_in_process(
    home: Path,
    *,
    config: str = ANY_PORT,
    clock: Clock | None = None,
    serve: bool = False,
    variables: Mapping[str, str] | None = None,
) -> AsyncGenerator[InProcess]:
    """Build a daemon on `home`; with `serve` its sockets answer, too."""
    prepared_cache().give(make_home(home, config))
    environ = environment(home, **(variables or {}))
    places = Locations.from_env(environ)
    async with AsyncExitStack() as closing:
        daemon = await build(
            places, environ, clock=clock or SystemClock(), gates=Gates(), closing=closing
        )
        await daemon.startup.open()
        prepared_cache().keep(home)
        own = PeerConnection("unix", uid=os.getuid(), pid=os.getpid())
        client = await closing.enter_async_context(client_over(daemon, own, "http://kaged"))
        inside = InProcess(daemon, places, client)
        if serve:
            serving = daemon.tasks.start(daemon.server.serve(list(daemon.sockets)), "http")
            async with asyncio.timeout(WAIT_S):
                await daemon.server.listening.wait()
            closing.push_async_callback(_stop, daemon, serving)
        yield inside


async def _stop(daemon: Daemon, serving: asyncio.Task[None]) -> None:
    daemon.services.hub.close()
    daemon.server.stop()
    await serving


@dataclass(slots=True)
class DaemonProcess:
    """A daemon as a process of its own, started the way `kaged daemon start` starts it."""

    home: Path
    env: dict[str, str]
    process: subprocess.Popen[bytes] | Forked
    said: dict[str, Any]
    stderr: Path
    argv: Sequence[str] = field(default=KAGED)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def stop(self) -> int:
        """Ask it to end and wait for it; returns the exit code."""
        prepared_cache().keep(self.home)
        self.process.terminate()
        return self.process.wait(WAIT_S)

    def kill(self) -> None:
        """End it without giving it a chance to do anything."""
        self.process.kill()
        self.process.wait(WAIT_S)

    def client(self) -> httpx.Client:
        """Return a client over the Unix socket."""
        return httpx.Client(
            # No TLS on such a socket, and reading all certificates takes longer than a request.
            transport=httpx.HTTPTransport(uds=self.said["socket"], verify=False),
            base_url="http://kaged/api/v1",
            timeout=WAIT_S,
            trust_env=False,
        )

    def log(self) -> str:
        """Return what it logged so far."""
        return self.stderr.read_text(encoding="utf-8")

    def __del__(self) -> None:
        self.stderr.unlink(missing_ok=True)


def start_daemon(
    home: Path,
    *,
    config: str | None = ANY_PORT,
    env: Mapping[str, str] | None = None,
    argv: Sequence[str] = KAGED,
    forked: bool = False,
) -> DaemonProcess:
    """Start a daemon and wait until it is ready or has given up; `said` tells which.

    One that is forked has loaded its modules already, which saves most of what a start costs.
    """
    if config is not None:
        make_home(home, config)
    if forked:
        prepared_cache().give(home)
    all_env = {**environment(home), **(env or {})}
    reader, writer = os.pipe()
    handle, name = tempfile.mkstemp(prefix="kgd-", suffix=".log")
    stderr = Path(name)
    with os.fdopen(handle, "wb") as log, Path(os.devnull).open("rb") as nothing:
        process = (
            command_server().start(
                ("daemon", "run"),
                {**all_env, "KAGED_READY_FD": "3"},
                None,
                [nothing.fileno(), log.fileno(), log.fileno(), writer],
            )
            if forked
            else subprocess.Popen(
                [*argv, "daemon", "run"],
                env={**all_env, "KAGED_READY_FD": str(writer)},
                pass_fds=[writer],
                stdin=nothing,
                stdout=log,
                stderr=log,
            )
        )
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = json.loads(pipe.readline() or b'{"ready": false, "error": {"code": "silent"}}')
    return DaemonProcess(home, all_env, process, said, stderr, argv)


def kaged(
    home: Path, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one command line on this home, in a process that has loaded its modules already."""
    return command_server().run(arguments, {**environment(home), **(env or {})}, cwd, WAIT_S * 2)


def on_terminal(
    home: Path, *arguments: str, answer: str | None = None, **env: str
) -> tuple[int, str]:
    """Run a command on a terminal and type an answer when it asks; returns what it painted."""
    leader, follower = pty.openpty()
    variables = environment(home, TERM="xterm-256color", **env)
    running = command_server().start(arguments, variables, None, [follower] * 3)
    os.close(follower)
    painted, answered = b"", answer is None
    while True:
        ready, _, _ = select.select([leader], [], [], WAIT_S)
        assert ready, painted
        try:
            piece = os.read(leader, 65536)
        except OSError:  # the terminal closes with its last user
            break
        if not piece:
            break
        painted += piece
        if not answered and b"[y/N]" in painted:
            os.write(leader, f"{answer}\n".encode())
            answered = True
    os.close(leader)
    return running.wait(WAIT_S), painted.decode("utf-8", "replace")


def require_error_shape(body: Any, code: str | None = None) -> dict[str, Any]:
    """Check the one error shape; returns its inside."""
    assert isinstance(body, dict)
    assert set(body) == {"error"}, body
    error = body["error"]
    assert set(error) == {"code", "message", "data", "request_id"}, error
    assert isinstance(error["code"], str)
    assert isinstance(error["message"], str)
    assert isinstance(error["data"], dict)
    if code is not None:
        assert error["code"] == code, error
    return error


__all__ = [
    "ANY_PORT",
    "KAGED",
    "DaemonProcess",
    "InProcess",
    "daemon_in_process",
    "environment",
    "kaged",
    "make_home",
    "make_project",
    "on_terminal",
    "require_error_shape",
    "start_daemon",
]
