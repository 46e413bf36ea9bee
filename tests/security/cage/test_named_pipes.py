"""A named pipe in what a cage may only read is no way to the host, whenever it was made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kaged.cage import CageRequest, Spawner
from kaged.cage.collect import Collected, collect
from kaged.cage.errors import GrantRefused
from kaged.cage.named_pipes import MAX_PIPES, NamedPipes, PipesFound
from kaged.kernel.policy import CagePolicy, FsGrant, FsMode
from security.cage.conftest import Events

SEND = 'for pipe in "$@"; do printf out > "$pipe" && echo sent; done; true'


class Reader:
    """A process of the host that waits for what comes out of a pipe."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def close(self) -> bytes:
        got = os.read(self._fd, 100)
        os.close(self._fd)
        return got


async def run(spawner: Spawner, request: CageRequest) -> Collected:
    return await collect(await spawner.spawn(request))


def request(place: Path, *pipes: Path, mode: FsMode = FsMode.RO) -> CageRequest:
    policy = CagePolicy(fs=(FsGrant(str(place), mode),))
    return CageRequest("pipes", policy, ("/bin/sh", "-c", SEND, "sh", *map(str, pipes)))


async def test_a_pipe_that_is_made_between_two_starts_is_covered_at_the_second(
    spawner: Spawner, place: Path
) -> None:
    first = Reader(place / "first")
    assert (await run(spawner, request(place, first.path))).stdout == b""
    second = Reader(place / "second")
    said = await run(spawner, request(place, first.path, second.path))
    assert (said.stdout, said.stderr.count(b"Permission denied")) == (b"", 2)
    assert (first.close(), second.close()) == (b"", b"")


async def test_a_pipe_in_a_writable_grant_is_left_alone(spawner: Spawner, place: Path) -> None:
    """The guest could write a file there just as well, and must be able to remove it."""
    pipe = Reader(place / "pipe")
    said = await run(spawner, request(place, pipe.path, mode=FsMode.RW))
    assert said.stdout == b"sent\n"
    assert pipe.close() == b"out"


async def test_a_pipe_that_vanishes_before_it_is_covered_stops_no_start(
    spawner: Spawner, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, stays = place / "gone", Reader(place / "stays")
    os.mkfifo(gone)
    find = NamedPipes.find
    looks: list[PipesFound] = []

    async def vanish(self: NamedPipes, grants: tuple[FsGrant, ...]) -> PipesFound:
        looks.append(await find(self, grants))
        gone.unlink(missing_ok=True)
        return looks[-1]

    monkeypatch.setattr(NamedPipes, "find", vanish)
    said = await run(spawner, request(place, stays.path))
    assert (said.report.exit_code, said.stdout) == (0, b"")
    assert [str(gone) in look.paths for look in looks] == [True, False]
    assert stays.close() == b""


async def test_more_pipes_than_can_be_covered_start_nothing(
    spawner: Spawner, place: Path, events: Events
) -> None:
    for number in range(MAX_PIPES):
        os.mkfifo(place / str(number))
    last = place / str(MAX_PIPES - 1)
    assert (await run(spawner, request(place, last))).stdout == b""
    os.mkfifo(place / "one-more")
    with pytest.raises(GrantRefused, match="named pipes"):
        await spawner.spawn(request(place))
    assert events.last("cage.refused")["path"] == str(place)
    assert not spawner.running


async def test_a_tree_that_is_too_large_to_look_at_is_named_at_the_start(
    spawner: Spawner, place: Path, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kaged.cage.named_pipes.MAX_FOLDERS", 2)
    await run(spawner, request(place))
    assert not [one for one in weaknesses(events) if "named pipes" in one]
    for number in range(3):
        (place / str(number)).mkdir()
    await run(spawner, request(place))
    assert f"named pipes: {place} could not be looked at whole" in weaknesses(events)


def weaknesses(events: Events) -> list[str]:
    found = events.last("cage.started")["weaknesses"]
    assert isinstance(found, list)
    return [str(one) for one in found]
