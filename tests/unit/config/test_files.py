from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from kaged.config import ConfigFileInvalid, Problem, Severity
from kaged.config.files import MAX_FILE_BYTES, Privacy, is_missing, read_text


def refused(path: Path, **options: object) -> Problem:
    with pytest.raises(ConfigFileInvalid) as caught:
        read_text(path, **options)  # pyright: ignore[reportArgumentType] - options by name
    (problem,) = caught.value.problems
    assert problem.file == str(path)
    return problem


def test_text_is_read_with_what_identifies_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes("größe: 1\r\n".encode())
    found = read_text(path)
    assert (found.text, found.has_bom, found.real_path) == ("größe: 1\r\n", False, path)
    assert found.info.st_size == path.stat().st_size


def test_a_utf8_mark_at_the_beginning_is_taken_off(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    found = read_text(path)
    assert (found.text, found.has_bom) == ("a: 1\n", True)


def test_a_missing_file_is_told_apart_and_says_what_to_do(tmp_path: Path) -> None:
    problem = refused(tmp_path / "no", fix_missing="run init")
    assert (problem.code, problem.fix) == ("file_missing", "run init")
    assert is_missing(ConfigFileInvalid([problem]))
    (tmp_path / "file").write_text("x", encoding="utf-8")
    assert refused(tmp_path / "file" / "below").code == "file_missing"


def test_a_directory_in_its_place_is_named(tmp_path: Path) -> None:
    problem = refused(tmp_path)
    assert (problem.code, "a directory" in problem.message) == ("file_wrong_kind", True)


def test_a_fifo_that_nobody_writes_to_does_not_hang(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    problem = refused(path)
    assert (problem.code, "a FIFO" in problem.message) == ("file_wrong_kind", True)


def test_a_device_is_refused() -> None:
    assert refused(Path("/dev/zero")).code == "file_wrong_kind"


def test_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "loop"
    path.symlink_to(path)
    assert "link" in refused(path).message


def test_a_path_with_a_nul_is_refused() -> None:
    assert refused(Path("/tmp/a\0b")).code == "file_unreadable"


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EACCES, "file_unreadable"),
        (errno.ENXIO, "file_wrong_kind"),
        (errno.EIO, "file_unreadable"),
    ],
)
def test_a_file_that_cannot_be_opened_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: str
) -> None:
    path = tmp_path / "a"
    path.write_text("x", encoding="utf-8")

    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", fail)
    assert refused(path).code == code


def test_an_error_while_reading_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_text("x", encoding="utf-8")

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "read", fail)
    assert "Input/output" in refused(path).message


@pytest.mark.parametrize("size", [MAX_FILE_BYTES + 1, 10 * 1024 * 1024])
def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path, size: int) -> None:
    path = tmp_path / "big"
    with path.open("wb") as file:
        file.truncate(size)
    assert refused(path).code == "file_too_large"


def test_a_file_of_exactly_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "big"
    path.write_bytes(b"#" * MAX_FILE_BYTES)
    assert len(read_text(path).text) == MAX_FILE_BYTES


def test_a_file_that_grows_while_it_is_read_stays_within_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_text("x", encoding="utf-8")
    monkeypatch.setattr(os, "read", lambda handle, size: b"x" * size)
    assert refused(path).code == "file_too_large"


@pytest.mark.parametrize(
    ("data", "line", "words"),
    [
        (b"a: 1\nb: \xff\n", 2, "not UTF-8"),
        (b"a: 1\n\nb: \0\n", 3, "NUL"),
        ("a: 1".encode("utf-16"), None, "UTF-16"),
        ("a: 1".encode("utf-32"), None, "UTF-16"),
    ],
)
def test_bytes_that_are_no_text_are_found(
    tmp_path: Path, data: bytes, line: int | None, words: str
) -> None:
    path = tmp_path / "a"
    path.write_bytes(data)
    problem = refused(path)
    assert (problem.code, problem.line) == ("file_encoding", line)
    assert words in problem.message


def test_a_link_may_not_lead_out_of_the_project(tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (tmp_path / "secret").write_text("s", encoding="utf-8")
    (root / "inside").write_text("i", encoding="utf-8")
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "in").symlink_to("inside")
    assert refused(root / "out", inside=root).code == "file_outside_project"
    assert read_text(root / "in", inside=root).text == "i"


def test_a_linked_directory_on_the_way_may_not_lead_out_either(tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "f").write_text("x", encoding="utf-8")
    (root / ".kaged").symlink_to(tmp_path / "elsewhere")
    assert refused(root / ".kaged" / "f", inside=root).code == "file_outside_project"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o606, 0o610])
def test_a_private_file_that_others_may_open_is_refused_with_the_command(
    tmp_path: Path, mode: int
) -> None:
    path = tmp_path / "local.toml"
    path.write_text("", encoding="utf-8")
    path.chmod(mode)
    problem = refused(path, privacy=Privacy.PRIVATE)
    assert (problem.code, problem.fix) == ("file_permissions", f"chmod 600 {path}")
    path.chmod(0o600)
    assert read_text(path, privacy=Privacy.PRIVATE).text == ""


def test_a_trusted_file_that_anybody_may_change_is_refused_and_group_is_a_warning(
    tmp_path: Path,
) -> None:
    path = tmp_path / "config.toml"
    path.write_text("", encoding="utf-8")
    path.chmod(0o646)
    assert refused(path, privacy=Privacy.TRUSTED).code == "file_permissions"
    path.chmod(0o664)
    (warning,) = read_text(path, privacy=Privacy.TRUSTED).warnings
    assert (warning.severity, warning.code) == (Severity.WARNING, "file_permissions")
    path.chmod(0o644)
    assert read_text(path, privacy=Privacy.TRUSTED).warnings == ()


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.toml"
    path.write_text("", encoding="utf-8")
    path.chmod(0o600)
    owner = path.stat().st_uid
    real = os.fstat

    def foreign(handle: int) -> os.stat_result:
        info = list(real(handle))
        info[stat.ST_UID] = owner + 4711
        return os.stat_result(info)

    monkeypatch.setattr(os, "fstat", foreign)
    for privacy in (Privacy.PRIVATE, Privacy.TRUSTED):
        assert refused(path, privacy=privacy).code == "file_owner"
    assert read_text(path, privacy=Privacy.OPEN).text == ""


def test_a_file_that_is_replaced_while_it_is_opened_keeps_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_text("old", encoding="utf-8")
    real = os.fstat

    def replace_first(handle: int) -> os.stat_result:
        other = tmp_path / "new"
        other.write_text("new", encoding="utf-8")
        other.replace(path)
        return real(handle)

    monkeypatch.setattr(os, "fstat", replace_first)
    found = read_text(path, inside=tmp_path)
    assert (found.text, found.real_path) == ("old", path)


def test_a_name_that_looks_deleted_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a (deleted)"
    path.write_text("x", encoding="utf-8")
    assert read_text(path).real_path == path
