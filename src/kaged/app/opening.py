"""`Opening`: opens the rooms of the daemon behind its doors, once those answer.

Loading the routes and what runs guests costs more than everything else of a start together. So the
daemon answers first, and requests for projects, plugins and tools wait the moment that these still
need. What takes long is done in a thread; the event loop goes on answering.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import structlog

from kaged.app.ground import Ground
from kaged.base import KagedError, Tasks
from kaged.serve.http import Door
from kaged.serve.http.errors import Internal

if TYPE_CHECKING:
    from fastapi import FastAPI

    from kaged.app.rooms import OpenRooms
    from kaged.config.problems import Problem

_log = structlog.get_logger("kaged.start")


class Opening:
    """Opens the rooms once, in the background, and closes them at the end."""

    def __init__(self, ground: Ground, door: Door) -> None:
        self._ground = ground
        self._door = door
        self._closing = AsyncExitStack()
        self._tasks = Tasks("opening", self._broke)
        self._rooms: OpenRooms | None = None
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

        self._tasks.start(run(), "rooms")

    async def open(self) -> None:
        """Open everything. Raises KagedError, which `failure` keeps, when a gate is closed."""
        doorway = self._ground.services.doorway
        try:
            routes = await self._door.routes()
            load = await asyncio.to_thread(_load, routes)
            self._rooms = await load(self._ground, self._closing, routes)
        except KagedError as error:
            self.failure = error
            doorway.fail(error)
            raise
        doorway.open(self._rooms.rooms)

    async def reload_policies(self) -> list[Problem]:
        """Read the policy file again, once the rooms are open; MCP servers follow config.toml."""
        await self._ground.services.doorway.wait()
        if self._rooms is None:
            return []
        problems = list(await self._rooms.pipeline.load())
        await self._rooms.mcp.load()
        return problems

    async def close(self) -> None:
        """Stop opening if that still goes on, then close every room, last one first."""
        await self._tasks.close()
        await self._closing.aclose()

    def _broke(self, name: str, error: BaseException) -> None:
        # A fault of ours: nobody shall wait for what never comes.
        _log.error("task.failed", task=name, error=repr(error))
        self.failure = Internal(f"{type(error).__name__}: {error}")
        self._ground.services.doorway.fail(self.failure)
        self._on_failure()


def _load(routes: FastAPI) -> Callable[[Ground, AsyncExitStack, FastAPI], Awaitable[OpenRooms]]:
    from kaged.app.rooms import open_rooms  # noqa: PLC0415 - the point of this module
    from kaged.serve.http.app import add_rooms  # noqa: PLC0415 - likewise

    # Requests for these routes wait at the door until their rooms are open.
    add_rooms(routes)
    return open_rooms


__all__ = ["Opening"]
