#!/usr/bin/env python3
"""Use a daemon hard and kill it again and again; at the end nothing acknowledged may be missing.

    make soak                 ten minutes
    make soak SOAK_S=60       as many seconds as you like; a kill every 30 s, at least two

Clients write files and issues, talk in sessions, call a plugin that dies at random and keeps rows
in its storage, and listen to events until they hang up without a word. Every 30 seconds the daemon
is killed with SIGKILL and started anew. What a client was told is done is written down, and looked
for at the end; the audit chain is verified; no process, cgroup, socket or temporary file may be
left.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import websockets

KILL_EVERY_S = 30.0
MIN_KILLS = 2
CALL_TIMEOUT_S = 20.0
READY_TIMEOUT_S = 60.0
SETTLE_S = 20.0

Act = Callable[[httpx.AsyncClient, int], Awaitable[str]]

PROJECT = """\
version: 1
project: soak
primary:
  model: played
  system_prompt: You work.
  tools:
    "file.*": { enabled: true }
    "search.*": { enabled: true }
    "shell.*": { enabled: true }
  plugins:
    keeper: { package: keeper }
"""
SCRIPT = """\
turns:
  - when: { user: look }
    say: I look first.
    call: [{ tool: search.glob, with: { pattern: "*.txt" } }]
  - say: Done.
"""
MANIFEST = """\
name: keeper
version: 1.0.0
kaged_api: 1
description: Keeps rows and dies now and then.
command: [/usr/bin/env, python3, ./main.py]
capabilities: [kaged:storage:read, kaged:storage:write]
methods: [row.keep, row.list]
"""
PLUGIN = """\
import os, random, sys
sys.path.insert(0, "/opt/kaged/sdk/python")
from kaged.sdk import Plugin
plugin = Plugin("keeper", "1.0.0")

@plugin.method("row.keep")
async def keep(params, context):
    if random.random() < 0.01:
        os._exit(9)
    await plugin.storage.exec("CREATE TABLE IF NOT EXISTS kept (word TEXT PRIMARY KEY)")
    await plugin.storage.exec("INSERT INTO kept VALUES (?)", [params["word"]])
    return {"kept": params["word"]}

@plugin.method("row.list")
async def rows(params, context):
    found = await plugin.storage.query(
        "SELECT word FROM kept WHERE word > ? ORDER BY word LIMIT 500", [params["after"]])
    return {"words": [row["word"] for row in found.rows]}

