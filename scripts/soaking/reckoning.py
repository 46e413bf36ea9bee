"""The end of a soak: is everything there that was acknowledged, and is everything else gone?"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from soaking.clients import Clients, content_of
from soaking.daemon_home import DaemonHome
from soaking.guests import STALL_S

SETTLE_S = 30.0
CALM_S = 5.0
FDS_SLACK = 2
BURST = FDS_SLACK + 1  # what is kept each time is then more than the slack
ROUNDS = 3  # a process that is kept in reserve comes once; a leak comes every time


async def reckon(home: DaemonHome, clients: Clients) -> list[str]:
    """Look for everything that was acknowledged; returns what is wrong."""
    wrong = [f"file {name} is not there, or not whole" for name in sorted(clients.files)
             if _text(home.root / name) != content_of(name)]  # fmt: skip
    wrong += [f"file {one.name}, whose writer hung up, is not whole"
              for one in home.root.glob("cut*.txt")
              if _text(one) != content_of(one.name)]  # fmt: skip
    wrong += _ledgers(home, clients)
    async with home.client() as client:
        await home.plugin_running(client)
        titles = await _issue_titles(home, client)
        wrong += [f"{title!r} is gone" for title in sorted(clients.issues - titles)]
        rows = await _rows(home, client)
        wrong += [f"row {word} is gone" for word in sorted(clients.rows - rows)]
        for session, said in clients.sessions.items():
            there = await _said(home, client, session)
            wrong += [f"{one!r} is gone from {session}" for one in sorted(said - there)]
    return wrong


def complaints(home: DaemonHome) -> list[str]:
    """Return what the daemon itself reports as its own errors."""
    log = (home.folder / "daemon.log").read_text(encoding="utf-8", errors="replace")
    signs = (
        '"level": "error"',
        '"level": "critical"',
        "Traceback",
        "never retrieved",
        "internal_error",
    )
    return [f"the daemon's log: {line[:1500]}" for line in log.splitlines()
            if any(sign in line for sign in signs)]  # fmt: skip


async def look_for_leaks(home: DaemonHome, clients: Clients, *, thorough: bool) -> list[str]:
    """Do everything some times over, again and again; what is open may not grow each time."""
    times, calm_s = (2 * BURST, CALM_S) if thorough else (BURST, CALM_S / 5)
    async with home.client() as client:
        await home.plugin_running(client)
    await clients.burst(times)
    before = await _quiet(home, calm_s)
    kept: list[dict[str, int]] = []
    for _ in range(ROUNDS):
        await clients.burst(times)
        more = await _more_than(before, home)
        if more.total() <= FDS_SLACK:
            return []
        kept.append(dict(more))
        before += more
    return [f"the daemon keeps descriptors, round by round: {kept}; {before.total()} are open"]


async def _quiet(home: DaemonHome, calm_s: float) -> Counter[str]:
    """Wait until the number of open files does not fall any more."""
    least, since_s = home.open_files(), time.monotonic()
    deadline_s = since_s + SETTLE_S
    while time.monotonic() < min(deadline_s, since_s + calm_s):
        await asyncio.sleep(0.1)
        now = home.open_files()
        if sum(now.values()) < sum(least.values()):
            least, since_s = now, time.monotonic()
    return least


async def _more_than(before: Counter[str], home: DaemonHome) -> Counter[str]:
    """Return what more is open than before, once it is little or has had time to be closed."""
    deadline_s = time.monotonic() + SETTLE_S
    while (more := home.open_files() - before).total() > FDS_SLACK:
        if time.monotonic() > deadline_s:
            break
        await asyncio.sleep(0.1)
    return more


def left_over(home: DaemonHome) -> list[str]:
    """Return what the daemon left behind, once it has had time to go."""
    deadline_s = time.monotonic() + SETTLE_S
    while (left := _left(home)) and time.monotonic() < deadline_s:
        time.sleep(0.2)
    return left


def _left(home: DaemonHome) -> list[str]:
    left = [f"process {pid}: {line[:160]}" for pid, line in _processes(home)]
    left += [f"cgroup {one}" for one in _cgroups(home)]
    own = str(home.folder)
    sockets = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    left += [f"bound socket {line.split()[-1]}" for line in sockets if own in line]
    run = home.home / "run"
    left += [f"socket {one}" for one in run.rglob("*") if one.is_socket()]
    for place in (home.root, home.home):
        left += [f"temporary file {one}" for one in place.rglob(".kaged-tmp-*")]
        left += [f"temporary file {one}" for one in place.rglob("*.tmp")]
    left += [f"temporary file {one}" for one in home.temporary.iterdir()]
    return left


def _cgroups(home: DaemonHome) -> list[str]:
    ours = tuple(f"kaged-{pid}-" for pid in home.pids)
    # Groups of others come and go while we look; `walk` passes over what is gone.
    return [os.path.join(place, name)  # noqa: PTH118 - as walk gives them
            for place, names, _ in os.walk("/sys/fs/cgroup")
            for name in names if name.startswith(ours)]  # fmt: skip


def _processes(home: DaemonHome) -> list[tuple[str, str]]:
    """Return processes that name this soak's folder, in words or as a place, or sleep for it."""
    own = os.fsencode(home.folder)
    nap = f"sleep\0{STALL_S}\0".encode()
    found: list[tuple[str, str]] = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            line = Path(entry.path, "cmdline").read_bytes()
            environ = Path(entry.path, "environ").read_bytes()
            place = os.fsencode(Path(entry.path, "cwd").readlink())
            if line and (own in line or own in environ or place.startswith(own) or nap in line):
                words = line.replace(b"\0", b" ").decode("utf-8", "replace")
                found.append((entry.name, words))
    return found


def _ledgers(home: DaemonHome, clients: Clients) -> list[str]:
    wrong: list[str] = []
    for bridge, words in clients.noted.items():
        text = _text(home.folder / f"ledger-{bridge}.txt") or ""
        noted = Counter(text.split())
        wrong += [f"note {word} of {bridge} is gone" for word in sorted(words - set(noted))]
        wrong += [f"note {word} of {bridge} was made {many} times"
                  for word, many in sorted(noted.items()) if many > 1]  # fmt: skip
    return wrong


async def _issue_titles(home: DaemonHome, client: httpx.AsyncClient) -> set[str]:
    titles: set[str] = set()
    cursor: str | None = None
    while True:
        query: dict[str, Any] = {"limit": 200, **({"cursor": cursor} if cursor else {})}
        url = f"/projects/{home.project_id}/issues"
        page = await home.ask(client, "GET", url, params=query)
        titles |= {one["title"] for one in page["items"]}
        cursor = page.get("next_cursor")
        if not cursor:
            return titles


async def _rows(home: DaemonHome, client: httpx.AsyncClient) -> set[str]:
    words: set[str] = set()
    after = ""
    while True:
        body = {"after": after}
        answer = await home.ask(client, "POST", "/plugins/keeper/call/row.list", json=body)
        found = [str(one) for one in answer["result"]["words"]]
        if not found:
            return words
        words |= set(found)
        after = found[-1]


async def _said(home: DaemonHome, client: httpx.AsyncClient, session: str) -> set[str]:
    said: set[str] = set()
    after: str | None = None
    url = f"/projects/{home.project_id}/sessions/{session}/entries"
    while True:
        query: dict[str, Any] = {"limit": 200, **({"after": after} if after else {})}
        items = (await home.ask(client, "GET", url, params=query))["items"]
        if not items:
            return said
        for one in items:
            if one.get("role") == "user":
                said |= {str(block.get("text")) for block in one["content"].get("content", [])}
        after = items[-1]["id"]


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None
