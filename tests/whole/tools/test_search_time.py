"""Searches that do not come to an end by themselves: stopped in time, and nobody else waits.

A file that cannot be opened for the moment (a lease on it) makes a tree as slow as it needs to be.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, wait_for
from whole.harness.leasing import leased
from whole.harness.project import Project


@pytest.fixture(scope="module")
def daemon(module_path: Path) -> Iterator[Daemon]:
    """Yield a daemon whose searches take two seconds at most."""
    made = Daemon(module_path / "h", config="[tools.limits]\nsearch_seconds = 2\n")
    made.start()
    yield made
    made.close()


def searching(daemon: Daemon) -> list[int]:
    """Return the search engines that run for a daemon now."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                name = (folder / "comm").read_text(encoding="utf-8").strip()
                parent = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1]
            except OSError:
                continue
            if name == "rg" and int(parent) == daemon.pid:
                found.append(int(folder.name))
    return found


SEARCHES: dict[str, tuple[str, dict[str, Any]]] = {
    "content": ("search.grep", {"pattern": "hit", "output_mode": "content"}),
    "files": ("search.grep", {"pattern": "hit", "output_mode": "files_with_matches"}),
    "count": ("search.grep", {"pattern": "hit", "output_mode": "count"}),
    "glob": ("search.glob", {"pattern": "**/*.py"}),
    "ast": ("search.ast", {"pattern": "hit($A)", "lang": "python"}),
}


def slow_tree(project: Project, count: int) -> Path:
    """Write `count` files, and one in a folder that the engine enters after them.

    Returns the file that the engine opens when it enters that folder.
    """
    for number in range(count):
        project.write(f"many/file-number-{number:04}.py", "hit(1)\n")
    for number in range(100):
        # The engine takes names as the file system lists them.
        folder = project.root / f"slow-{number}"
        folder.mkdir()
        names = [one.name for one in project.root.iterdir()]
        if names.index(folder.name) > names.index("many"):
            project.write(f"{folder.name}/z.py", "hit(2)\n")
            return project.write(f"{folder.name}/.gitignore", "ignored\n")
        folder.rmdir()
    raise AssertionError("no name is listed late")


def files_of(answer: dict[str, Any]) -> set[str]:
    """Return the files in an answer of any search."""
    return set(answer.get("files") or [one["file"] for one in answer["matches"]])


@whole("AT-GREP-08", "AT-GLOB-06", "AT-AST-16", "AT-FAIL-09")
def test_a_search_that_takes_too_long_gives_what_it_found(daemon: Daemon, project: Project) -> None:
    slow = slow_tree(project, 700)

    def search(tool: str, params: dict[str, Any]) -> dict[str, Any]:
        got: dict[str, Any] = project.call(tool, **params)
        return got

    with leased(slow), ThreadPoolExecutor(5) as pool:
        asked = {name: pool.submit(search, *one) for name, one in SEARCHES.items()}
        got = {name: one.result() for name, one in asked.items()}
        assert searching(daemon) == []
    for name, one in got.items():
        assert one["truncated"] is True, name
        assert files_of(one) or name == "ast", name
        assert all(file.startswith("./many/") for file in files_of(one)), name
    for name, (tool, params) in SEARCHES.items():
        where = {} if name == "ast" else {"path": slow.parent.name}
        again = search(tool, {**params, **where})
        assert f"./{slow.parent.name}/z.py" in files_of(again), name
        assert not again.get("truncated"), name


@whole("AT-GREP-12")
def test_nobody_else_waits_for_a_search_and_who_hangs_up_ends_it(
    daemon: Daemon, project: Project
) -> None:
    slow = project.write("z.txt", "hit\n")
    project.write("other.md", "words\n")
    params = {"pattern": "hit", "include": "*.txt"}
    body = json.dumps({"agent": "primary", "tool": "search.grep", "params": params})
    head = (
        f"POST /api/v1/projects/{project.id}/tools/call HTTP/1.1\r\nHost: kaged\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with leased(slow):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(daemon.get("/status")["socket"])
            client.sendall((head + body).encode())
            (engine,) = wait_for(lambda: searching(daemon))
            assert project.call("file.read", path="other.md")["content"] == "1: words"
        wait_for(lambda: engine not in searching(daemon))


@whole("AT-GREP-12")
@pytest.mark.parametrize("pattern", ["(a+)+$", "(?=a)(a+)+$", r"(a+)+\1b$", "(a|a)*$(?<=b)"])
def test_a_pattern_without_end_holds_up_nobody(
    daemon: Daemon, project: Project, pattern: str
) -> None:
    project.write("a.txt", "a" * 50_000 + "!\n")

    def search() -> Any:
        body = {"agent": "primary", "tool": "search.grep", "params": {"pattern": pattern}}
        return daemon.client.post(f"/api/v1/projects/{project.id}/tools/call", json=body)

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(search)
        assert project.call("file.read", path="a.txt")["total_lines"] == 1
        got = asked.result()
    if got.is_success:
        assert got.json()["result"]["matches"] == []
    assert searching(daemon) == []
