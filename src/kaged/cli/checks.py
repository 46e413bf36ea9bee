"""Checks without a daemon: `check_command` runs a bridge, `check_directory` a plugin."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from kaged.cage import Spawner
from kaged.cage.configured import cage_settings
from kaged.cage.net import NetGate
from kaged.cli.context import locations, quiet_logs
from kaged.config.pluginwords import MANIFEST_NAME
from kaged.config.settings import Settings, read_settings
from kaged.plugins.lint import LintReport, check_plugin
from kaged.services.bridge_check import BridgeReport, check_bridge, check_sidecar

Report = TypeVar("Report")
MAX_MANIFEST_BYTES: Final = 1024 * 1024


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

    return _with_spawner(work, gate=False)


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

    return _with_spawner(work, gate=handshake and _may_ask_for_network(path))


def _may_ask_for_network(directory: Path) -> bool:
    """Return whether a manifest has the word for it; the trial runs of the gate take a second."""
    try:
        with (directory / MANIFEST_NAME).open("rb") as file:
            return b"net:" in file.read(MAX_MANIFEST_BYTES)
    except OSError:
        return False  # the check says why


def _with_spawner(work: Callable[[Spawner, Settings], Awaitable[Report]], *, gate: bool) -> Report:
    quiet_logs()
    settings = read_settings(locations(), os.environ)

    async def run() -> Report:
        chosen = cage_settings(settings)
        net_gate = NetGate(lambda _event: None)
        try:
            if gate:
                await net_gate.start(chosen.bwrap)
            spawner = Spawner(chosen, gate=net_gate)
            try:
                return await work(spawner, settings)
            finally:
                await spawner.close()
        finally:
            await net_gate.close()

    return asyncio.run(run())
