"""Homes of tests get the base programs of the first one, also when that one had none at first."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes import base_programs_stock
from fakes.base_programs_stock import Stock


@pytest.fixture(autouse=True)
def _not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_programs_stock, "USELESS", False)


def fill(cache: Path) -> Path:
    """Put one program into a cache, as a daemon does that has started; returns it."""
    program = cache / "shelf-1" / "bin" / "true"
    program.parent.mkdir(parents=True)
    program.write_bytes(b"program")
    return program


def test_what_one_cache_has_is_linked_into_the_next(tmp_path: Path) -> None:
    stock, first = Stock(), tmp_path / "a"
    program = fill(first)
    stock.keep(first)
    assert stock.lend(tmp_path / "b")
    assert (tmp_path / "b" / "shelf-1" / "bin" / "true").samefile(program)


def test_a_cache_that_is_filled_after_its_daemon_is_ready_is_kept_as_well(tmp_path: Path) -> None:
    stock, first = Stock(), tmp_path / "a"
    stock.keep(first)
    assert not stock.lend(tmp_path / "b")
    program = fill(first)
    assert stock.lend(tmp_path / "c")
    assert (tmp_path / "c" / "shelf-1" / "bin" / "true").samefile(program)


def test_a_cache_that_is_half_filled_is_not_kept(tmp_path: Path) -> None:
    stock, first = Stock(), tmp_path / "a"
    (first / "shelf-new-1").mkdir(parents=True)
    stock.keep(first)
    assert not stock.lend(tmp_path / "b")
