"""Check a bridge from the command line, without a daemon."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence

from kaged.cage import Spawner
from kaged.cage.configured import cage_settings
from kaged.cli.context import locations, quiet_logs
from kaged.config.settings import read_settings
from kaged.services.bridge_check import BridgeReport, check_bridge


def check_command(
    command: Sequence[str], namespace: str, env: Mapping[str, str], timeout_s: float
) -> BridgeReport:
    """Try a bridge out with a throw-away key."""
    quiet_logs()
    settings = read_settings(locations(), os.environ)

    async def work() -> BridgeReport:
        spawner = Spawner(cage_settings(settings))
        try:
            return await check_bridge(
                command,
                namespace,
                spawner=spawner,
                environ=os.environ,
                env=env,
                timeout_s=timeout_s,
            )
        finally:
            await spawner.close()

    return asyncio.run(work())
