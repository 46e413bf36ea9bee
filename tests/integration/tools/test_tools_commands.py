"""`kaged tool` against a real daemon."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.running_daemon import kaged, make_project, start_daemon

PROJECT = """\
project: sample
primary:
  model: m
  system_prompt: p
  tools: {'file.*': {enabled: true}}
  subagents:
    coder:
      model: m
      system_prompt: p
      cage: {fs: [{mode: ro, path: ./src}]}
      tools: {'file.*': {enabled: true}}
"""
CODER = ("--agent", "primary.subagents.coder")


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[Path, Path]]:
    """Yield the home of a running daemon and a project that it has loaded."""
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        base = Path(folder).resolve()
        root = make_project(base / "project", PROJECT)
        (root / "src").mkdir()
        (root / "src" / "a.txt").write_text("hello\n", encoding="utf-8")
        daemon = start_daemon(base / "h", forked=True)
        try:
            assert kaged(base / "h", "project", "load", "--trust", str(root)).returncode == 0
            yield base / "h", root
        finally:
            daemon.stop()


def test_the_commands_list_call_and_explain(place: tuple[Path, Path]) -> None:
    home, root = place
    where = ("--project", str(root))
    listed = kaged(home, "tool", "list", *where, *CODER)
    assert listed.returncode == 0, listed.stderr
    assert "file.read" in listed.stdout
    assert "tools: 'file.*'" in listed.stdout
    called = kaged(
        home, "tool", "call", "file.read", "path=src/a.txt", "limit:=1", *where, "--json"
    )
    assert called.returncode == 0, called.stderr
    assert json.loads(called.stdout)["result"]["content"] == "1: hello"
    whole = '{"path": "src/a.txt"}'
    assert kaged(home, "tool", "call", "file.read", "--params", whole, *where).returncode == 0
    denied = kaged(
        home, "tool", "call", "file.write", "path=src/a.txt", "content=x", *where, *CODER
    )
    assert denied.returncode == 4
    assert "rw:fs:src/a.txt" in denied.stderr
    explained = kaged(
        home, "tool", "explain", "file.write", "path=src/a.txt", "content=x", *where, *CODER
    )
    assert explained.returncode == 4
    assert "would be refused" in explained.stdout
    assert "grant rw on src/a.txt" in explained.stdout + explained.stderr
    assert (
        kaged(home, "tool", "explain", "file.read", "path=src/a.txt", *where, *CODER).returncode
        == 0
    )
    assert kaged(home, "tool", "call", "file.read", "limit:=x", *where).returncode == 6
    assert kaged(home, "tool", "call", "file.read", "nonsense", *where).returncode == 6
    assert kaged(home, "tool", "call", "no.such", *where).returncode == 3
    assert (root / "src" / "a.txt").read_text(encoding="utf-8") == "hello\n"


def test_stats_count_what_was_called(place: tuple[Path, Path]) -> None:
    home, root = place
    where = ("--project", str(root))
    for agent in ((), CODER):
        assert kaged(home, "tool", "call", "file.read", "path=src/a.txt", *where, *agent)
    shown = kaged(home, "tool", "stats", *where, "--tool", "file.read")
    assert shown.returncode == 0, shown.stderr
    assert "primary.subagents.coder" in shown.stdout
    narrowed = kaged(home, "tool", "stats", *CODER, "--tool", "file.read", "--json")
    (series,) = json.loads(narrowed.stdout)["series"]
    assert (series["tool"], series["calls"]) == ("file.read", 1)
