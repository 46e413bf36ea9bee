"""What a service call costs while more and more accounts of other people are linked.

A call goes through all gates, the schema, the hardening and a real audit log, as in
`bench_services`. The accounts are those of other users; they are put into the store in bulk. What
a call costs is counted in calls of a second host that has one account and takes turns with the
first: between one point and the next the machine itself may become half as fast. What it costs in
microseconds stands among the services.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from fakes.bridge_lab import RealTime  # noqa: E402  # pyright: ignore[reportMissingImports] - beside the tests
from fakes.service_lab import ServiceLab  # noqa: E402  # pyright: ignore[reportMissingImports] - beside the tests
from scoreboard import Curve, Point, counts, show  # noqa: E402 - likewise
from scoreboard.commits import BareCommits  # noqa: E402 - likewise

POINTS = counts((1, 100, 1000, 10_000, 100_000), (1, 50))
ROUNDS = 30
CALLS = 100
LINKS = 40
PARAMS = {"capability": "gog.email", "operation": "list_messages", "input": {"folder": "inbox"}}


def run() -> list[Curve]:
    """Measure the three curves."""
    return uvloop.run(_run())


async def _run() -> list[Curve]:
    folder = Path(tempfile.mkdtemp(prefix="kaged-bench-scale-"))
    warm: list[Point] = []
    cold: list[Point] = []
    links: list[Point] = []
    commits = BareCommits(folder / "peer.db")
    try:
        crowded, single = await _Host.open(folder / "many"), await _Host.open(folder / "one")
        there = 0
        for count in POINTS:
            await _crowd(crowded.lab, there, count)
            there = count
            warm.append(Point(count, await _times(crowded, single, _Host.invoke)))
            cold.append(Point(count, await _times(crowded, single, _Host.invoke_anew)))

            async def link(number: int, count: int = count) -> None:
                name = f"new{count}-{number}"
                await crowded.lab.accounts.link(
                    name, "gog.email", "acct", name=None, email=None, flow_id="none"
                )

            links.append(Point(count, await commits.times(link, LINKS)))
        commits.close()
        await crowded.lab.close()
        await single.lab.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    family = "accounts 1 to 100,000"
    alone = "calls with one account"
    return [
        Curve(family, "a service call", "accounts", alone, tuple(warm)),
        Curve(family, "a call that reads the account anew", "accounts", alone, tuple(cold)),
        Curve(family, "an account linked, durable", "accounts", "bare commits", tuple(links)),
    ]


class _Host:
    """A host with an account of Alice, and calls on it."""

    def __init__(self, lab: Any) -> None:
        self.lab = lab
        self._token = ""

    @classmethod
    async def open(cls, folder: Path) -> _Host:
        folder.mkdir()
        lab: Any = ServiceLab(folder, RealTime())
        await lab.open(sink=None)
        await lab.register()
        await lab.link()

        async def lean(call: Any) -> Any:  # the lab's own remembers every call, which costs
            return {"user": "alice", "account": call.account_ref, "messages": []}

        lab.provider.invoke = lean
        lab.audit._subscribers = ()
        host = cls(lab)
        host._token = lab.token()
        return host

    async def invoke(self) -> None:
        await self.lab.rpc.call("capability.invoke", {"context_token": self._token, **PARAMS})

    async def invoke_anew(self) -> None:
        self.lab.accounts._cache.clear()
        await self.invoke()


async def _crowd(lab: Any, there: int, count: int) -> None:
    """Link accounts of other people until there are `count`."""
    from sqlalchemy import insert

    from kaged.store.schema import service_accounts

    now = lab.clock.now_ms()
    rows = [
        {
            "user_id": f"user{number}",
            "capability_id": "gog.email",
            "account_ref": "acct",
            "created_at_ms": now,
            "updated_at_ms": now,
            "status": "active",
        }
        for number in range(there, count)
    ]

    def work(conn: Any) -> None:
        conn.execute(insert(service_accounts), rows)

    await lab.store.write(work)


async def _times(crowded: _Host, single: _Host, call: Callable[[_Host], Awaitable[None]]) -> float:
    """Return what a call costs on the one in calls on the other; the middle of rounds in turn."""
    return statistics.median(
        [await _median_s(call, crowded) / await _median_s(call, single) for _ in range(ROUNDS)]
    )


async def _median_s(call: Callable[[_Host], Awaitable[None]], host: _Host) -> float:
    times: list[float] = []
    for _ in range(CALLS):
        start = time.perf_counter()
        await call(host)
        times.append(time.perf_counter() - start)
    await host.lab.audit.flush()
    return statistics.median(times)


if __name__ == "__main__":
    show(run())
