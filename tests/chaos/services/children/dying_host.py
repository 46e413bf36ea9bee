"""A host of service capabilities that gets as far as it is told, says so, and waits to be killed.

    FOLDER begun|linked|running

It prints the id of the flow it began. Nothing is closed or flushed after that.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from fakes.bridge_lab import RealTime
from fakes.forked_children import serve_forks
from fakes.service_lab import ServiceLab
from kaged.base import JsonObject
from kaged.services.contract import InvokeCall


async def main(folder: str, stage: str) -> None:
    lab = ServiceLab(Path(folder), RealTime())
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
    serve_forks(main)
