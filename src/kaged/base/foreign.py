"""Foreign code in our process: how it runs apart, what it raised, and a loop that outlives it.

The class of an error that a policy plugin or a library raises is code as well: showing it may raise
anything, a cancellation included, or return text without end. So nobody calls `str` or `repr` on
such an error but this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from kaged.base.errors import KagedError
from kaged.base.tasks import Tasks

T = TypeVar("T")

MAX_CHARS: Final = 500

_type_name = type.__dict__["__name__"].__get__


def describe_error(error: BaseException, *, as_repr: bool = False, limit: int = MAX_CHARS) -> str:
    """Return the class and the words of an error, or its `repr`; never raises, never endless."""
    name = type_name(error)
    try:
        words = bounded(repr(error) if as_repr else str(error), limit)
    except BaseException:  # noqa: BLE001 - boundary: the class of the error is foreign code
        return name
    if as_repr:
        return words
    return bounded(f"{name}: {words}" if words else name, limit)


def type_name(value: object) -> str:
    """Return the name of a value's class, below what its metaclass says."""
    return bounded(str(_type_name(type(value))), MAX_CHARS)


def bounded(text: str, limit: int = MAX_CHARS) -> str:
    """Return an exact `str` of at most so many characters, which every encoding takes."""
    # Below the overrides of a subclass, which `repr` may return as well.
    kept = str.__getitem__(text, slice(0, limit))
    more = str.__len__(text) > limit
    plain = kept.encode("utf-8", "backslashreplace").decode("utf-8")
    return f"{plain[: limit - 1]}…" if more else plain


async def run_apart(work: Coroutine[Any, Any, T], name: str) -> T:
    """Run foreign work in a task of its own, so that it can cancel nobody's but that one.

    What it raises is raised here, whatever its class: a task that ends with an interrupt would
    end the event loop.

    Raises:
        KagedError: `plugin_cancelled`; it ended by a cancellation that the caller did not ask for.
        CancelledError: the caller was cancelled, whatever the work made of that.
    """
    raised: list[BaseException] = []

    async def guarded() -> T:
        try:
            return await work
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - raised again outside
            raised.append(error)
            raise _Raised from None

    asked = cancellations()
    # Waiting for a task hands a cancellation on to it, and waits until it has ended.
    apart = Tasks(name, _told_anyway).start(guarded(), "apart")
    try:
        result = await apart
    except asyncio.CancelledError as error:
        if cancellations() > asked:
            raise
        raise KagedError("it cancelled the task it runs in", code="plugin_cancelled") from error
    except _Raised:
        if cancellations() > asked:
            raise asyncio.CancelledError from None
        raise raised[0] from None
    if cancellations() > asked:
        raise asyncio.CancelledError
    return result


class _Raised(Exception):
    """Foreign code raised something; no class of its own goes through the event loop."""


def _told_anyway(name: str, error: BaseException) -> None:
    """Leave it to whoever waits for the task."""


def run_to_end(
    runner: asyncio.Runner,
    main: Callable[[], Coroutine[Any, Any, T]],
    task: Callable[[], asyncio.Task[T] | None],
    told: Callable[[BaseException], None],
) -> T:
    """Run a program's life to its end, whatever foreign code throws into the event loop.

    An interrupt or exit that a task raises goes through the loop and ends it. Once `task` names
    the life itself, which catches its signals from then on, none comes from the operator: it is a
    policy's or a library's, in a task that it began by itself, and ends nothing but that.
    """

    def begin() -> T:
        return runner.run(main())

    def go_on() -> T:
        life = task()
        assert life is not None
        return runner.get_loop().run_until_complete(life)

    run = begin
    while True:
        try:
            return run()
        except (KeyboardInterrupt, SystemExit) as error:
            life = task()
            if life is None or life.done():
                raise
            told(error)
            run = go_on


def cancellations() -> int:
    """Return how often somebody asked the running task to end.

    A `CancelledError` that comes without a further one was raised by foreign code itself.
    """
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
