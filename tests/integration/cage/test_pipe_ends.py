"""A descriptor that an event loop was given is closed once: its number may be another's by then."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from kaged.base import Tasks
from kaged.cage import pipe_end
from kaged.cage.pipe_end import PipeEnd, connect_read_end, connect_write_end
from kaged.cage.stdio import connect_reader, connect_writer

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}
TURNS = 5

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    def go(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(work)

    return go


@pytest.fixture
def closes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers that we, and not the loop, have closed."""
    found: list[int] = []
    close = os.close

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def close(self, fd: int) -> None:
            found.append(fd)
            close(fd)

    monkeypatch.setattr(pipe_end, "os", Counting())
    return found


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


async def _turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def test_a_transport_closes_its_descriptor_and_nobody_closes_it_again(
    run: Run, closes: list[int]
) -> None:
    async def work() -> None:
        read, write = os.pipe()
        reader, _ = await connect_reader(read, asyncio.Protocol)
        writer, _ = await connect_writer(write, asyncio.BaseProtocol)
        by_loop = not isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop)
        reader.close()
        writer.close()
        await _turns()
        assert not _is_open(read)
        assert not _is_open(write)
        assert sorted(closes) == ([] if by_loop else sorted([read, write]))

    run(work())


@pytest.mark.parametrize("connect", [connect_read_end, connect_write_end])
def test_what_was_opened_after_a_cancelled_attach_stays_open(run: Run, connect: Any) -> None:
    """This is how one request closed the file of another: the number was given out again."""

    async def work() -> None:
        read, write = os.pipe()
        given, kept = (read, write) if connect is connect_read_end else (write, read)
        end = PipeEnd(given)
        tasks = Tasks("test", lambda _name, _error: None)
        attaching = tasks.start(connect(end, asyncio.Protocol), "attach")
        await asyncio.sleep(0)
        attaching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attaching
        await _turns()
        assert end.closed
        assert not _is_open(given)
        others = os.pipe()
        assert given in others
        end.close()
        await _turns()
        assert all(_is_open(fd) for fd in others)
        for fd in (kept, *others):
            os.close(fd)

    run(work())


def test_an_end_that_no_loop_can_take_is_closed(run: Run) -> None:
    async def work() -> None:
        def refuse() -> asyncio.Protocol:
            raise RuntimeError("no protocol")

        for connect in (connect_reader, connect_writer):
            read, write = os.pipe()
            given, kept = (read, write) if connect is connect_reader else (write, read)
            with pytest.raises(RuntimeError):
                await connect(given, refuse)
            await _turns()
            assert not _is_open(given)
            os.close(kept)

    run(work())


def test_an_end_that_was_never_handed_over_is_its_owners() -> None:
    read, write = os.pipe()
    end = PipeEnd(read)
    assert end.fileno() == read
    end.close()
    end.close()
    assert not _is_open(read)
    with pytest.raises(ValueError, match="closed"):
        end.fileno()
    os.close(write)
