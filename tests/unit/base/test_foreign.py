"""`run_apart`: foreign work that cancels, interrupts or swallows does it to its own task only."""

from __future__ import annotations

import asyncio

import pytest

from kaged.base import KagedError, Tasks
from kaged.base.foreign import cancellations, run_apart
from raising import raises_code


class Panic(BaseException):
    """As the one that a Rust library raises."""


async def gives(value: object) -> object:
    await asyncio.sleep(0)
    return value


async def raises(error: BaseException) -> None:
    raise error


async def cancels(*, waits: bool) -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    if waits:
        await asyncio.sleep(0)
    return "done"


@pytest.mark.parametrize("value", ["text", None])
async def test_its_answer_is_given_back(value: object) -> None:
    assert await run_apart(gives(value), "foreign") is value


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(3), Panic()])
async def test_what_it_raises_is_raised_here_whatever_its_class(error: BaseException) -> None:
    for _ in range(2):
        with pytest.raises(type(error)) as caught:
            await run_apart(raises(error), "foreign")
        assert caught.value is error
        assert cancellations() == 0


@pytest.mark.parametrize("waits", [False, True])
async def test_a_cancellation_of_its_own_task_is_an_error_and_the_caller_goes_on(
    waits: bool,
) -> None:
    for _ in range(2):
        with raises_code("plugin_cancelled"):
            await run_apart(cancels(waits=waits), "foreign")
        assert cancellations() == 0
        await asyncio.sleep(0)
    with raises_code("plugin_cancelled"):
        await run_apart(raises(asyncio.CancelledError()), "foreign")


@pytest.mark.parametrize("reaction", ["ends", "swallows", "raises"])
async def test_a_cancellation_of_the_caller_reaches_it_and_stays_the_callers(
    reaction: str,
) -> None:
    reached: list[str] = []
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            reached.append(reaction)
            if reaction == "ends":
                raise
            if reaction == "raises":
                raise KagedError("instead", code="plugin_error") from None

    tasks = Tasks("test")
    caller = tasks.start(run_apart(work(), "foreign"), "caller")
    await begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert reached == [reaction]
    await tasks.close()
