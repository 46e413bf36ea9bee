"""What was installed with the daemon is found, in an environment of its own and for one user."""

from __future__ import annotations

import site
import sysconfig
from pathlib import Path

import pytest

from kaged.base.installed import find_installed, library_folders


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def get_path(kind: str, scheme: str = "own") -> str:
        return str(tmp_path / ("own" if scheme == "own" else "user") / kind)

    monkeypatch.setattr(sysconfig, "get_path", get_path)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    return tmp_path


def _program(folder: Path) -> str:
    folder.mkdir(parents=True)
    made = folder / "rg"
    made.write_text("#!/bin/sh\n", encoding="utf-8")
    made.chmod(0o755)
    return str(made)


def test_ones_own_comes_before_the_users_and_that_before_the_search_path(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    assert find_installed("rg") is None
    for place in ("path", "user/scripts", "own/scripts"):
        made = _program(folders / place)
        assert find_installed("rg") == made


def test_an_environment_of_its_own_does_not_look_at_the_users(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _program(folders / "user/scripts")
    monkeypatch.setattr(site, "ENABLE_USER_SITE", False)
    assert find_installed("rg") is None


def test_libraries_are_named_once_and_only_those_that_are_there(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    (folders / "own/purelib").mkdir(parents=True)
    (folders / "own/platlib").symlink_to("purelib")
    (folders / "user/purelib").mkdir(parents=True)
    assert library_folders() == (str(folders / "own/purelib"), str(folders / "user/purelib"))
