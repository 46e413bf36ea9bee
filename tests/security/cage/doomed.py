"""A daemon that will be killed: starts cages, says so, and waits for its end.

`python doomed.py FOLDER CACHE running|waiting`. In `waiting` its cages stand at their start, held
by a gate that never opens, so that its death falls into the moment before their release.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from kaged.cage import CageRequest, CageSettings, Spawner
from kaged.kernel.net import NetTarget
from kaged.kernel.policy import CagePolicy, FsGrant, FsMode

SCRIPT = (
    "trap '' TERM HUP; (setsid sleep 1000 &); echo ran >> {folder}/ran; while :; do sleep 1; done"
)


def say(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


class Plan:
    """Nothing to show inside."""

    environment: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()


class NeverOpens:
    """A gate that keeps a cage waiting at its start."""

    def prepare(self, targets: tuple[NetTarget, ...], asks: bool = False) -> Plan:
        return Plan()

    async def attach(self, child_pid: int, plan: Plan, **_: object) -> Any:
        say(child_pid)
        await asyncio.Event().wait()


async def main(folder: Path, cache: Path, how: str) -> None:
    waiting = how == "waiting"
    spawner = Spawner(CageSettings(cache_dir=cache), gate=NeverOpens() if waiting else None)
    policy = CagePolicy(
        fs=(FsGrant(str(folder), FsMode.RW),),
        net=(NetTarget("api.test", 443),) if waiting else (),
    )
    request = CageRequest("doomed", policy, ("sh", "-c", SCRIPT.format(folder=folder)))

    async def one() -> None:
        process = await spawner.spawn(request)
        assert process.cage is not None
        say(process.cage.init_pid)
        await process.wait()

    await asyncio.gather(*(one() for _ in range(3)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
