"""Pipes in what a cage may only read: which are found, when, and what happens to large trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fakes.file_clock import settle
from kaged.cage import named_pipes
from kaged.cage.errors import GrantRefused
from kaged.cage.named_pipes import NamedPipes
from kaged.kernel.policy import FsGrant, FsMode

RO, RW = FsMode.RO, FsMode.RW


def pipe(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return str(path)


def grants(*found: tuple[Path | str, FsMode]) -> tuple[FsGrant, ...]:
    return tuple(FsGrant(str(path), mode) for path, mode in found)


async def test_pipes_of_every_depth_and_name_are_found_and_nothing_else(tmp_path: Path) -> None:
    root = tmp_path / "p"
    expected = [pipe(root / "a"), pipe(root / "deep/er/b\nc"), pipe(root / "deep/d")]
    (root / "file").write_text("x", encoding="utf-8")
    (root / "link").symlink_to(root / "a")
    (root / "away").symlink_to(tmp_path)
    pipe(tmp_path / "beside")
    found = await NamedPipes().find(grants((root, RO)))
    assert (sorted(found.paths), found.too_large) == (sorted(expected), ())


async def test_a_pipe_made_or_removed_later_counts_at_the_next_start(tmp_path: Path) -> None:
    pipes = NamedPipes()
    (tmp_path / "sub").mkdir()
    settle()
    assert (await pipes.find(grants((tmp_path, RO)))).paths == ()
    made = pipe(tmp_path / "sub/second")
    for _ in range(2):
        assert (await pipes.find(grants((tmp_path, RO)))).paths == (made,)
        settle()
    Path(made).unlink()
    assert (await pipes.find(grants((tmp_path, RO)))).paths == ()


async def test_an_unchanged_tree_is_not_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = pipe(tmp_path / "one/pipe")
    settle()
    pipes = NamedPipes()
    first = await pipes.find(grants((tmp_path, RO)))
    listed: list[str] = []
    scandir = os.scandir

    def note(path: str) -> object:
        listed.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", note)
    assert (await pipes.find(grants((tmp_path, RO)))).paths == first.paths == (made,)
    assert listed == []
    second = pipe(tmp_path / "one/second")
    assert set((await pipes.find(grants((tmp_path, RO)))).paths) == {made, second}
    assert listed == [str(tmp_path / "one")]


async def test_a_folder_that_changed_just_now_is_listed_again(tmp_path: Path) -> None:
    """Two changes within one tick of the file system's clock have one time stamp."""
    pipes = NamedPipes()
    before = tmp_path.stat().st_ctime_ns
    assert (await pipes.find(grants((tmp_path, RO)))).paths == ()
    made = pipe(tmp_path / "pipe")
    assert tmp_path.stat().st_ctime_ns >= before
    assert (await pipes.find(grants((tmp_path, RO)))).paths == (made,)


async def test_only_what_is_read_only_in_the_end_counts(tmp_path: Path) -> None:
    outer = pipe(tmp_path / "outer")
    pipe(tmp_path / "rw/pipe")
    inner = pipe(tmp_path / "rw/ro/pipe")
    deep = pipe(tmp_path / "again/pipe")
    found = await NamedPipes().find(
        grants(
            (tmp_path, RO),
            (tmp_path / "rw", RW),
            (tmp_path / "rw/ro", RO),
            (tmp_path / "again", RO),
        )
    )
    assert sorted(found.paths) == sorted([outer, inner, deep])
    assert (await NamedPipes().find(grants((tmp_path, RW)))).paths == ()


@pytest.mark.parametrize("path", ["/", "/usr", "/usr/share", "/proc/self", "/dev", "/run", "/tmp"])
async def test_the_systems_own_trees_are_not_walked(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "scandir", None)
    assert (await NamedPipes().find(grants((path, RO)))).paths == ()


async def test_more_pipes_than_can_be_covered_refuse_the_grant(tmp_path: Path) -> None:
    for number in range(named_pipes.MAX_PIPES):
        pipe(tmp_path / f"{number % 3}/{number}")
    assert len((await NamedPipes().find(grants((tmp_path, RO)))).paths) == named_pipes.MAX_PIPES
    pipe(tmp_path / "more")
    with pytest.raises(GrantRefused, match="more than 64 named pipes") as caught:
        await NamedPipes().find(grants((tmp_path, RO)))
    assert caught.value.path == str(tmp_path)


@pytest.mark.parametrize("limit", ["MAX_FOLDERS", "MAX_ENTRIES"])
async def test_a_tree_that_is_too_large_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(named_pipes, limit, 5)
    for number in range(7):
        (tmp_path / "large" / str(number)).mkdir(parents=True)
    pipe(tmp_path / "small/pipe")
    found = await NamedPipes().find(grants((tmp_path / "large", RO), (tmp_path / "small", RO)))
    assert found.too_large == (str(tmp_path / "large"),)
    assert found.paths == (str(tmp_path / "small/pipe"),)


async def test_a_folder_that_can_be_entered_and_not_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever knows a name in it could open the pipe of that name."""
    (tmp_path / "blind").mkdir()
    scandir = os.scandir

    def refuse(path: str) -> object:
        if path.endswith("blind"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = await NamedPipes().find(grants((tmp_path, RO)))
    assert found.too_large == (str(tmp_path),)


async def test_no_more_trees_are_remembered_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named_pipes, "MAX_TREES", 2)
    pipes = NamedPipes()
    made = [pipe(tmp_path / f"{number}/pipe") for number in range(4)]
    for _ in range(2):
        for path in made:
            found = await pipes.find(grants((Path(path).parent, RO)))
            assert found.paths == (path,)
