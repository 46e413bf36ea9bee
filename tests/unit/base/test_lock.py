"""One daemon per home."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kaged.base.instance_lock import Holder, InstanceLock, holder_of
from raising import raises_code


def test_the_second_daemon_is_told_the_pid_of_the_first(tmp_path: Path) -> None:
    lock = InstanceLock.acquire(tmp_path / "lock", 5)
    with raises_code("daemon_running") as caught:
        InstanceLock.acquire(tmp_path / "lock", 6)
    assert caught.value.data["pid"] == os.getpid()
    assert str(os.getpid()) in caught.value.message
    lock.release()


def test_asking_who_holds_it_does_not_take_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert holder_of(path) is None
    lock = InstanceLock.acquire(path, 5)
    assert holder_of(path) == Holder(os.getpid(), 5)
    lock.release()
    assert holder_of(path) is None
    InstanceLock.acquire(path, 6).release()


def test_a_note_without_a_holder_is_stale_and_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text('{"pid": 4194999, "started_ms": 1}', encoding="ascii")
    assert holder_of(path) is None
    lock = InstanceLock.acquire(path, 9)
    assert lock.stale == Holder(4194999, 1)
    assert holder_of(path) == Holder(os.getpid(), 9)
    lock.release()


@pytest.mark.parametrize("note", ["", "{", "[]", '{"pid": "x"}', '{"pid": -1, "started_ms": 1}'])
def test_a_note_that_makes_no_sense_is_no_holder(tmp_path: Path, note: str) -> None:
    path = tmp_path / "lock"
    path.write_text(note, encoding="ascii")
    lock = InstanceLock.acquire(path, 9)
    assert lock.stale is None
    lock.release()


def test_a_holder_without_a_readable_note_is_still_a_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = InstanceLock.acquire(path, 9)
    path.write_text("garbage", encoding="ascii")
    assert holder_of(path) == Holder(0, 0)
    with raises_code("daemon_running"):
        InstanceLock.acquire(path, 9)
    lock.release()


def test_releasing_twice_is_fine(tmp_path: Path) -> None:
    lock = InstanceLock.acquire(tmp_path / "lock", 5)
    lock.release()
    lock.release()


def test_a_home_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with raises_code("home_unusable") as caught:
        InstanceLock.acquire(tmp_path / "no" / "lock", 5)
    assert str(tmp_path / "no") in str(caught.value)


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious", encoding="ascii")
    (tmp_path / "lock").symlink_to(tmp_path / "target")
    with raises_code("home_unusable"):
        InstanceLock.acquire(tmp_path / "lock", 5)
    assert (tmp_path / "target").read_text(encoding="ascii") == "precious"


def test_a_full_disk_at_locking_is_said_and_leaves_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int, _data: bytes, _at: int) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with raises_code("home_unusable", match="No space left"):
            InstanceLock.acquire(tmp_path / "lock", 5)
    InstanceLock.acquire(tmp_path / "lock", 5).release()
