"""A host of service capabilities that gets as far as it is told, says so, and waits to be killed.

    dying_host.py FOLDER begun|linked|running

It prints the id of the flow it began. Nothing is closed or flushed after that.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from fakes.bridge_lab import RealTime
from fakes.service_lab import ServiceLab
from kaged.base import JsonObject
from kaged.services.contract import InvokeCall


async def main(folder: Path, stage: str) -> None:
    lab = ServiceLab(folder, RealTime())
    await lab.open()
    await lab.register()
    flow = await lab.call("auth.begin", capability="gog.email", account_hint="later")
    if stage == "begun":
        _say(flow["flow_id"])
        await asyncio.Event().wait()
    await lab.link()
    if stage == "linked":
        _say(flow["flow_id"])
        await asyncio.Event().wait()

    async def hang(_call: InvokeCall) -> JsonObject:
        _say(flow["flow_id"])
        await asyncio.Event().wait()
        return {}

    lab.provider.on_invoke = hang
    await lab.invoke("send", idempotency_key="k")


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
