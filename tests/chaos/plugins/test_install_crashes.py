"""kill -9 at every step of install, upgrade and uninstall: the store is old or new, never half.

The child runs the real operation with the renames, removals and flushes of its process counted;
at the n-th it ends without any clean-up, as kill -9 would end it there. A short run takes the first
step of each kind (a call, and the two lines that led to it) and the last, a thorough one all.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from fakes.store_lab import StoreLab, tree, write_plugin
from thorough import THOROUGH, counted, sample

KILLED = 137
MORE_FILES = counted(0, 0, 40)
"""Files beside those that a plugin has in any case: each is some steps more to die at."""
FEWEST_STEPS = 5  # fewer would mean that the counting misses the work
_COUNTED = ("rename", "replace", "fsync", "unlink", "rmdir", "mkdir", "symlink", "fchmod")


def die_at(step: int, steps: list[str]) -> None:
    """Make this process end at its n-th step that the disk sees; all before it are noted."""

    def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            way = [f"{one.name}:{one.lineno}" for one in traceback.extract_stack()[-3:-1]]
            steps.append(f"{name} by {' '.join(way)}")
            if len(steps) == step:
                os._exit(KILLED)
            return real(*args, **kwargs)

        return call

    for name in _COUNTED:
        setattr(os, name, noted(name, getattr(os, name)))


class FileTables:
    """The tables of all plugins: a file, which is there or not."""

    def __init__(self, root: Path) -> None:
        self.file = root / "tables"
        self.kept = root / "tables-kept"

    def tables_of(self, plugin: str) -> list[str]:
        return ["notes"] if self.file.exists() else []

    async def hand_over(self, owner: str, heir: str) -> list[str]:
        source, target = (self.file, self.kept) if heir[0] == "~" else (self.kept, self.file)
        if source.exists():
            os.rename(source, target)  # noqa: PTH104 - one of the steps that a crash falls into
        return ["notes"]

    async def drop(self, plugin: str) -> list[str]:
        names = self.tables_of(plugin)
        self.file.unlink(missing_ok=True)  # one of the steps that a crash falls into
        return names


async def operate(root: Path, operation: str, step: int) -> None:
    """Do it and die at a step; with step 0 get to the end and write the steps down."""
    steps: list[str] = []
    lab = StoreLab(root / "home", tables=FileTables(root))
    await lab.open()
    if operation not in {"uninstall", "keep"}:
        source = root / ("new" if operation == "upgrade" else "old")
        prompt = await lab.store.prepare(source)
        die_at(step, steps)
        await lab.store.install(source, prompt.digest)
    else:
        die_at(step, steps)
        await lab.store.uninstall("sample", keep_data=operation == "keep")
    (root / "steps").write_text(json.dumps(steps), encoding="utf-8")


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
    if (root / "keeps").exists():
        require_in_one_place(root, lab, tables, in_use=bool(version))
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


def require_in_one_place(root: Path, lab: StoreLab, tables: FileTables, *, in_use: bool) -> None:
    """Require that data, secret and tables are the plugin's, or all kept; never both, nor half."""
    data = root / "home" / "data"
    assert (data / "sample" / "diary").exists() == in_use
    assert ("s3cret" in lab.local()) == in_use
    assert tables.kept.exists() != in_use
    assert bool([*data.glob(".kept/*/diary")]) != in_use
    assert [one.settings for one in lab.store.kept("sample")] == ([] if in_use else [("token",)])


def _enabled(lab: StoreLab) -> str:
    return lab.config_toml.read_text(encoding="utf-8") if lab.config_toml.exists() else ""


async def prepare(root: Path, operation: str) -> None:
    (root / "home").mkdir(parents=True)
    more = {f"lib/more/{number}": str(number) for number in range(MORE_FILES)}
    write_plugin(root / "old", {"lib/a": "1", **more})
    write_plugin(root / "new", {"lib/b": "2", **more}, version="2.0.0", capabilities=[])
    FileTables(root).file.touch()
    if operation == "install":
        (root / "fresh").touch()  # the tables stay: nothing is uninstalled here
        return
    lab = StoreLab(root / "home")
    await lab.open()
    await lab.install(root / "old")
    await lab.store.set_enabled("sample", enabled=True)
    await lab.close()
    if operation in {"keep", "give back"}:
        (root / "keeps").touch()
        (root / "home" / "data" / "sample").mkdir(parents=True)
        (root / "home" / "data" / "sample" / "diary").touch()
        lab.local_toml.write_text(f'{lab.local()}token = "s3cret"\n', encoding="utf-8")
        lab = StoreLab(root / "home", tables=FileTables(root))
        await lab.open()
        if operation == "give back":
            await lab.store.uninstall("sample", keep_data=True)
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
    """Crash the operation at one step after the other; return the version found after each."""
    ready, root = top / "ready", top / "tried"
    assert in_child(prepare(root, operation)) == 0
    shutil.copytree(root, ready, symlinks=True)
    assert in_child(operate(root, operation, 0)) == 0
    steps: list[str] = json.loads((root / "steps").read_text(encoding="utf-8"))
    assert len(steps) > FEWEST_STEPS
    chosen = {number for number, _ in sample(enumerate(steps, 1), kind=lambda one: one[1])}
    outcomes: list[str] = []
    for step in sorted(chosen | {len(steps)}):
        shutil.rmtree(root)
        shutil.copytree(ready, root, symlinks=True)  # in the same place: files may name it
        assert in_child(operate(root, operation, step)) == KILLED
        assert in_child(recover(root)) == 0
        outcomes.append((root / "found").read_text(encoding="utf-8"))
    return outcomes


@pytest.mark.thorough
@pytest.mark.timeout(3600 if THOROUGH else 120)
@pytest.mark.parametrize("operation", ["install", "upgrade", "uninstall", "keep", "give back"])
def test_a_crash_at_any_step_leaves_the_old_state_or_the_new(
    tmp_path: Path, operation: str
) -> None:
    old, new = {
        "install": ("", "1.0.0"),
        "upgrade": ("1.0.0", "2.0.0"),
        "uninstall": ("1.0.0", ""),
        "keep": ("1.0.0", ""),
        "give back": ("", "1.0.0"),
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
    if THOROUGH:
        sys.stdout.write(f"{operation}: killed at {len(outcomes)} steps\n")
    # The change becomes the new state at one step and never goes back at a later one.
    assert outcomes == sorted(outcomes, key=lambda version: version == new)
    assert {old, new} == set(outcomes)


if __name__ == "__main__":
    print(json.dumps(drive(Path(sys.argv[1]), sys.argv[2])))  # noqa: T201 - the test reads it
