"""The bench of the audit log's tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from kaged.base import Ids, ManualClock
from unit.audit.log_bench import BOUND_S, Bench


@pytest.fixture
async def bench(clock: ManualClock, ids: Ids) -> AsyncIterator[Bench]:
    bench = Bench(clock, ids)
    async with asyncio.timeout(BOUND_S * 2):
        yield bench
        bench.sink.gate.set()
        for log in bench.opened:
            await log.close()
