from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from kaged.config import EditRefused
from kaged.config.editing import edit_toml, edit_yaml
from kaged.config.files import Privacy
from kaged.config.tomledit import TomlEdit
from kaged.config.yamledit import YamlEdit
from raising import raises_code


def set_a(edit: YamlEdit) -> None:
    edit.set(("a",), 2)


def stale_files(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if "tmp" in path.name]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "f.yaml"
    path.write_text("a: 1 # one\nb: 2\n", encoding="utf-8")
    return path


def test_an_edit_keeps_comments_mode_and_the_rest(file: Path) -> None:
    file.chmod(0o640)
    assert edit_yaml(file, set_a) is True
    assert file.read_text(encoding="utf-8") == "a: 2 # one\nb: 2\n"
    assert file.stat().st_mode & 0o777 == 0o640
    assert stale_files(file.parent) == []


def test_an_edit_that_changes_nothing_writes_nothing(file: Path) -> None:
    before = file.stat().st_mtime_ns, file.stat().st_ino
    assert edit_yaml(file, lambda edit: edit.set(("a",), 1)) is False
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == before


def test_the_mark_at_the_beginning_and_line_ends_are_kept(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    edit_yaml(file, lambda edit: edit.set(("c",), 3))
    assert file.read_bytes() == b"\xef\xbb\xbfa: 1\r\nb: 2\r\nc: 3\r\n"


@pytest.mark.parametrize("call", ["fsync", "write", "fchmod"])
def test_a_failing_disk_leaves_the_old_file_whole(
    file: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with raises_code("config_write_failed", match="No space left"):
        edit_yaml(file, set_a)
    monkeypatch.undo()
    assert file.read_text(encoding="utf-8") == "a: 1 # one\nb: 2\n"
    assert stale_files(file.parent) == []


def test_a_failing_rename_leaves_the_old_file_whole(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "replace", fail)
    with raises_code("config_write_failed"):
        edit_yaml(file, set_a)
    assert file.read_text(encoding="utf-8") == "a: 1 # one\nb: 2\n"
    assert stale_files(file.parent) == []


def test_a_directory_that_cannot_be_flushed_is_told_after_the_write(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync
    calls: list[int] = []

    def second_fails(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")
        real(handle)

    monkeypatch.setattr(os, "fsync", second_fails)
    with raises_code("config_write_failed", match="was written"):
        edit_yaml(file, set_a)
    assert file.read_text(encoding="utf-8") == "a: 2 # one\nb: 2\n"


def test_a_file_that_somebody_else_changed_meanwhile_is_left_alone(file: Path) -> None:
    def change(edit: YamlEdit) -> None:
        edit.set(("a",), 2)
        file.write_text("a: theirs\n", encoding="utf-8")

    with raises_code("config_changed"):
        edit_yaml(file, change)
    assert file.read_text(encoding="utf-8") == "a: theirs\n"


def test_a_file_that_is_locked_by_another_program_is_busy(file: Path) -> None:
    handle = os.open(file.parent, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with raises_code("config_busy"):
            edit_yaml(file, set_a)
    finally:
        os.close(handle)
    assert edit_yaml(file, set_a)


def test_a_link_is_written_through_and_stays(tmp_path: Path) -> None:
    target = tmp_path / "dotfiles" / "config.toml"
    target.parent.mkdir()
    target.write_text("a = 1\n", encoding="utf-8")
    target.chmod(0o600)
    link = tmp_path / "config.toml"
    link.symlink_to(target)
    edit_toml(link, lambda edit: edit.set(("a",), 2))
    assert link.is_symlink()
    assert target.read_text(encoding="utf-8") == "a = 2\n"


def test_a_link_that_leaves_the_project_is_not_written_through(tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    outside = tmp_path / "outside.yaml"
    outside.write_text("a: 1\n", encoding="utf-8")
    (root / "p.yaml").symlink_to(outside)
    with pytest.raises(Exception, match="leaves the project"):
        edit_yaml(root / "p.yaml", set_a, inside=root)
    assert outside.read_text(encoding="utf-8") == "a: 1\n"


def test_a_new_toml_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "local.toml"
    edit_toml(
        path,
        lambda edit: edit.set(("plugins", "x", "installed"), "1.0.0"),
        privacy=Privacy.PRIVATE,
    )
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text(encoding="utf-8") == '[plugins.x]\ninstalled = "1.0.0"\n'


def test_a_missing_directory_is_said_plainly(tmp_path: Path) -> None:
    with raises_code("config_write_failed", match="cannot be opened"):
        edit_toml(tmp_path / "no" / "config.toml", lambda edit: edit.set(("a",), 1))


def test_an_open_secrets_file_is_not_edited(tmp_path: Path) -> None:
    path = tmp_path / "local.toml"
    path.write_text("a = 1\n", encoding="utf-8")
    path.chmod(0o644)
    with pytest.raises(Exception, match="chmod 600"):
        edit_toml(path, lambda edit: edit.set(("a",), 2), privacy=Privacy.PRIVATE)


def test_a_leftover_of_a_crash_is_replaced(file: Path) -> None:
    stale_file = file.with_name(f".kaged-tmp-{file.name}-{os.getpid()}")
    stale_file.write_text("half", encoding="utf-8")
    assert edit_yaml(file, set_a)
    assert not stale_file.exists()


def test_a_refused_edit_writes_nothing(file: Path) -> None:
    def through_a_number(edit: YamlEdit) -> None:
        edit.set(("b",), 5)
        edit.set(("a", "x"), 1)

    with pytest.raises(EditRefused):
        edit_yaml(file, through_a_number)
    assert file.read_text(encoding="utf-8") == "a: 1 # one\nb: 2\n"


def test_a_broken_file_is_not_edited(file: Path, tmp_path: Path) -> None:
    file.write_text("a: [1\n", encoding="utf-8")
    with pytest.raises(Exception, match="not valid YAML"):
        edit_yaml(file, set_a)
    broken = tmp_path / "c.toml"
    broken.write_text("a = \n", encoding="utf-8")
    broken.chmod(0o600)

    def change(edit: TomlEdit) -> None:
        edit.set(("a",), 1)

    with pytest.raises(Exception, match="not valid TOML"):
        edit_toml(broken, change)
    assert file.read_text(encoding="utf-8") == "a: [1\n"
