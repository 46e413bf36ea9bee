"""kill -9 at every step of install, upgrade and uninstall: the store is old or new, never half.

The child runs the real operation with the renames, removals and flushes of its process counted;
at the n-th it ends without any clean-up, as kill -9 would end it there.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from fakes.store_lab import StoreLab, tree, write_plugin

KILLED = 137
MOST_STEPS = 200
_COUNTED = ("rename", "replace", "fsync", "unlink", "rmdir", "mkdir", "symlink", "fchmod")


def die_at(step: int) -> None:
    """Make this process end at its n-th step that the disk sees."""
    done = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal done
            done += 1
            if done == step:
                os._exit(KILLED)
            return real(*args, **kwargs)

        return call

    for name in _COUNTED:
        setattr(os, name, counted(getattr(os, name)))


class FileTables:
    """The tables of all plugins: a file, which is there or not."""

    def __init__(self, root: Path) -> None:
        self.file = root / "tables"

    def tables_of(self, plugin: str) -> list[str]:
        return ["notes"] if self.file.exists() else []

    async def drop(self, plugin: str) -> list[str]:
        names = self.tables_of(plugin)
        self.file.unlink(missing_ok=True)  # one of the steps that a crash falls into
        return names


async def operate(root: Path, operation: str, step: int) -> None:
    lab = StoreLab(root / "home", tables=FileTables(root))
    await lab.open()
    if operation != "uninstall":
        source = root / ("new" if operation == "upgrade" else "old")
        prompt = await lab.store.prepare(source)
        die_at(step)
        await lab.store.install(source, prompt.digest)
    else:
        die_at(step)
        await lab.store.uninstall("sample")


async def recover(root: Path) -> None:
    """Start again after the crash, check that all agree, and write down the version found."""
    tables = FileTables(root)
    lab = StoreLab(root / "home", tables=tables)
    await lab.open()
    found = await lab.store.open()
    assert found.problems == ()
    assert lab.stale_files() == []
    assert lab.names() == [plugin.name for plugin in found.plugins]
    version = found.plugins[0].version if found.plugins else ""
    assert (tables.tables_of("sample") == ["notes"]) == bool(version or (root / "fresh").exists())
    if version:
        source = root / ("old" if version == "1.0.0" else "new")
        assert tree(lab.directory / "sample") == tree(source)
    events = [name for name, _ in await lab.seen()]
    await lab.close()
    noted = lab.local().partition('installed = "')[2].partition('"')[0]
    assert noted == version
    if "sample" in _enabled(lab):
        assert version
    assert len(events) <= 1
    (root / "found").write_text(version, encoding="utf-8")


def _enabled(lab: StoreLab) -> str:
    return lab.config_toml.read_text(encoding="utf-8") if lab.config_toml.exists() else ""


async def prepare(root: Path, operation: str) -> None:
    (root / "home").mkdir(parents=True)
    write_plugin(root / "old", {"lib/a": "1"})
    write_plugin(root / "new", {"lib/b": "2"}, version="2.0.0", capabilities=[])
    FileTables(root).file.touch()
    if operation == "install":
        (root / "fresh").touch()  # the tables stay: nothing is uninstalled here
        return
    lab = StoreLab(root / "home")
    await lab.open()
    await lab.install(root / "old")
    await lab.store.set_enabled("sample", enabled=True)
    await lab.close()


def in_child(work: Coroutine[Any, Any, None]) -> int:
    """Run something in a process of its own and return its exit code."""
    pid = os.fork()  # noqa: TID251 - the child is killed in the middle of an install
    if pid:
        work.close()
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        asyncio.run(work)
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def drive(top: Path, operation: str) -> list[str]:
    """Crash the operation at each of its steps; return the version found after each."""
    outcomes: list[str] = []
    for step in range(1, MOST_STEPS):
        root = top / str(step)
        assert in_child(prepare(root, operation)) == 0
        ended = in_child(operate(root, operation, step))
        if ended == 0:
            return outcomes
        assert ended == KILLED, ended
        assert in_child(recover(root)) == 0
        outcomes.append((root / "found").read_text(encoding="utf-8"))
    raise AssertionError("the operation never got to its end")


@pytest.mark.parametrize("operation", ["install", "upgrade", "uninstall"])
def test_a_crash_at_any_step_leaves_the_old_state_or_the_new(
    tmp_path: Path, operation: str
) -> None:
    old, new = {
        "install": ("", "1.0.0"),
        "upgrade": ("1.0.0", "2.0.0"),
        "uninstall": ("1.0.0", ""),
    }[operation]
    # A fresh interpreter without threads, so that it can fork for every step.
    driven = subprocess.run(
        [sys.executable, __file__, str(tmp_path), operation],
        check=False,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert driven.returncode == 0, driven.stderr
    outcomes: list[str] = json.loads(driven.stdout)
    # The change becomes the new state at one step and never goes back at a later one.
    assert outcomes == sorted(outcomes, key=lambda version: version == new)
    assert {old, new} == set(outcomes)


if __name__ == "__main__":
    print(json.dumps(drive(Path(sys.argv[1]), sys.argv[2])))  # noqa: T201 - the test reads it
