"""The key and the head live in files that only their owner can read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kaged.audit import AuditKeyInvalid, ChainHead, ChainKey, HeadFile, load_key, open_key
from kaged.audit.keyfile import UNREADABLE, create_key, write_private

KEY = ChainKey(b"k" * 32)


def test_a_key_is_made_once_and_then_the_same(tmp_path: Path) -> None:
    path = tmp_path / "home" / "audit.key"
    first = open_key(path, chain_exists=False)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert open_key(path, chain_exists=True).key_id == first.key_id
    assert list(path.parent.iterdir()) == [path]


def test_two_keys_differ(tmp_path: Path) -> None:
    ids = {create_key(tmp_path / f"{number}.key").key_id for number in range(10)}
    assert len(ids) == 10


def test_a_lost_key_is_not_replaced_in_silence(tmp_path: Path) -> None:
    with pytest.raises(AuditKeyInvalid) as caught:
        open_key(tmp_path / "audit.key", chain_exists=True)
    assert "backup" in str(caught.value.fix)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601])
def test_a_key_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "audit.key"
    create_key(path)
    path.chmod(mode)
    with pytest.raises(AuditKeyInvalid, match="only its owner"):
        load_key(path)


@pytest.mark.parametrize("content", [b"", b"zz", b"ab" * 31, b"\xff" * 64, b"\x00" * 4096])
def test_a_file_without_a_key_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "audit.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(AuditKeyInvalid, match="holds no key"):
        load_key(path)


def test_a_link_or_a_folder_is_no_key_file(tmp_path: Path) -> None:
    create_key(tmp_path / "real.key")
    (tmp_path / "link.key").symlink_to(tmp_path / "real.key")
    (tmp_path / "folder.key").mkdir(mode=0o700)
    for name in ("link.key", "folder.key"):
        with pytest.raises(AuditKeyInvalid):
            load_key(tmp_path / name)


def test_creating_never_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "audit.key"
    create_key(path)
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        create_key(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_head_file_gives_back_what_was_written(tmp_path: Path) -> None:
    head = HeadFile(tmp_path / "audit.head")
    assert head.read() is None
    for seq in (1, 2):
        anchor = KEY.sign_anchor(ChainHead(seq, "a" * 64), 7)
        head.write(anchor)
        assert head.read() == anchor
    assert head.path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [head.path]


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"version":1,"seq":"x"}'])
def test_a_head_file_with_something_else_in_it_is_unreadable(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "audit.head"
    path.write_bytes(content)
    found = HeadFile(path).read()
    assert found == UNREADABLE
    assert not KEY.holds_anchor(UNREADABLE)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_private(path, b"old", replace=True)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_private(path, b"new", replace=True)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
