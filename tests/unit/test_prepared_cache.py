"""What one home's daemon has copied, the next home has already; and no home is spoilt by that."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fakes.prepared_cache import PreparedCache

PROGRAM = "cache/shelf-0123/bin/cat"


@pytest.fixture(autouse=True)
def ordinary_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let whoever runs this be an ordinary user."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


def home(place: Path, *, used: bool = False) -> Path:
    place.mkdir()
    if used:
        program = place / PROGRAM
        program.parent.mkdir(parents=True)
        program.write_bytes(b"meow")
        program.chmod(0o555)
        (place / "cache" / "bin-77").mkdir()
    return place


def test_the_next_home_has_the_programs_of_the_first_and_nothing_else(tmp_path: Path) -> None:
    prepared = PreparedCache(tmp_path / "kept")
    assert not prepared.give(home(tmp_path / "a"))
    prepared.keep(home(tmp_path / "b", used=True))
    for name in ("c", "d"):
        assert prepared.give(home(tmp_path / name))
        assert (tmp_path / name / PROGRAM).samefile(tmp_path / "b" / PROGRAM)
        assert (tmp_path / name / PROGRAM).stat().st_mode & 0o777 == 0o555
        assert (tmp_path / name / "cache").stat().st_mode & 0o777 == 0o755
        assert [one.name for one in (tmp_path / name / "cache").iterdir()] == ["shelf-0123"]


def test_a_home_without_programs_leaves_nothing_to_keep_and_the_first_with_some_is_kept(
    tmp_path: Path,
) -> None:
    prepared = PreparedCache(tmp_path / "kept")
    prepared.keep(home(tmp_path / "a"))
    assert not prepared.give(tmp_path / "a")
    prepared.keep(home(tmp_path / "b", used=True))
    prepared.keep(tmp_path / "a")
    assert prepared.give(tmp_path / "a")


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_a_test_has_put_there_stays(tmp_path: Path, kind: str) -> None:
    prepared = PreparedCache(tmp_path / "kept")
    prepared.keep(home(tmp_path / "a", used=True))
    cache = home(tmp_path / "b") / "cache"
    match kind:
        case "folder":
            cache.mkdir()
        case "file":
            cache.touch()
        case _:
            cache.symlink_to("nowhere")
    before = cache.lstat()
    assert not prepared.give(tmp_path / "b")
    assert cache.lstat() == before


def test_where_no_links_can_be_made_the_home_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = PreparedCache(tmp_path / "kept")
    prepared.keep(home(tmp_path / "a", used=True))

    def another_disk(*_: object, **__: object) -> None:
        raise OSError(18, "another disk")

    monkeypatch.setattr(os, "link", another_disk)
    assert not prepared.give(home(tmp_path / "b"))
    assert list((tmp_path / "b").iterdir()) == []


def test_root_keeps_and_gives_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    prepared = PreparedCache(tmp_path / "kept")
    prepared.keep(home(tmp_path / "a", used=True))
    assert not prepared.give(home(tmp_path / "b"))
