"""What a service call costs while more and more accounts of other people are linked.

A call goes through all gates, the schema, the hardening and a real audit log, as in
`bench_services`. The accounts are those of other users; they are put into the store in bulk.
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
ROUNDS = 5
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
    lab: Any = ServiceLab(folder, RealTime())
    commits = BareCommits(folder / "peer.db")
    try:
        await lab.open(sink=None)
        await lab.register()
        await lab.link()
        token = lab.token()

        async def lean(call: Any) -> Any:  # the lab's own remembers every call, which costs
            return {"user": "alice", "account": call.account_ref, "messages": []}

        lab.provider.invoke = lean
        lab.audit._subscribers = ()

        async def invoke() -> None:
            await lab.rpc.call("capability.invoke", {"context_token": token, **PARAMS})

        async def forgotten() -> None:
            lab.accounts._cache.clear()
            await invoke()

        there = 0
        for count in POINTS:
            await _crowd(lab, there, count)
            there = count
            warm.append(Point(count, await _best_us(invoke, lab)))
            cold.append(Point(count, await _best_us(forgotten, lab)))

            async def link(number: int, count: int = count) -> None:
                name = f"new{count}-{number}"
                await lab.accounts.link(
                    name, "gog.email", "acct", name=None, email=None, flow_id="none"
                )

            links.append(Point(count, await commits.times(link, LINKS)))
        commits.close()
        await lab.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    family = "accounts 1 to 100,000"
    return [
        Curve(family, "a service call", "accounts", "µs each", tuple(warm)),
        Curve(family, "a call that reads the account anew", "accounts", "µs each", tuple(cold)),
        Curve(family, "an account linked, durable", "accounts", "bare commits", tuple(links)),
    ]


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
        }
        for number in range(there, count)
    ]

    def work(conn: Any) -> None:
        conn.execute(insert(service_accounts), rows)

    await lab.store.write(work)


async def _best_us(call: Callable[[], Awaitable[None]], lab: Any) -> float:
    """Give the median of the quietest round."""
    medians: list[float] = []
    for _ in range(ROUNDS):
        times: list[float] = []
        for _ in range(CALLS):
            start = time.perf_counter()
            await call()
            times.append(time.perf_counter() - start)
        await lab.audit.flush()
        medians.append(statistics.median(times) * 1e6)
    return min(medians)


if __name__ == "__main__":
    show(run())
