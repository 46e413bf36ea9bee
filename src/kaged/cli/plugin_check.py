"""Check a plugin directory from the command line, without a daemon."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from kaged.cage import Spawner
from kaged.cage.configured import cage_settings
from kaged.cli.context import locations, quiet_logs
from kaged.config.settings import read_settings
from kaged.plugins.lint import LintReport, check_plugin


def check_directory(path: Path, *, handshake: bool) -> LintReport:
    """Check a plugin's files and, with `handshake`, start it once in its cage."""
    quiet_logs()
    settings = read_settings(locations(), os.environ)
    runtimes = settings.daemon.value.sandbox.runtimes

    async def work() -> LintReport:
        if not handshake:
            return await check_plugin(path, None, runtimes=runtimes)
        spawner = Spawner(cage_settings(settings))
        try:
            return await check_plugin(path, spawner, runtimes=runtimes)
        finally:
            await spawner.close()

    return asyncio.run(work())
