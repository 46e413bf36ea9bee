"""Running a plugin's coroutine: at once where it does not wait, under a deadline where it does.

A hook that never waits is stepped to its end inside the caller's own task: no task, no timer. Only
one that suspends gets a timer, and goes on in the same task, so that what it asked of its current
task in the first step (a timeout scope, a task group) goes on to hold. Every step runs in a copied
context: a ContextVar that a plugin sets stays with the plugin. A hook is not trusted to end when
it is told to; one that will not is taken off the caller's task and finished, or closed, elsewhere.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Any, ClassVar

from kaged.base import KagedError, Tasks

CLEANUP_GRACE_S = 2.0
"""How long a cancelled hook may go on cleaning up before it is closed."""


class PluginTimedOut(KagedError):
    """A hook did not finish in time."""

    code: ClassVar[str] = "plugin_timeout"


class PluginCancelled(KagedError):
    """A hook cancelled itself, or the task it was running in."""

    code: ClassVar[str] = "plugin_cancelled"


async def finish(
    coroutine: Coroutine[Any, Any, Any],
    context: Context,
    waiting: Any,
    timeout_s: float,
    leftovers: Tasks,
) -> Any:
    """Drive a coroutine that has yielded `waiting` to its end and give its result.

    Raises:
        PluginTimedOut: it was not done after `timeout_s` seconds.
        PluginCancelled: it ended by a cancellation that nobody asked for.
    """
    deadline = _Deadline(timeout_s)
    try:
        result = await _relay(coroutine, context, waiting, deadline, leftovers)
    except BaseException:
        if deadline.expired:
            await deadline.undo()
            raise PluginTimedOut(f"exceeded {timeout_s:g}s timeout") from None
        raise
    finally:
        deadline.stop()
    if deadline.expired:  # done and late in the same turn of the loop
        await deadline.undo()
        raise PluginTimedOut(f"exceeded {timeout_s:g}s timeout")
    return result


class _Deadline:
    """A timer that cancels the current task, and knows its own cancellations from others'."""

    def __init__(self, timeout_s: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._requested = task.cancelling()
        self._timer = self._loop.call_later(timeout_s, self._fire)
        self.expired = False

    def _fire(self) -> None:
        self.expired = True
        self._task.cancel()

    def hurry(self) -> None:
        """Leave only the grace period: somebody is cancelling the caller."""
        self._timer.cancel()
        when = min(self._timer.when(), self._loop.time() + CLEANUP_GRACE_S)
        self._timer = self._loop.call_at(when, self._fire)

    def stop(self) -> None:
        self._timer.cancel()

    @property
    def cancelled_by_others(self) -> bool:
        """Say whether a cancellation is open that is not the deadline's own."""
        return self._task.cancelling() - int(self.expired) > self._requested

    async def undo(self) -> None:
        """Take the deadline's own cancellation back. Raises CancelledError for somebody else's."""
        self._task.uncancel()
        self.expired = False
        await absorb_cancel(self._task, self._requested)


@types.coroutine
def _relay(
    coroutine: Coroutine[Any, Any, Any],
    context: Context,
    waiting: Any,
    deadline: _Deadline,
    leftovers: Tasks,
) -> Generator[Any, Any, Any]:
    """Pass futures up and results down, each step in the plugin's context."""
    while True:
        thrown: BaseException | None = None
        try:
            yield waiting
        except BaseException as error:  # noqa: BLE001 - whatever arrives belongs to the hook first
            thrown = error
        try:
            if thrown is None:
                waiting = context.run(coroutine.send, None)
            else:
                waiting = context.run(coroutine.throw, thrown)
        except StopIteration as stop:
            if deadline.cancelled_by_others:  # swallowed, but the caller still wants it
                raise asyncio.CancelledError from None
            return stop.value
        except asyncio.CancelledError as error:
            if deadline.expired or deadline.cancelled_by_others:
                raise
            raise PluginCancelled("the hook cancelled itself") from error
        if isinstance(thrown, asyncio.CancelledError):
            if deadline.expired:  # it wants to wait longer, but not in the caller's time
                leftovers.start(_clean_up(coroutine, context, waiting), "hook-cleanup")
                raise asyncio.CancelledError
            if deadline.cancelled_by_others:
                deadline.hurry()


async def _clean_up(coroutine: Coroutine[Any, Any, Any], context: Context, waiting: Any) -> None:
    """Let a cancelled hook finish within the grace period, then close it."""
    try:
        async with asyncio.timeout(CLEANUP_GRACE_S):
            await _drain(coroutine, context, waiting)
    except Exception:  # noqa: BLE001 - boundary: the caller has its answer; this hook has none to give
        return
    finally:
        _close(coroutine, context)


@types.coroutine
def _drain(
    coroutine: Coroutine[Any, Any, Any], context: Context, waiting: Any
) -> Generator[Any, Any, None]:
    """Drive a cancelled hook on; stop at once when the grace period ends."""
    while True:
        yield waiting
        try:
            waiting = context.run(coroutine.send, None)
        except StopIteration:
            return


def _close(coroutine: Coroutine[Any, Any, Any], context: Context) -> None:
    try:
        context.run(coroutine.close)
    except Exception:  # noqa: BLE001 - boundary: a hook that will not even close is left alone
        return


async def absorb_cancel(task: asyncio.Task[Any], requested: int) -> None:
    """Take back a cancellation of the current task that is on its way but was not meant.

    The task had `requested` open cancellations when all was well. Raises CancelledError when
    somebody else asked for one.
    """
    if task.cancelling() > requested:
        raise asyncio.CancelledError
    try:
        await asyncio.sleep(0)  # a cancellation that is on its way arrives here
    except asyncio.CancelledError:
        if task.cancelling() > requested:
            raise


__all__ = ["PluginCancelled", "PluginTimedOut", "absorb_cancel", "finish"]
