"""`real_path` in a tree that changes: it settles, and says so when it never does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kaged.base.realpath import real_path


def test_links_are_followed_and_what_is_missing_stays(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    assert real_path(tmp_path / "link" / "new.txt") == f"{tmp_path}/there/new.txt"


def test_a_link_that_goes_away_between_two_looks_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    honest, gone = os.readlink, 3

    def readlink(path: str) -> str:
        nonlocal gone
        if gone:
            gone -= 1
            raise FileNotFoundError(2, "No such file or directory", path)
        return honest(path)

    monkeypatch.setattr(os, "readlink", readlink)
    assert real_path(tmp_path / "link") == f"{tmp_path}/there"
    assert gone == 0


def test_what_never_stands_still_is_an_error_and_not_a_wrong_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)

    def readlink(path: str) -> str:
        raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr(os, "readlink", readlink)
    with pytest.raises(OSError, match="changes while it is being looked at"):
        real_path(tmp_path / "link")


def test_a_loop_of_links_stays_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert real_path(tmp_path / "a").startswith(f"{tmp_path}/")
