"""`Daemon`: a daemon as people start it, and what they reach it with: commands and HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from fakes.base_programs_stock import STOCK
from fakes.command_server import Forked, can_fork, command_server
from whole.harness.project import Project

_INSTALLED = str(Path(sys.executable).with_name("kaged"))
KAGED = _INSTALLED  # a test may put another program in its place
ANY_PORT = '[daemon]\nbind = "127.0.0.1:0"\n'
PATIENCE_S = 60.0
QUIET_S = 0.3
# Each look keeps the daemon from what is waited for: who has waited for long, looks less often.
FIRST_PAUSE_S, LAST_PAUSE_S, PAUSE_GROWTH = 0.02, 0.1, 1.25
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that has ended."""

    argv: Sequence[str]
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, read as JSON."""
        return json.loads(self.out)


class Refused(AssertionError):
    """The daemon answered with an error where the test expected none."""


class Daemon:
    """One daemon on a home of its own. The home outlives it: stopped or killed, it starts again.

    It and its commands are processes of their own. Loading the program costs each of them more
    than most tests, so where nothing in its environment changes how it is loaded, each is forked
    from a process that has done only that (`fakes.command_server`), on a home that has the base
    programs of cages already (`fakes.base_programs_stock`). The first daemon that modules share
    (`forked=False`) is started from the beginning, as users start it, and so is every one with
    KAGED_TESTS_EXEC=1.
    """

    spoken = 0
    """How often any daemon of this process was spoken to; whole tests must raise it."""

    def __init__(
        self,
        home: Path,
        *,
        config: str = "",
        local: str = "",
        env: Mapping[str, str] | None = None,
        forked: bool = True,
    ) -> None:
        self.home = home
        self.forked = forked
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = config if "bind" in config else config.replace("[daemon]\n", ANY_PORT, 1)
        self.write("config.toml", text if "[daemon]" in text else ANY_PORT + text)
        if local:
            self.write("local.toml", local)
        self._first_files = self._files()
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
        self.env = {**kept, "HOME": str(home), "KAGED_HOME": str(home), **(env or {})}
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._client: httpx.Client | None = None

    # -- life ----------------------------------------------------------------------------------

    def write(self, name: str, text: str) -> Path:
        """Write one of the operator's files, as private as they have to be."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
        return path

    def start(self, expect: bool = True) -> dict[str, Any]:
        """Start it as `kaged daemon start` does; returns what it says when it is ready."""
        STOCK.lend(self.home / "cache")
        reader, writer = os.pipe()
        words = ("daemon", "run")
        with (
            Path(os.devnull).open("rb") as nothing,
            (self.home / "daemon.log").open("ab") as log,
        ):
            if self.forked and self._forks(self.env):
                files = [nothing.fileno(), log.fileno(), log.fileno(), writer]
                env = {**self.env, "KAGED_READY_FD": "3"}
                self._process = command_server().start(words, env, None, files)
            else:
                self._process = subprocess.Popen(
                    [KAGED, *words],
                    env={**self.env, "KAGED_READY_FD": str(writer)},
                    pass_fds=[writer],
                    stdin=nothing,
                    stdout=log,
                    stderr=log,
                )
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            said: dict[str, Any] = json.loads(pipe.readline() or b'{"ready": false}')
        if not said.get("ready"):
            self._end(signal.SIGKILL)
        assert bool(said.get("ready")) is expect, (said, self.log()[-2000:])
        if expect:
            STOCK.keep(self.home / "cache")
            self._client = httpx.Client(
                # No TLS on such a socket, and reading all certificates takes longer than a request.
                transport=httpx.HTTPTransport(uds=said["socket"], verify=False),
                base_url="http://kaged",
                timeout=PATIENCE_S,
                trust_env=False,
            )
        return said

    @staticmethod
    def _forks(env: Mapping[str, str]) -> bool:
        return KAGED == _INSTALLED and can_fork(env)

    def _files(self) -> list[bytes | None]:
        files = [self.home / name for name in ("config.toml", "local.toml")]
        return [one.read_bytes() if one.exists() else None for one in files]

    @property
    def has_its_first_files(self) -> bool:
        """Whether nobody has changed the operator's files since it was made."""
        return self._files() == self._first_files

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def client(self) -> httpx.Client:
        """A client of its Unix socket."""
        assert self._client is not None, "not started"
        Daemon.spoken += 1
        return self._client

    @property
    def url(self) -> str:
        """Where it serves TCP."""
        return str(self.get("/status")["url"])

    @property
    def token(self) -> str:
        """The bearer token of its TCP address, as `kaged daemon token` shows it."""
        return self.cli("daemon", "token").out.strip()

    def log(self) -> str:
        """Return what it logged."""
        path = self.home / "daemon.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def stop(self) -> int:
        """Ask it to end and wait for that."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """End it without giving it a chance to do anything."""
        return self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop it and start it again on the same home."""
        self.stop()
        self.start()

    def _end(self, number: signal.Signals) -> int:
        if self._client is not None:
            self._client.close()
            self._client = None
        process, self._process = self._process, None
        if process is None:
            return 0
        STOCK.keep(self.home / "cache")  # by now it has them
        process.send_signal(number)
        try:
            return process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(PATIENCE_S)
            raise

    def close(self) -> None:
        """End it, and a daemon that a command started on the same home."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.stop()
        if (self.home / "run" / "kaged.sock").exists():
            self.cli("daemon", "stop", "--force", code=None)

    # -- commands ------------------------------------------------------------------------------

    def cli(
        self,
        *arguments: str,
        cwd: Path | None = None,
        code: int | None = 0,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Finished:
        """Run `kaged …` on this home; `code` is the exit code that the test expects."""
        Daemon.spoken += 1
        all_env = {**self.env, **(env or {})}
        if self._forks(all_env):
            done = command_server().run(
                arguments, all_env, cwd or self.home, PATIENCE_S * 2, stdin or ""
            )
        else:
            done = subprocess.run(
                [KAGED, *arguments],
                env=all_env,
                cwd=cwd or self.home,
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True,
                text=True,
                encoding="utf-8",
                timeout=PATIENCE_S * 2,
                check=False,
            )
        finished = Finished(arguments, done.returncode, done.stdout, done.stderr)
        assert code is None or finished.code == code, finished
        return finished

    # -- HTTP ----------------------------------------------------------------------------------

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        expect: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Send one request below `/api/v1` and return the answer's JSON.

        Without `expect` any 2xx will do; with it exactly that status.
        """
        got = self.client.request(method, f"/api/v1{path}", json=body, headers=headers)
        right = got.is_success if expect is None else got.status_code == expect
        if not right:
            raise Refused(f"{method} {path}: {got.status_code} {got.text[:2000]}")
        return got.json() if got.content else None

    def get(self, path: str, **options: Any) -> Any:
        """GET below `/api/v1`."""
        return self.ask("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> Any:
        """POST below `/api/v1`."""
        return self.ask("POST", path, body, **options)

    def error(self, method: str, path: str, body: Any = None, **options: Any) -> dict[str, Any]:
        """Send a request that has to be refused; returns the inside of the error."""
        got = self.client.request(method, f"/api/v1{path}", json=body, **options)
        assert got.is_error, (got.status_code, got.text[:2000])
        shown: dict[str, Any] = got.json()
        assert set(shown) == {"error"}, shown
        return {"status": got.status_code, **shown["error"]}

    def load(self, project: Project) -> Project:
        """Load a project's files, or load them again, and agree to what they ask for."""
        project.id = self.post("/projects", {"root": str(project.root), "trust": True})["id"]
        project.daemon = self
        return project

    def audit(self, *events: str, **selection: str) -> list[dict[str, Any]]:
        """Return the audit rows of these events, oldest first; the trail is flushed first."""
        query = httpx.QueryParams({"limit": "200", "event": list(events), **selection})
        return list(self.get(f"/audit?{query}")["items"])[::-1]


def wait_for(look: Callable[[], T], what: str = "", patience_s: float = PATIENCE_S) -> T:
    """Return what `look` finds as soon as it finds something."""
    until = time.monotonic() + patience_s
    pause_s = FIRST_PAUSE_S
    while not (found := look()):
        assert time.monotonic() < until, f"never came: {what or look}"
        time.sleep(pause_s)
        pause_s = min(pause_s * PAUSE_GROWTH, LAST_PAUSE_S)
    return found


def exactly(count: int, look: Callable[[], Sequence[T]], what: str = "") -> Sequence[T]:
    """Wait until `look` finds `count` things, and see that for a while there are not more."""
    wait_for(lambda: len(look()) >= count or not count, what)
    time.sleep(QUIET_S)
    found = look()
    assert len(found) == count, (what, found)
    return found
