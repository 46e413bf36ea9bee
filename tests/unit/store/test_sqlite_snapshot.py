"""Databases that somebody writes to are copied as of one moment; other files are left alone."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from kaged.store.backends.sqlite_snapshot import snapshot


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_what_is_committed_is_in_the_copy_and_what_is_not_is_not(tmp_path: Path, mode: str) -> None:
    path, target = tmp_path / "own%20 ?#.db", tmp_path / "copy"
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute(f"PRAGMA journal_mode = {mode}").fetchall()
        writer.execute("CREATE TABLE t (n)")
        writer.execute("INSERT INTO t VALUES (1)")
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO t VALUES (2)")
        assert snapshot(path, target)
        writer.execute("COMMIT")
    with closing(sqlite3.connect(target)) as copy:
        assert copy.execute("SELECT n FROM t").fetchall() == [(1,)]
    assert target.stat().st_mode & 0o777 == 0o600


def test_other_files_links_and_what_is_torn_are_not_copied_so(tmp_path: Path) -> None:
    target = tmp_path / "copy"
    plain, torn, link = (tmp_path / name for name in ("plain", "torn", "link"))
    plain.write_text("SQLite format 2")
    torn.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    link.symlink_to(torn)
    for path in (plain, torn, link, tmp_path, tmp_path / "gone"):
        target.write_text("of before")
        assert not snapshot(path, target)
        assert not target.exists()


def test_a_journal_that_a_guest_has_left_is_not_played_back(tmp_path: Path) -> None:
    """A hot journal may name any file, which whoever rolls it back then deletes."""
    path, journal = tmp_path / "own.db", tmp_path / "own.db-journal"
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("CREATE TABLE t (n)")
        writer.execute("INSERT INTO t VALUES (1)")
        writer.commit()
        writer.execute("PRAGMA cache_size = 1")
        writer.execute("PRAGMA synchronous = FULL")
        writer.execute("BEGIN IMMEDIATE")
        writer.executemany("INSERT INTO t VALUES (?)", [("x" * 2000,)] * 50)
        left, content = journal.read_bytes(), path.read_bytes()
    assert left
    path.write_bytes(content)
    journal.write_bytes(left)
    snapshot(path, tmp_path / "copy")
    assert journal.read_bytes() == left
    assert path.read_bytes() == content
