"""Who is forked from a process that has loaded the program, and who has to load it anew."""

from __future__ import annotations

import pytest

from fakes.command_server import can_fork


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process have a language, and nothing said about forking."""
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.delenv("LC_ALL", raising=False)
    monkeypatch.delenv("KAGED_TESTS_EXEC", raising=False)


def test_what_a_program_reads_while_it_runs_does_not_matter() -> None:
    assert can_fork({"PATH": "/elsewhere", "KAGED_HOME": "/h", "HOME": "/h", "LANG": "C.UTF-8"})


@pytest.mark.parametrize(
    "name", ["PYTHONPATH", "PYTHONHASHSEED", "LD_PRELOAD", "TZ", "LC_ALL", "MALLOC_ARENA_MAX"]
)
def test_what_it_reads_when_it_is_loaded_makes_it_load(name: str) -> None:
    assert not can_fork({"PATH": "/usr/bin", name: "x"})


def test_another_language_than_ours_makes_it_load() -> None:
    assert not can_fork({"LANG": "de_DE"})


def test_nothing_is_forked_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAGED_TESTS_EXEC", "1")
    assert not can_fork({})