plugin.start()
"""


class Lost(Exception):
    """Something that was acknowledged is gone, or something that should be gone is there."""


class Soak:
    """One daemon, its clients, and what they were told."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.home = folder / "home"
        self.root = folder / "project"
        self.socket = self.home / "run" / "kaged.sock"
        self.until_s = time.monotonic() + seconds
        self.seconds = seconds
        self.process: subprocess.Popen[bytes] | None = None
        self.project_id = ""
        self.kept: dict[str, set[str]] = {"files": set(), "issues": set(), "rows": set(),
                                          "words": set()}  # fmt: skip
        self.sessions: dict[str, set[str]] = {}
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.kills = 0
        self.starts_s: list[float] = []
        self.peak_kib = 0
        self.pids: set[int] = set()
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        self.env = {**kept, "HOME": str(folder), "KAGED_HOME": str(self.home)}

    # -- the daemon ----------------------------------------------------------------------------

    def prepare(self) -> None:
        """Write the home, the project and the plugin."""
        self.home.mkdir(mode=0o700)
        config = '[daemon]\nbind = "127.0.0.1:0"\n'
        (self.home / "config.toml").write_text(config, encoding="utf-8")
        script = self.home / "script.yaml"
        script.write_text(SCRIPT, encoding="utf-8")
        local = f'[models.played]\nmodel = "scripted:{script}"\n'
        (self.home / "local.toml").write_text(local, encoding="utf-8")
        for name in ("config.toml", "local.toml"):
            (self.home / name).chmod(0o600)
        (self.root / ".kaged").mkdir(parents=True)
        (self.root / ".kaged" / "project.yaml").write_text(PROJECT, encoding="utf-8")
        plugin = self.home.parent / "keeper"
        plugin.mkdir()
        (plugin / "kaged-plugin.yaml").write_text(MANIFEST, encoding="utf-8")
        (plugin / "main.py").write_text(PLUGIN, encoding="utf-8")

    async def start(self) -> None:
        """Start the daemon and wait until its rooms are open."""
        begun_s = time.monotonic()
        log = (self.home.parent / "daemon.log").open("ab")
        with log:
            self.process = await asyncio.to_thread(
                subprocess.Popen,
                [sys.executable, "-P", "-m", "kaged.cli", "daemon", "run"],
                env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self.pids.add(self.process.pid)
        async with asyncio.timeout(READY_TIMEOUT_S):
            while True:
                if self.process.poll() is not None:
                    raise Lost(f"the daemon did not start; see {self.home.parent / 'daemon.log'}")
                with contextlib.suppress(httpx.HTTPError):
                    async with self.client() as client:
                        if (await client.get("/projects")).status_code == 200:
                            break
                await asyncio.sleep(0.05)
        self.starts_s.append(time.monotonic() - begun_s)

    def client(self) -> httpx.AsyncClient:
        """Give a client over the Unix socket."""
        return httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(self.socket)),
            base_url="http://kaged/api/v1", timeout=CALL_TIMEOUT_S, trust_env=False,
        )  # fmt: skip

    async def set_up(self) -> None:
        """Load the project and install the plugin."""
        async with self.client() as client:
            plugin = {"path": str(self.home.parent / "keeper")}
            shown = await self._ok(client.post("/plugins/preview", json=plugin))
            await self._ok(client.post("/plugins", json={**plugin, "digest": shown["digest"]}))
            await self._ok(client.post("/plugins/keeper/enable"))
            loaded = await self._ok(client.post("/projects", json={"root": str(self.root)}))
            self.project_id = loaded["id"]

    async def _ok(self, asked: Awaitable[httpx.Response]) -> Any:
        answer = await asked
        if answer.status_code >= 300:
            raise Lost(f"{answer.request.url}: {answer.status_code} {answer.text[:300]}")
        return answer.json()

    # -- the clients ---------------------------------------------------------------------------

    async def work(self, what: str, act: Act) -> None:
        """Do one thing again and again; a refusal or a dead daemon is counted and lived with."""
        number = 0
        while time.monotonic() < self.until_s:
            try:
                async with self.client() as client:
                    while time.monotonic() < self.until_s:
                        number += 1
                        code = await act(client, number)
                        if code:
                            self.refused[f"{what}: {code}"] += 1
                            await asyncio.sleep(0.05)
                        else:
                            self.done[what] += 1
            except (httpx.HTTPError, OSError):
                self.refused[f"{what}: no daemon"] += 1
                await asyncio.sleep(0.1)

    async def write_file(self, client: httpx.AsyncClient, number: int) -> str:
        """Create a file."""
        name = f"f{number}.txt"
        params = {"path": name, "content": f"content of {name}\n"}
        body = {"agent": "primary", "tool": "file.create", "params": params}
        answer = await client.post(f"/projects/{self.project_id}/tools/call", json=body)
        if answer.status_code == 200:
            self.kept["files"].add(name)
        return _code(answer, also_fine={"file_exists"})

    async def open_issue(self, client: httpx.AsyncClient, number: int) -> str:
        """Open an issue."""
        title = f"issue {number} {random.random()}"
        params = {"action": "create", "title": title, "body": "b"}
        body = {"agent": "primary", "tool": "kaged.issue", "params": params}
        answer = await client.post(f"/projects/{self.project_id}/tools/call", json=body)
        if answer.status_code == 200:
            self.kept["issues"].add(title)
        return _code(answer)

    async def keep_row(self, client: httpx.AsyncClient, number: int) -> str:
        """Let the plugin keep a row."""
        word = f"w{number:09d}-{random.randrange(10**6)}"
        answer = await client.post("/plugins/keeper/call/row.keep", json={"word": word})
        if answer.status_code == 200:
            self.kept["rows"].add(word)
        return _code(answer)

    async def talk(self, client: httpx.AsyncClient, number: int) -> str:
        """Say something in a session."""
        base = f"/projects/{self.project_id}/sessions"
        if not self.sessions or random.random() < 0.05:
            made = await client.post(base, json={})
            if made.status_code >= 300:
                return _code(made)
            self.sessions[made.json()["id"]] = set()
        session = random.choice(list(self.sessions))
        words = f"look {number} {random.random()}"
        answer = await client.post(f"{base}/{session}/message", json={"text": words})
        if answer.status_code < 300:
            self.sessions[session].add(words)
        return _code(answer, also_fine={"session_busy"})

    async def listen(self) -> None:
        """Read events for a while and hang up without a goodbye, again and again."""
        while time.monotonic() < self.until_s:
            try:
                async with asyncio.timeout(random.uniform(0.2, 3.0)):
                    async with websockets.unix_connect(
                        str(self.socket), "ws://kaged/api/v1/events"
                    ) as stream:
                        async for _ in stream:
                            self.done["events heard"] += 1
            except (TimeoutError, OSError, websockets.WebSocketException):
                self.done["listeners that hung up"] += 1
            await asyncio.sleep(0.05)

    async def shell(self, client: httpx.AsyncClient, number: int) -> str:
        """Run a command."""
        params = {"command": "sleep 0.2; echo done"}
        body = {"agent": "primary", "tool": "shell.bash", "params": params}
        answer = await client.post(f"/projects/{self.project_id}/tools/call", json=body)
        return _code(answer)

    async def kill(self) -> None:
        """Kill the daemon in the middle of everything, and start it again."""
        pause_s = min(KILL_EVERY_S, self.seconds / (MIN_KILLS + 1))
        while True:
            await asyncio.sleep(pause_s)
            if time.monotonic() > self.until_s - 2.0:
                return
            assert self.process is not None
            self.peak_kib = max(self.peak_kib, _rss_kib(self.process.pid))
            self.process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(self.process.wait)
            self.kills += 1
            await self.start()
            print(f"soak: kill {self.kills}, up again in {self.starts_s[-1]:.1f} s, "
                  f"{sum(self.done.values())} things done", flush=True)  # fmt: skip

    async def run(self) -> None:
        """Let everybody work until the time is up."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.kill())
            for what, act, many in (
                ("files", self.write_file, 1), ("issues", self.open_issue, 2),
                ("plugin calls", self.keep_row, 3), ("messages", self.talk, 1),
                ("commands", self.shell, 1),
            ):  # fmt: skip
                for _ in range(many):
                    group.create_task(self.work(what, act))
            for _ in range(3):
                group.create_task(self.listen())

    # -- the reckoning -------------------------------------------------------------------------

    async def reckon(self) -> list[str]:
        """Look for everything that was acknowledged; gives what is wrong."""
        wrong: list[str] = []
        wrong += [f"file {name} is not there, or not whole" for name in sorted(self.kept["files"])
                  if _text(self.root / name) != f"content of {name}\n"]  # fmt: skip
        async with self.client() as client:
            titles = await self._issue_titles(client)
            wrong += [f"{title!r} is gone" for title in sorted(self.kept["issues"] - titles)]
            words = await self._rows(client)
            wrong += [f"row {word} is gone" for word in sorted(self.kept["rows"] - words)]
            for session, said in self.sessions.items():
                there = await self._said(client, session)
                wrong += [f"{one!r} is gone from {session}" for one in sorted(said - there)]
                self.kept["words"] |= said
        return wrong

    async def _issue_titles(self, client: httpx.AsyncClient) -> set[str]:
        titles: set[str] = set()
        cursor: str | None = None
        while True:
            query: dict[str, Any] = {"limit": 200, **({"cursor": cursor} if cursor else {})}
            page = await self._ok(client.get(f"/projects/{self.project_id}/issues", params=query))
            titles |= {one["title"] for one in page["items"]}
            cursor = page.get("next_cursor")
            if not cursor:
                return titles

    async def _rows(self, client: httpx.AsyncClient) -> set[str]:
        words: set[str] = set()
        after = ""
        while True:
            answer = await self._ok(
                client.post("/plugins/keeper/call/row.list", json={"after": after})
            )
            found = [str(one) for one in answer["result"]["words"]]
            if not found:
                return words
            words |= set(found)
            after = found[-1]

    async def _said(self, client: httpx.AsyncClient, session: str) -> set[str]:
        said: set[str] = set()
        after: str | None = None
        while True:
            query: dict[str, Any] = {"limit": 200, **({"after": after} if after else {})}
            url = f"/projects/{self.project_id}/sessions/{session}/entries"
            items = (await self._ok(client.get(url, params=query)))["items"]
            if not items:
                return said
            for one in items:
                if one.get("role") == "user":
                    said |= {str(b.get("text")) for b in one["content"].get("content", [])}
            after = items[-1]["id"]

    def stop(self) -> list[str]:
        """End the daemon as a person would; gives what it left behind."""
        wrong: list[str] = []
        assert self.process is not None
        self.peak_kib = max(self.peak_kib, _rss_kib(self.process.pid))
        self.process.terminate()
        if self.process.wait(60) != 0:
            wrong.append(f"the daemon ended with {self.process.returncode}")
        verified = subprocess.run(
            [sys.executable, "-P", "-m", "kaged.cli", "audit", "verify", "--json"],
            env=self.env, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        if verified.returncode != 0:
            wrong.append(f"the audit chain: {verified.stdout[:300]}{verified.stderr[:300]}")
        deadline_s = time.monotonic() + SETTLE_S
        while (left := self._left_over()) and time.monotonic() < deadline_s:
            time.sleep(0.2)
        return wrong + left

    def _left_over(self) -> list[str]:
        own = str(self.home.parent).encode()
        left: list[str] = []
        for entry in os.scandir("/proc"):
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    line = Path(entry.path, "cmdline").read_bytes()
                    environ = Path(entry.path, "environ").read_bytes()
                    if own in line or b"KAGED_HOME=" + bytes(self.home) in environ:
                        left.append(f"process {entry.name}: {line[:120]!r}")
        for pid in self.pids:
            cgroups = Path("/sys/fs/cgroup").rglob(f"kaged-{pid}-*")
            left += [f"cgroup {found}" for found in cgroups]
        if self.socket.exists():
            left.append(f"socket {self.socket}")
        left += [f"temporary file {one}" for one in self.root.rglob(".kaged-tmp-*")]
        return left


def _code(answer: httpx.Response, also_fine: set[str] | None = None) -> str:
    if answer.status_code < 300:
        return ""
    code = str(answer.json()["error"]["code"])
    return "" if code in (also_fine or set()) else code


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None


def _rss_kib(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return 0


async def _all(soak: Soak) -> list[str]:
    await soak.start()
    await soak.set_up()
    soak.until_s = time.monotonic() + soak.seconds
    await soak.run()
    wrong = await soak.reckon()
    return wrong + await asyncio.to_thread(soak.stop)


def main() -> int:
    """Run for as long as was asked; exit 1 when something is wrong."""
    seconds = float(os.environ.get("SOAK_S", "600"))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    folder = Path(tempfile.mkdtemp(prefix="kaged-soak-")).resolve()
    folder.chmod(0o755)
    soak = Soak(folder, seconds)
    soak.prepare()
    try:
        wrong = asyncio.run(_all(soak))
    finally:
        if soak.process is not None and soak.process.poll() is None:
            soak.process.kill()
            soak.process.wait()
    figures = {
        "seconds": seconds, "kills": soak.kills, "done": dict(sorted(soak.done.items())),
        "refused": dict(sorted(soak.refused.items())),
        "acknowledged": {name: len(values) for name, values in soak.kept.items()},
        "slowest_start_s": round(max(soak.starts_s), 2), "peak_mib": round(soak.peak_kib / 1024),
        "wrong": wrong[:50],
    }  # fmt: skip
    print(json.dumps(figures, indent=2))
    if wrong:
        print(f"soak: {len(wrong)} things are wrong; the folder is kept: {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    print("soak: everything that was acknowledged is there, and nothing was left behind")
    return 0


if __name__ == "__main__":
    sys.exit(main())
