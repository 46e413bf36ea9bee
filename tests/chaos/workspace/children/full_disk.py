"""Runs on a disk of four megabytes: what do the file tools do when it is full or read-only?"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from fakes.tool_lab import ToolLab
from kaged.base import KagedError
from kaged.toolbox.files import file_tools
from kaged.workspace import Author, PlannedWrite
from kaged.workspace.content import sha256_of

ORIGINAL = "original\n"


def everything(disk: Path) -> dict[str, bytes]:
    return {
        str(one): one.read_bytes()
        for one in sorted(disk.rglob("*"))
        if one.is_file() and one.name != "ballast"
    }


def stale_files(disk: Path) -> list[str]:
    return [one.name for one in disk.rglob(".kaged-tmp-*")]


def fill(disk: Path) -> None:
    handle = os.open(disk / "ballast", os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(handle, b"x" * 4096)
    except OSError:
        return
    finally:
        os.close(handle)


async def one(disk: Path) -> dict[str, Any]:
    lab = ToolLab(disk, file_tools())
    (disk / "a").write_text(ORIGINAL, encoding="utf-8")
    await lab.call("file.read", path="a")
    fill(disk)
    before = everything(disk)
    seen: dict[str, Any] = {}
    large = "y" * 200_000
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("file.write", "file.write", {"path": "a", "content": large}),
        ("file.write new", "file.write", {"path": "deep/er/b", "content": large}),
        ("file.create", "file.create", {"path": "new/c", "content": large}),
        ("edit.text", "edit.text", {"path": "a", "old_string": "original", "new_string": large}),
    ]
    for label, tool, params in calls:
        error = await lab.refusal_with(tool, params)
        seen[label] = {
            "code": error.code,
            "message": error.message,
            "unchanged": everything(disk) == before
            and not (disk / "deep").exists()
            and not (disk / "new").exists(),
        }
    (disk / "ballast").unlink()
    await lab.call("file.write", path="a", content=large)
    seen["afterwards"] = "written" if (disk / "a").read_text() == large else "lost"
    seen["leftovers"] = stale_files(disk)
    return seen


async def many(disk: Path) -> dict[str, Any]:
    lab = ToolLab(disk, file_tools())
    workspace = lab.workspace
    names = [f"d{number}/f" for number in range(20)]
    for name in names:
        (disk / name).parent.mkdir()
        (disk / name).write_text(ORIGINAL, encoding="utf-8")
    before = everything(disk)
    staged = 0

    def plans(content: bytes) -> Iterator[PlannedWrite]:
        nonlocal staged
        for name in names:
            yield PlannedWrite(workspace.resolve(name), content, sha256_of(ORIGINAL.encode()))
            staged += 1

    seen: dict[str, Any] = {}
    try:
        workspace.write_all(plans(b"z" * 400_000))
    except KagedError as error:
        seen["code"] = error.code
    seen["staged_before_it_failed"] = staged
    seen["unchanged"] = everything(disk) == before
    seen["leftovers"] = stale_files(disk)
    author = Author("ses_1", "run_1", "primary", "edit.ast")
    workspace.settle(author, workspace.write_all(plans(b"small")))
    fill(disk)
    small = everything(disk)
    try:
        await workspace.undo(run_id="run_1")
    except KagedError as error:
        seen["undo"] = error.code
    seen["unchanged_by_undo"] = everything(disk) == small
    (disk / "ballast").unlink()
    await workspace.undo(run_id="run_1")
    seen["undo_with_space"] = "original" if everything(disk) == before else "lost"
    return seen


async def read_only(disk: Path) -> dict[str, Any]:
    lab = ToolLab(disk, file_tools())
    (disk / "a").write_text(ORIGINAL, encoding="utf-8")
    subprocess.run(["mount", "-o", "remount,bind,ro", str(disk)], check=True)
    seen: dict[str, Any] = {"read": (await lab.call("file.read", path="a"))["content"]}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("file.write", {"path": "a", "content": "x"}),
        ("file.create", {"path": "new/c", "content": "x"}),
        ("edit.text", {"path": "a", "old_string": "original", "new_string": "x"}),
    ]
    for tool, params in calls:
        error = await lab.refusal_with(tool, params)
        seen[tool] = {"code": error.code, "message": error.message}
    return seen


if __name__ == "__main__":
    work = {"one": one, "many": many, "read-only": read_only}[sys.argv[2]]
    print(json.dumps(asyncio.run(work(Path(sys.argv[1])))))  # noqa: T201 - the answer
