"""Checks without a daemon: `check_command` runs a bridge, `check_directory` a plugin."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from kaged.cage import Spawner
from kaged.cage.configured import cage_settings
from kaged.cli.context import locations, quiet_logs
from kaged.config.settings import Settings, read_settings
from kaged.plugins.lint import LintReport, check_plugin
from kaged.services.bridge_check import BridgeReport, check_bridge, check_sidecar

Report = TypeVar("Report")


def check_command(
    command: Sequence[str],
    namespace: str,
    env: Mapping[str, str],
    timeout_s: float,
    *,
    sidecar: bool,
) -> BridgeReport:
    """Try a bridge or a sidecar with a temporary key."""
    check = check_sidecar if sidecar else check_bridge

    async def work(spawner: Spawner, _settings: Settings) -> BridgeReport:
        return await check(
            command, namespace, spawner=spawner, environ=os.environ, env=env, timeout_s=timeout_s
        )

    return _with_spawner(work)


def check_directory(path: Path, *, handshake: bool) -> LintReport:
    """Check a plugin's files and, with `handshake`, start it once in its cage."""

    async def work(spawner: Spawner, settings: Settings) -> LintReport:
        runtimes = settings.daemon.value.sandbox.runtimes
        return await check_plugin(
            path,
            spawner if handshake else None,
            runtimes=runtimes,
            search_path=spawner.facts.search_path,
        )

    return _with_spawner(work)


def _with_spawner(work: Callable[[Spawner, Settings], Awaitable[Report]]) -> Report:
    quiet_logs()
    settings = read_settings(locations(), os.environ)

    async def run() -> Report:
        spawner = Spawner(cage_settings(settings))
        try:
            return await work(spawner, settings)
        finally:
            await spawner.close()

    return asyncio.run(run())
