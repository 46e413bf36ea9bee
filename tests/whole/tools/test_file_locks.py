"""Several calls at one file in a running daemon: readers share it, who changes it is alone.

A call is caught at work by files so large that it takes a while: half a gigabyte is read for more
than a second, and many thousand places of a file are replaced in some tenths of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon
from whole.harness.project import Project
from whole.harness.watching import Watch

IMPATIENT = "[tools.limits]\nfile_wait_seconds = 0.1\n"
HUGE_BYTES = 600 * 1024 * 1024
LINES = 100_000
REWRITE = {"rewrites": {"old($A)": "new($A)"}, "lang": "python", "path": "src"}


@pytest.fixture(scope="module")
def impatient(module_path: Path) -> Iterator[Daemon]:
    """Yield a daemon in which nobody waits for a file for more than a tenth of a second."""
    made = Daemon(module_path / "impatient", config=IMPATIENT)
    made.start()
    yield made
    made.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Yield threads for clients of the daemon."""
    with ThreadPoolExecutor(6) as made:
        yield made


def outcome(project: Project, tool: str, **params: Any) -> str:
    """Call a tool that may fail; returns the error's code, or nothing."""
    body = {"agent": "primary", "tool": tool, "params": params}
    got = project.daemon.client.post(f"/api/v1/projects/{project.id}/tools/call", json=body)
    return "" if got.is_success else str(got.json()["error"]["code"])


def being_read(project: Project, path: str, pool: ThreadPoolExecutor) -> Future[str]:
    """Return a `file.read` of `path` that is at work, though `path` is a small file again."""
    file = project.root / path
    small = file.read_bytes()
    with file.with_suffix(".huge").open("wb") as huge:
        huge.truncate(HUGE_BYTES)
    file.with_suffix(".huge").replace(file)
    with Watch(file) as watch:
        reading = pool.submit(outcome, project, "file.read", path=path)
        watch.opened()
    project.write(f"{path}.small", small).replace(file)
    return reading


def being_edited(project: Project, path: str, pool: ThreadPoolExecutor) -> Future[str]:
    """Return an `edit.text` of `path` that has read the file and works out the new one."""
    file = project.write(path, f"{'x' * 300} old\n" * LINES)
    project.call("file.read", path=path, limit=1)
    change = {"old_string": "old", "new_string": "new", "replace_all": True}
    with Watch(file) as watch:
        editing = pool.submit(outcome, project, "edit.text", path=path, **change)
        watch.closed()
    return editing


@whole("AT-EAST-24", "AT-FILE-38", "AT-EDIT-16", "AT-AMB-51")
def test_nobody_changes_a_file_that_is_being_read_and_everybody_may_read_it_too(
    impatient: Daemon, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    project = impatient.load(Project(tmp_path / "locked"))
    for path in ("src/first.py", "src/second.py"):
        project.write(path, "old(1)\n")
        project.call("file.read", path=path)
    project.call("edit.ast", **REWRITE)  # its parser is warm now
    reading = being_read(project, "src/second.py", pool)
    path, change = "src/second.py", {"old_string": "old", "new_string": "new"}
    others = [
        pool.submit(outcome, project, "edit.ast", **REWRITE, dry_run=False),
        pool.submit(outcome, project, "edit.text", path=path, **change),
        pool.submit(outcome, project, "file.write", path=path, content="new(1)\n"),
    ]
    assert outcome(project, "file.read", path=path) == ""
    assert [one.result() for one in others] == ["file_busy"] * 3
    assert not reading.done()
    # Of the two files of `edit.ast` only the second was taken; the first has not changed either.
    assert project.read("src/first.py") == project.read("src/second.py") == "old(1)\n"
    assert reading.result() == ""
    assert outcome(project, "edit.ast", **REWRITE, dry_run=False) == ""
    assert project.read("src/first.py") == project.read("src/second.py") == "new(1)\n"


@whole("AT-FILE-38", "AT-EDIT-16", "AT-AMB-51")
def test_a_reader_waits_for_who_changes_the_file_and_then_sees_the_new_content(
    project: Project, pool: ThreadPoolExecutor
) -> None:
    editing = being_edited(project, "big.txt", pool)
    got = project.call("file.read", path="big.txt", limit=1)
    assert got["content"].endswith(" new")
    assert editing.result() == ""


@whole("AT-AMB-51")
def test_who_waits_too_long_for_a_change_is_told_that_the_file_is_busy(
    impatient: Daemon, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    project = impatient.load(Project(tmp_path / "busy"))
    editing = being_edited(project, "big.txt", pool)
    busy = project.fail("file.read", path="big.txt", limit=1)
    assert (busy["code"], busy["data"]["detail"]["path"]) == ("file_busy", "./big.txt")
    assert editing.result() == ""
    assert project.call("file.read", path="big.txt", limit=1)["content"].endswith(" new")


def _edit(project: Project) -> str:
    change = {"old_string": "old", "new_string": "new", "replace_all": True}
    return outcome(project, "edit.text", path="src/raced.py", **change)


def _write(project: Project) -> str:
    return outcome(project, "file.write", path="src/raced.py", content="mine\n")


def _rewrite(project: Project) -> str:
    return outcome(project, "edit.ast", **REWRITE, dry_run=False)


@whole("AT-EDIT-09", "AT-FILE-28", "AT-FILE-38")
@pytest.mark.parametrize(
    ("act", "line"),
    [(_edit, f"# {'x' * 300} old\n"), (_write, f"# {'x' * 600}\n"), (_rewrite, "old(1)\n")],
    ids=["edit.text", "file.write", "edit.ast"],
)
def test_what_somebody_else_puts_there_during_a_change_is_not_lost(
    project: Project, pool: ThreadPoolExecutor, act: Callable[[Project], str], line: str
) -> None:
    file = project.root / "src" / "raced.py"
    count = LINES if act is not _rewrite else 2000
    for _ in range(10):
        project.write("src/raced.py", line * count)
        project.call("file.read", path="src/raced.py", limit=1)
        theirs = project.write("theirs.py", "theirs = 1\n")
        with Watch(file) as watch:
            changing = pool.submit(act, project)
            watch.closed()
            # It has read the file and goes on to replace it: now there is another one.
            theirs.replace(file)
        code = changing.result()
        assert file.read_text(encoding="utf-8") == "theirs = 1\n", code
        if code:  # not so when the change was ready before ours
            assert code == "file_changed_since_read"
            return
    pytest.fail("never caught at work")
