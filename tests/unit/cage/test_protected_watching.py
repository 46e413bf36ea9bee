"""When a look at protected places is due: what the kernel tells, and what is not worth a look."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kaged.cage.protected import watching
from kaged.cage.protected.activity import read_activity
from kaged.cage.protected.tree import ProtectedTree
from kaged.cage.protected.watching import LookTimer, TreeWatch, Urgency
from kaged.kernel.protected_paths import ProtectedRules


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root of a tree with a repository and a folder beside it."""
    made = tmp_path / "p"
    for folder in (".git/objects", ".git/refs", ".git/hooks", ".vscode", "src/deep"):
        (made / folder).mkdir(parents=True)
    return made


@pytest.fixture
def tree(root: Path) -> ProtectedTree:
    """Return the tree, looked at once."""
    made = ProtectedTree(str(root), ProtectedRules())
    made.look()
    return made


@pytest.fixture
def watch(tree: ProtectedTree) -> Iterator[TreeWatch]:
    """Yield the watch on every folder of the tree."""
    made = TreeWatch.open(tree)
    assert made is not None
    assert made.follow()
    assert not made.follow()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("path", "urgency"),
    [
        (".envrc", Urgency.NOW),
        ("src/deep/.npmrc", Urgency.NOW),
        (".git/hooks/pre-commit", Urgency.NOW),
        (".git/config", Urgency.NOW),
        (".vscode/anything", Urgency.NOW),
        (".git/index.lock", Urgency.NONE),
        ("src/a.py", Urgency.NONE),
        ("Makefile", Urgency.NONE),
        (".vscode/.kaged-0123", Urgency.NONE),
    ],
)
def test_only_what_may_be_planted_asks_for_a_look(
    root: Path, watch: TreeWatch, path: str, urgency: Urgency
) -> None:
    for _ in range(2):
        (root / path).write_text("x", encoding="utf-8")
        assert watch.read() is urgency
        assert watch.read() is Urgency.NONE


def test_a_file_that_is_still_open_gets_a_moment(root: Path, watch: TreeWatch) -> None:
    with (root / ".envrc").open("w", encoding="utf-8") as file:
        file.write("x")
        file.flush()
        assert watch.read() is Urgency.BEGUN
    assert watch.read() is Urgency.NOW
    (root / ".envrc").rename(root / "src/.envrc")
    assert watch.read() is Urgency.NOW
    (root / "src/.envrc").chmod(0o755)
    assert watch.read() is Urgency.BEGUN


def test_a_new_folder_is_watched_after_the_next_look(
    root: Path, tree: ProtectedTree, watch: TreeWatch
) -> None:
    (root / "src/new").mkdir()
    assert watch.read() is Urgency.FOLDERS
    (root / "src/new/.envrc").write_text("x", encoding="utf-8")
    assert watch.read() is Urgency.NONE
    tree.look()
    assert watch.follow()
    (root / "src/new/.npmrc").write_text("x", encoding="utf-8")
    assert watch.read() is Urgency.NOW
    (root / "src/inner/.git").mkdir(parents=True)
    assert watch.read() is Urgency.FOLDERS
    # A folder that is gone, and one that comes in its place.
    for name in (".envrc", ".npmrc"):
        (root / "src/new" / name).unlink()
    (root / "src/new").rmdir()
    watch.read()
    tree.look()
    watch.follow()
    (root / "src/new").mkdir()
    watch.read()
    tree.look()
    assert watch.follow()
    (root / "src/new/.envrc").write_text("x", encoding="utf-8")
    assert watch.read() is Urgency.NOW


def test_where_there_is_no_room_protected_folders_come_first(
    root: Path, tree: ProtectedTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        (root / f"a{number}").mkdir()
    (root / "z/.git/hooks").mkdir(parents=True)
    tree.look()
    nearest = tree.nearest_folders(6)
    assert nearest[0] == ()
    assert set(nearest) == {
        (),
        (".git",),
        (".git", "hooks"),
        (".vscode",),
        ("z", ".git"),
        ("z", ".git", "hooks"),
    }
    monkeypatch.setattr(watching, "MAX_WATCHES", 6)
    watch = TreeWatch.open(tree)
    assert watch is not None
    watch.follow()
    (root / "z/.git/hooks/pre-push").write_text("x", encoding="utf-8")
    (root / "a1/.envrc").write_text("x", encoding="utf-8")  # left to the look of every second
    assert watch.read() is Urgency.NOW
    watch.close()
    watch.close()


def test_events_that_were_lost_ask_for_a_look(watch: TreeWatch) -> None:
    lost = watching._HEADER.pack(-1, watching._OVERFLOW, 0, 0)
    reader, writer = os.pipe()
    os.write(writer, lost)
    os.close(writer)
    real, watch.fd = watch.fd, reader
    assert watch.read() is Urgency.NOW
    os.close(reader)
    watch.fd = real


async def test_a_look_is_due_at_once_then_after_events_and_at_the_latest_in_time(
    root: Path, watch: TreeWatch
) -> None:
    loop = asyncio.get_running_loop()
    timer = LookTimer(watch)
    far_s = loop.time() + 1000
    async with asyncio.timeout(20):
        assert await timer.wait(far_s)  # what was there before the watch
        for path in (".envrc", "src/deep/.envrc"):
            (root / path).write_text("x", encoding="utf-8")
            assert await timer.wait(far_s)
            timer.looked(0.001)
        assert not await timer.wait(loop.time() + 0.02)
        timer.looked(1000.0)  # a look that takes long is not made all the time
        timer.ask(Urgency.NOW)
        assert not await timer.wait(loop.time() + 0.02)
    timer.close()
    timer.close()
    assert watch.fd < 0


async def test_without_watches_there_is_the_look_in_time() -> None:
    timer = LookTimer(None)
    loop = asyncio.get_running_loop()
    assert await timer.wait(loop.time() + 1000)
    assert not await timer.wait(loop.time() + 0.01)
    timer.close()


def test_a_process_that_runs_is_not_at_rest() -> None:
    assert read_activity(os.getpid()) is None
    assert read_activity(2**22 + 1) is None
