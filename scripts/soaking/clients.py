"""The clients of a soak: they work, hang up in the middle, and remember what they were told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import shlex
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import websockets

from soaking.daemon_home import DaemonHome
from soaking.guests import BRIDGES, STALL_S

Act = Callable[[httpx.AsyncClient], Awaitable[str]]

PAUSE_S = 0.02
PATIENCE_S = 120.0  # on a slow machine it takes longer until everything has been there
MIN_KILLS = 2
DUE_SHARE = 0.3
# How often a call dies, stalls or leaves something behind; each kind comes at least once.
FAULTS = {
    "plugin": {"die": 0.005, "die_after": 0.005},
    "bridge": {"stall": 0.04, "die": 0.05, "die_after": 0.05, "garbage": 0.03, "leave": 0.05},
}
COURIER = "primary.subagents.courier"
CAPABILITY_CODE = re.compile(r"capability_[a-z_]+")
# Leaves the shell's group and session and is nobody's child; it may not outlive the command.
ORPHAN = f"(setsid sleep {STALL_S} >/dev/null 2>&1 </dev/null &)"


class Clients:
    """Everybody who uses the daemon, and what was acknowledged to them."""

    def __init__(self, home: DaemonHome, seed: int) -> None:
        self.home = home
        self.chance = random.Random(seed)
        self.until_s = 0.0
        self.files: set[str] = set()
        self.issues: set[str] = set()
        self.rows: set[str] = set()
        self.noted: dict[str, set[str]] = {name: set() for name in BRIDGES}
        self.sessions: dict[str, set[str]] = {}
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.example: dict[str, str] = {}
        self.faults = True
        self.played: Counter[str] = Counter()
        self._due = {who: self._shuffled(chances) for who, chances in FAULTS.items()}
        self._number = 0
        self._lost_notes: list[tuple[str, str, str]] = []

    @property
    def workers(self) -> tuple[tuple[str, Act, int], ...]:
        """Who does what, and how many of them."""
        return (
            ("files", self.write_file, 1), ("issues", self.open_issue, 1),
            ("plugin calls", self.keep_row, 2), ("messages", self.talk, 1),
            ("commands", self.run_command, 1), ("bridge calls", self.note, 3),
        )  # fmt: skip

    @property
    def going(self) -> bool:
        """Whether to go on: the time is not up, or something has not been there yet."""
        now_s = time.monotonic()
        return now_s < self.until_s or (self._missing and now_s < self.until_s + PATIENCE_S)

    @property
    def _missing(self) -> bool:
        acknowledged = (self.files, self.issues, self.rows, *self.noted.values())
        few = self.home.kills < MIN_KILLS or not any(self.sessions.values())
        return few or any(self._due.values()) or not all(acknowledged)

    async def work(self) -> None:
        """Let everybody work, and others hang up, as long as it goes on."""
        async with asyncio.TaskGroup() as group:
            for what, act, many in self.workers:
                for _ in range(many):
                    group.create_task(self._work(what, act))
            for hang_up in (self._listen, self._listen, self._never_read, self._cut_request):
                group.create_task(self._hang_up(hang_up))

    async def burst(self, times: int) -> None:
        """Do everything a few times, and let nobody die or stall; meanwhile others hang up."""
        self.faults = False
        async with self.home.client() as client, asyncio.TaskGroup() as group:
            for _ in range(times):
                for hang_up in (self._listen, self._never_read, self._cut_request):
                    group.create_task(hang_up())
                for _, act, _ in self.workers:
                    await act(client)

    # -- those who work ------------------------------------------------------------------------

    async def _work(self, what: str, act: Act) -> None:
        while self.going:
            try:
                async with self.home.client() as client:
                    while self.going:
                        code = await act(client)
                        if code:
                            self.refused[f"{what}: {code}"] += 1
                        else:
                            self.done[what] += 1
                        await asyncio.sleep(PAUSE_S)
            except (httpx.HTTPError, OSError):
                self.refused[f"{what}: no daemon"] += 1
                await asyncio.sleep(0.1)

    async def write_file(self, client: httpx.AsyncClient) -> str:
        """Create a file."""
        name = f"f{self._next()}.txt"
        answer = await self._tool(client, "file.create", path=name, content=content_of(name))
        if answer.status_code == 200:
            self.files.add(name)
        return self._code(answer)

    async def open_issue(self, client: httpx.AsyncClient) -> str:
        """Open an issue."""
        title = f"issue {self._next()}"
        answer = await self._tool(client, "kaged.issue", action="create", title=title, body="b")
        if answer.status_code == 200:
            self.issues.add(title)
        return self._code(answer)

    async def keep_row(self, client: httpx.AsyncClient) -> str:
        """Let the plugin keep a row; now and then it dies of it."""
        word = f"w{self._next():09d}"
        fault = self._fault("plugin")
        body = {"word": word, "fault": fault}
        answer = await client.post("/plugins/keeper/call/row.keep", json=body)
        if answer.status_code == 200:
            self.rows.add(word)
        elif answer.json()["error"]["data"].get("state") == "disabled":
            await client.post("/plugins/keeper/enable")  # it died too often: an operator's answer
        return self._code(answer)

    async def talk(self, client: httpx.AsyncClient) -> str:
        """Send a message in a session."""
        base = f"/projects/{self.home.project_id}/sessions"
        if not self.sessions or self.chance.random() < 0.05:
            made = await client.post(base, json={})
            if made.status_code >= 300:
                return self._code(made)
            self.sessions[made.json()["id"]] = set()
        session = self.chance.choice(list(self.sessions))
        words = f"look {self._next()}"
        answer = await client.post(f"{base}/{session}/message", json={"text": words})
        if answer.status_code < 300:
            self.sessions[session].add(words)
        return self._code(answer, also_fine={"session_busy"})

    async def run_command(self, client: httpx.AsyncClient) -> str:
        """Run a command, with a cage or without, that leaves something behind."""
        agent = self.chance.choice(["primary", COURIER])
        command = f"{ORPHAN}; sleep 0.1; echo done"
        return self._code(await self._tool(client, "shell.bash", agent=agent, command=command))

    async def note(self, client: httpx.AsyncClient) -> str:
        """Let a bridge note a word; a note whose outcome is unknown is asked for again."""
        if self._lost_notes and self.chance.random() < 0.5:
            bridge, word, fault = self._lost_notes.pop()
        else:
            bridge, word = self.chance.choice(list(BRIDGES)), f"n{self._next():09d}"
            fault = self._fault("bridge")
        given = json.dumps({"word": word, "fault": fault})
        command = (
            f"ash-sb capability invoke -c {bridge}.book -o note --idempotency-key soak-key-{word}"
            f" --input-json {shlex.quote(given)}"
        )
        try:
            answer = await self._tool(client, "shell.bash", agent=COURIER, command=command)
        except httpx.HTTPError:
            self._lost_notes.append((bridge, word, fault))
            raise
        if answer.status_code != 200:
            return self._code(answer)
        result = answer.json()["result"]
        if result["exit_code"] == 0:
            self.noted[bridge].add(word)
            return ""
        found = CAPABILITY_CODE.search(result["stderr"] + result["stdout"])
        return f"{found[0] if found else 'exit'} after {fault or 'no fault'}"

    # -- those who hang up ---------------------------------------------------------------------

    async def _hang_up(self, act: Callable[[], Awaitable[None]]) -> None:
        while self.going:
            try:
                await act()
                self.done["clients that hung up"] += 1
            except (OSError, EOFError, websockets.WebSocketException):
                self.refused["hanging up: no daemon"] += 1
            await asyncio.sleep(5 * PAUSE_S)

    async def _listen(self) -> None:
        """Read events for a while, then cut the connection without a goodbye."""
        stream = await websockets.unix_connect(str(self.home.socket), "ws://kaged/api/v1/events")
        try:
            with contextlib.suppress(TimeoutError, websockets.ConnectionClosed):
                async with asyncio.timeout(self.chance.uniform(0.1, 2.0)):
                    async for _ in stream:
                        self.done["events heard"] += 1
        finally:
            stream.transport.abort()
            with contextlib.suppress(websockets.WebSocketException):
                await stream.wait_closed()

    async def _never_read(self) -> None:
        """Ask for events and never read one."""
        hello = (
            b"GET /api/v1/events HTTP/1.1\r\nHost: kaged\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        await self._cut(hello, self.chance.uniform(0.5, 2.0))

    async def _cut_request(self) -> None:
        """Send a request, or a part of one, and hang up before the answer."""
        name = f"cut{self._next()}.txt"
        call: dict[str, Any] = self.chance.choice([
            {"tool": "file.create", "params": {"path": name, "content": content_of(name)}},
            {"tool": "shell.bash", "params": {"command": f"{ORPHAN}; sleep {STALL_S}"}},
            {"tool": "shell.bash", "params": {"command": f"sleep {STALL_S}"}, "agent": COURIER},
        ])  # fmt: skip
        body = json.dumps({"agent": "primary", **call}).encode()
        head = (
            f"POST /api/v1/projects/{self.home.project_id}/tools/call HTTP/1.1\r\nHost: kaged\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()
        whole = head + body
        part = self.chance.choice([len(whole), len(whole), self.chance.randrange(1, len(whole))])
        await self._cut(whole[:part], self.chance.uniform(0.0, 0.6))

    async def _cut(self, request: bytes, after_s: float) -> None:
        _, writer = await asyncio.open_unix_connection(str(self.home.socket))
        try:
            writer.write(request)
            await writer.drain()
            await asyncio.sleep(after_s)
        finally:
            writer.transport.abort()

    # -- own -----------------------------------------------------------------------------------

    def _code(self, answer: httpx.Response, also_fine: set[str] | None = None) -> str:
        if answer.status_code < 300:
            return ""
        error = answer.json()["error"]
        self.example.setdefault(error["code"], error["message"])
        return "" if error["code"] in (also_fine or set()) else str(error["code"])

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _shuffled(self, chances: dict[str, float]) -> list[str]:
        return self.chance.sample(list(chances), len(chances))

    def _fault(self, who: str) -> str:
        """Draw what goes wrong in a call; what was never drawn comes sooner."""
        if not self.faults:
            return ""
        drawn, fault = self.chance.random(), ""
        if self._due[who]:
            fault = self._due[who].pop() if drawn < DUE_SHARE else ""
        else:
            for one, share in FAULTS[who].items():
                if drawn < share:
                    fault = one
                    break
                drawn -= share
        if fault:
            self.played[f"{who}: {fault}"] += 1
        return fault

    async def _tool(
        self, client: httpx.AsyncClient, tool: str, agent: str = "primary", **params: Any
    ) -> httpx.Response:
        body = {"agent": agent, "tool": tool, "params": params}
        url = f"/projects/{self.home.project_id}/tools/call"
        return await client.post(url, json=body)


def content_of(name: str) -> str:
    """Return what belongs into a file."""
    return f"content of {name}\n"
