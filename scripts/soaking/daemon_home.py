"""The daemon of a soak: started, killed, watched, ended as a person would."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from soaking.guests import write_guests

CALL_TIMEOUT_S = 30.0
READY_TIMEOUT_S = 240.0  # a machine may be busy with much else; how long starts took is a figure
END_TIMEOUT_S = 60
VERIFY_TIMEOUT_S = 120


class Lost(Exception):
    """The soak cannot go on: the daemon does not start, or a question has no answer."""


class DaemonHome:
    """One home, one project, and the daemon that serves them, however often it is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.root = folder / "project"
        self.temporary = folder / "tmp"
        self.socket = self.home / "run" / "kaged.sock"
        self.process: subprocess.Popen[bytes] | None = None
        self.project_id = ""
        self.pids: set[int] = set()
        self.kills = 0
        self.starts_s: list[float] = []
        self.peak_kib = 0
        self.peak_fds = 0
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        self.env = {**kept, "HOME": str(folder), "KAGED_HOME": str(self.home),
                    "TMPDIR": str(self.temporary)}  # fmt: skip

    def prepare(self) -> None:
        """Write everything down that the daemon needs."""
        self.temporary.mkdir(mode=0o700)
        write_guests(self.folder)

    async def start(self) -> None:
        """Start the daemon and wait until its subsystems are up."""
        begun_s = time.monotonic()
        with (self.folder / "daemon.log").open("ab") as log:
            self.process = await asyncio.to_thread(
                subprocess.Popen,
                [sys.executable, "-P", "-m", "kaged.cli", "daemon", "run"],
                env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self.pids.add(self.process.pid)
        async with asyncio.timeout(READY_TIMEOUT_S):
            while True:
                if self.process.poll() is not None:
                    raise Lost(f"the daemon did not start; see {self.folder / 'daemon.log'}")
                with contextlib.suppress(httpx.HTTPError):
                    async with self.client() as client:
                        if (await client.get("/projects")).status_code == 200:
                            break
                await asyncio.sleep(0.05)
        self.starts_s.append(time.monotonic() - begun_s)

    async def set_up(self) -> None:
        """Load the project and install the plugin."""
        async with self.client() as client:
            plugin = {"path": str(self.folder / "keeper")}
            shown = await self.ask(client, "POST", "/plugins/preview", json=plugin)
            digest = {**plugin, "digest": shown["digest"]}
            await self.ask(client, "POST", "/plugins", json=digest)
            await self.ask(client, "POST", "/plugins/keeper/enable")
            loaded = await self.ask(
                client, "POST", "/projects", json={"root": str(self.root), "trust": True}
            )
            self.project_id = loaded["id"]

    def client(self) -> httpx.AsyncClient:
        """Return a client over the Unix socket."""
        return httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(self.socket), verify=False),
            base_url="http://kaged/api/v1", timeout=CALL_TIMEOUT_S, trust_env=False,
        )  # fmt: skip

    async def ask(self, client: httpx.AsyncClient, method: str, url: str, **more: Any) -> Any:
        """Ask what must be answered.

        Raises:
            Lost: it was refused.
        """
        answer = await client.request(method, url, **more)
        if answer.status_code >= 300:
            raise Lost(f"{url}: {answer.status_code} {answer.text[:300]}")
        return answer.json()

    async def plugin_running(self, client: httpx.AsyncClient) -> None:
        """Wait until the plugin runs; one that died too often is enabled again."""
        async with asyncio.timeout(READY_TIMEOUT_S):
            while (await self.ask(client, "GET", "/plugins/keeper"))["state"] != "running":
                await client.post("/plugins/keeper/enable")
                await asyncio.sleep(0.5)

    def measure(self) -> None:
        """Note how much memory and how many descriptors the daemon has."""
        if self.process is not None:
            self.peak_kib = max(self.peak_kib, _rss_kib(self.process.pid))
            self.peak_fds = max(self.peak_fds, sum(self.open_files().values()))

    def open_files(self) -> Counter[str]:
        """Return what the daemon has open now, counted by kind or name."""
        found: Counter[str] = Counter()
        if self.process is None:
            return found
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{self.process.pid}/fd"):
                with contextlib.suppress(OSError):
                    found[Path(entry.path).readlink().as_posix().partition(":[")[0]] += 1
        return found

    async def kill(self) -> None:
        """Kill the daemon in the middle of everything, and start it again."""
        assert self.process is not None
        self.measure()
        self.process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(self.process.wait)
        self.kills += 1
        await self.start()

    def end(self) -> list[str]:
        """End the daemon as a person would and verify the audit chain; returns what is wrong."""
        wrong: list[str] = []
        assert self.process is not None
        self.measure()
        self.process.terminate()
        if self.process.wait(END_TIMEOUT_S) != 0:
            wrong.append(f"the daemon ended with {self.process.returncode}")
        verified = subprocess.run(
            [sys.executable, "-P", "-m", "kaged.cli", "audit", "verify", "--json"],
            env=self.env, capture_output=True, encoding="utf-8", check=False,
            timeout=VERIFY_TIMEOUT_S,
        )  # fmt: skip
        if verified.returncode != 0:
            wrong.append(f"the audit chain: {verified.stdout[:300]}{verified.stderr[:300]}")
        return wrong

    def abandon(self) -> None:
        """Kill what still runs, when the soak itself failed."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def _rss_kib(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return 0
