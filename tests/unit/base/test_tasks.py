from __future__ import annotations

import asyncio

import pytest

from kaged.base import KagedError, Tasks


class Failures:
    def __init__(self) -> None:
        self.seen: list[tuple[str, BaseException]] = []

    def __call__(self, name: str, error: BaseException) -> None:
        self.seen.append((name, error))


async def test_close_cancels_what_still_runs_and_waits_for_it() -> None:
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("cleaned up")

    tasks = Tasks("owner", Failures())
    tasks.start(forever(), "forever")
    await asyncio.sleep(0)
    await tasks.close()
    assert ended == ["cleaned up"]
    assert len(tasks) == 0


async def test_a_failing_task_is_reported_with_its_name() -> None:
    failures = Failures()
    tasks = Tasks("owner", failures)

    async def fail() -> None:
        raise KagedError("broken")

    with pytest.raises(KagedError):
        await tasks.start(fail(), "fail")
    assert [(name, str(error)) for name, error in failures.seen] == [("owner/fail", "broken")]


async def test_a_finished_task_is_forgotten_and_gives_its_result() -> None:
    failures = Failures()
    tasks = Tasks("owner", failures)

    async def answer() -> int:
        return 7

    assert await tasks.start(answer(), "answer") == 7
    await asyncio.sleep(0)
    assert len(tasks) == 0
    assert failures.seen == []


async def test_a_closed_owner_starts_nothing() -> None:
    tasks = Tasks("owner", Failures())
    await tasks.close()

    async def never() -> None:
        raise AssertionError("must not run")

    with pytest.raises(RuntimeError, match="owner is closed"):
        tasks.start(never(), "never")


async def test_a_task_may_close_its_own_owner() -> None:
    tasks = Tasks("owner", Failures())
    other = tasks.start(asyncio.Event().wait(), "other")

    async def close() -> str:
        await tasks.close()
        return "closed"

    assert await tasks.start(close(), "close") == "closed"
    assert other.cancelled()


def test_an_error_shows_its_fix_behind_the_message() -> None:
    error = KagedError("no bwrap", fix="apt-get install bubblewrap", path="/usr/bin/bwrap")
    assert str(error) == "no bwrap (apt-get install bubblewrap)"
    assert str(KagedError("plain")) == "plain"
    assert error.data == {"path": "/usr/bin/bwrap"}
    assert error.code == "internal"
