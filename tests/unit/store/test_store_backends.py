"""Which database a URL means, and what its errors mean."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from kaged.store import StoreConflict, StoreCorrupt, StoreError, StoreUnavailable, sqlite_url
from kaged.store.backends import backend_for
from kaged.store.backends.sqlite_errors import translate
from kaged.store.backends.sqlite_file import examine_file, place_new_file
from raising import raises_code


@pytest.mark.parametrize("name", ["kaged.db", "a b.db", "50%25.db", "x?mode=ro.db", "ü#@:.db"])
def test_a_sqlite_url_names_a_file(tmp_path: Path, name: str) -> None:
    backend = backend_for(sqlite_url(tmp_path / name), tmp_path)
    assert backend.place == f"{tmp_path}/{name}"
    assert not backend.exists


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nonsense",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///relative.db",
        "sqlite:////x.db?mode=memory",
        "sqlite+aiosqlite:////x.db",
        "postgresql://user:s3cret@host/db",
    ],
)
def test_other_urls_are_refused_with_a_fix_and_without_their_password(
    tmp_path: Path, url: str
) -> None:
    with raises_code("store_url_invalid", StoreError) as caught:
        backend_for(url, tmp_path)
    assert caught.value.fix
    assert "s3cret" not in str(caught.value)


def error_with(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("as SQLite says")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_FULL, StoreUnavailable),
        (sqlite3.SQLITE_READONLY_DBMOVED, StoreUnavailable),
        (sqlite3.SQLITE_IOERR_FSYNC, StoreUnavailable),
        (sqlite3.SQLITE_CANTOPEN, StoreUnavailable),
        (sqlite3.SQLITE_BUSY, StoreUnavailable),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, StoreUnavailable),
        (sqlite3.SQLITE_CORRUPT, StoreCorrupt),
        (sqlite3.SQLITE_CORRUPT_INDEX, StoreCorrupt),
        (sqlite3.SQLITE_NOTADB, StoreCorrupt),
        (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, StoreConflict),
        (sqlite3.SQLITE_INTERRUPT, "store_timeout"),
        (sqlite3.SQLITE_ERROR, "store_error"),
        (0, "store_error"),
    ],
)
def test_a_result_code_becomes_the_error_that_a_caller_would_handle(
    code: int, expected: str | type[StoreError]
) -> None:
    wrapped = OperationalError("SELECT secret", {"value": "s3cret"}, error_with(code))
    for error in (error_with(code), wrapped):
        found = translate(error, "/x.db")
        assert isinstance(found, StoreError)
        assert expected in {found.code, type(found)}
        assert "s3cret" not in str(found)
        assert "SELECT" not in str(found)


def test_an_error_of_the_file_system_means_unavailable() -> None:
    assert isinstance(translate(PermissionError(13, "Permission denied"), "/x"), StoreUnavailable)


def test_an_error_of_someone_else_stays_theirs() -> None:
    assert translate(ValueError("x"), "/x") is None


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\x00", b"x" * 4096, b"\x00" * 200])
def test_a_file_that_is_no_database_is_seen_before_sqlite_sees_it(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(content)
    with pytest.raises(StoreCorrupt, match="Nothing was changed"):
        examine_file(path)
    assert path.read_bytes() == content


def test_a_new_file_is_never_put_over_another(tmp_path: Path) -> None:
    (tmp_path / "new").write_text("new", encoding="utf-8")
    (tmp_path / "old").write_text("old", encoding="utf-8")
    with pytest.raises(FileExistsError):
        place_new_file(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old").read_text(encoding="utf-8") == "old"


def test_a_new_file_gets_its_place_also_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", no_links)
    (tmp_path / "new").write_text("new", encoding="utf-8")
    place_new_file(tmp_path / "new", tmp_path / "there")
    assert (tmp_path / "there").read_text(encoding="utf-8") == "new"
    (tmp_path / "new").write_text("newer", encoding="utf-8")
    with pytest.raises(FileExistsError):
        place_new_file(tmp_path / "new", tmp_path / "there")
