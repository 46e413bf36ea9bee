"""`ScriptTimers`: when scripts asked to be called later. The host keeps the time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Final

from kaged.base import JsonObject, JsonValue, Tasks
from kaged.base.lazy_dataclass import dataclass
from kaged.lua.limits import MAX_TIMER_MS, MAX_TIMERS

if TYPE_CHECKING:
    from kaged.lua.script import Script, WorkerConnection

SHORTEST_MS: Final = 50
"""Between two calls of one timer, and before what a later call asks for: no script spins so."""


@dataclass(frozen=True, slots=True)
class _Timer:
    number: int
    ms: int
    every: bool
    focus: str | None
    """The session of the entry that asked for it, which it is about as well."""


class ScriptTimers:
    """The timers of one project's scripts, each tied to the worker that asked for it."""

    def __init__(
        self, call: Callable[[Script, int, str | None], Awaitable[bool]], tasks: Tasks
    ) -> None:
        self._call = call
        self._tasks = tasks
        self._asked: dict[WorkerConnection, dict[int, _Timer]] = {}
        self._running: dict[tuple[WorkerConnection, int], asyncio.Task[None]] = {}
        self._calling: set[WorkerConnection] = set()

    def ask(self, worker: WorkerConnection, script: Script | None, params: JsonObject) -> None:
        """Note a timer; it runs when its script is in force, so `script` is None before that."""
        number, ms = params.get("id"), params.get("ms")
        known = self._asked.setdefault(worker, {})
        if not _whole(number) or not _whole(ms) or len(known) >= MAX_TIMERS or number in known:
            return  # the worker's own checks say so to the script; this is for one that has none
        assert isinstance(number, int)
        assert isinstance(ms, int)
        every = params.get("every") is True
        shortest = SHORTEST_MS if every or worker in self._calling else 0
        timer = _Timer(number, min(max(ms, shortest), MAX_TIMER_MS), every, worker.focus)
        known[number] = timer
        if script is not None:
            self._start(script, worker, timer)

    def stop(self, worker: WorkerConnection, params: JsonObject) -> None:
        """Forget a timer."""
        number = params.get("id")
        if isinstance(number, int) and self._asked.get(worker, {}).pop(number, None) is not None:
            running = self._running.pop((worker, number), None)
            if running is not None and running is not asyncio.current_task():
                running.cancel()

    def in_force(self, script: Script) -> None:
        """Start what a script asked for while it was loaded."""
        worker = script.worker
        if worker is not None:
            for timer in [*self._asked.get(worker, {}).values()]:
                if (worker, timer.number) not in self._running:
                    self._start(script, worker, timer)

    def _drop(self, worker: WorkerConnection) -> None:
        for number in self._asked.pop(worker, {}):
            running = self._running.pop((worker, number), None)
            if running is not None and running is not asyncio.current_task():
                running.cancel()

    def keep_only(self, workers: Collection[WorkerConnection | None]) -> None:
        """Forget the timers of workers that are gone."""
        for worker in [*self._asked]:
            if worker not in workers:
                self._drop(worker)

    def _start(self, script: Script, worker: WorkerConnection, timer: _Timer) -> None:
        self._running[worker, timer.number] = self._tasks.start(
            self._run(script, worker, timer), f"timer of {script.stem}"
        )

    async def _run(self, script: Script, worker: WorkerConnection, timer: _Timer) -> None:
        going = True
        try:
            while going:
                await asyncio.sleep(timer.ms / 1000)
                if script.worker is not worker:
                    return
                self._calling.add(worker)
                try:
                    going = await self._call(script, timer.number, timer.focus) and timer.every
                finally:
                    self._calling.discard(worker)
        finally:
            self._asked.get(worker, {}).pop(timer.number, None)
            self._running.pop((worker, timer.number), None)


def _whole(value: JsonValue) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
