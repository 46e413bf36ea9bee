"""`Startup`: starts the subsystems of the daemon once its sockets answer.

Loading the routes and what runs guests costs more than everything else of a start together. So the
daemon answers first, and requests for projects, plugins and tools wait the moment that these still
need. What takes long is done in a thread; the event loop goes on answering.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from kaged.app.daemon_core import DaemonCore
from kaged.base import KagedError, Tasks
from kaged.base.log import get_logger
from kaged.serve.http import EarlyApp

if TYPE_CHECKING:
    from fastapi import FastAPI

    from kaged.app.subsystems import StartedSubsystems
    from kaged.config.problems import Problem

_log = get_logger("kaged.start")


class Startup:
    """Starts the subsystems once, in the background, and stops them at the end."""

    def __init__(self, core: DaemonCore, early_app: EarlyApp) -> None:
        self._core = core
        self._early_app = early_app
        self._closing = AsyncExitStack()
        self._tasks = Tasks("startup", self._broke)
        self._subsystems: StartedSubsystems | None = None
        self._on_failure: Callable[[], None] = lambda: None
        self.failure: KagedError | None = None

    def start(self, on_open: Callable[[], None], on_failure: Callable[[], None]) -> None:
        """Begin to open; one of the two is called at the end."""
        self._on_failure = on_failure

        async def run() -> None:
            try:
                await self.open()
            except KagedError as error:
                _log.error("daemon.not_opened", code=error.code, error=error.message)
                on_failure()
            else:
                on_open()

        self._tasks.start(run(), "subsystems")

    async def open(self) -> None:
        """Open everything. Raises KagedError, which `failure` keeps, when a gate is closed."""
        readiness = self._core.services.readiness
        try:
            routes = await self._early_app.routes()
            load = await asyncio.to_thread(_load, routes)
            self._subsystems = await load(self._core, self._closing, routes)
        except KagedError as error:
            self.failure = error
            readiness.fail(error)
            raise
        readiness.open(self._subsystems.subsystems)

    async def reload(self) -> list[Problem]:
        """Read the policy file again, once subsystems are up.

        MCP servers follow config.toml, and plugins what local.toml grants and tells them.
        """
        await self._core.services.readiness.wait()
        if self._subsystems is None:
            return []
        problems = list(await self._subsystems.pipeline.load())
        await self._subsystems.mcp.load()
        problems += await self._subsystems.subsystems.plugins.apply_operator_settings()
        return problems

    async def close(self) -> None:
        """Stop opening if that still goes on, then stop every subsystem, last one first."""
        await self._tasks.close()
        await self._closing.aclose()

    def _broke(self, name: str, error: BaseException) -> None:
        # A fault of ours: nobody shall wait for what never comes.
        _log.error("task.failed", task=name, error=repr(error))
        self.failure = KagedError(f"{type(error).__name__}: {error}", code="internal")
        self._core.services.readiness.fail(self.failure)
        self._on_failure()


def _load(
    routes: FastAPI,
) -> Callable[[DaemonCore, AsyncExitStack, FastAPI], Awaitable[StartedSubsystems]]:
    from kaged.app.subsystems import start_subsystems  # noqa: PLC0415 - the point of this module
    from kaged.serve.http.app import add_subsystem_routes  # noqa: PLC0415 - likewise

    # Requests for these routes wait until their subsystems are up.
    add_subsystem_routes(routes)
    return start_subsystems
