"""With `refuse_hard_links` a caged caller cannot use a file that may be something outside."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fakes.tool_lab import Spy, ToolLab, cage, make_tool
from kaged.kernel.mounts import Mount
from kaged.kernel.policy import CagePolicy, FsMode
from kaged.kernel.requirements import FsRequirement
from kaged.toolbox.files import file_tools
from kaged.tools import ToolCapabilityRefused
from kaged.tools.hard_links import HardLinkPolicy, mount_points
from kaged.tools.permissions import ToolPermissions
from requirements import requirement

RO, RW = FsRequirement(FsMode.RO), FsRequirement(FsMode.RW)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "data").mkdir()
    (root / "src" / "own.txt").write_text("own\n", encoding="utf-8")
    (root / "data" / "secret.txt").write_text("secret\n", encoding="utf-8")
    os.link(root / "data" / "secret.txt", root / "src" / "twin.txt")
    (tmp_path / "outside.txt").write_text("outside\n", encoding="utf-8")
    os.link(tmp_path / "outside.txt", root / "src" / "other.txt")
    return root


def lab(project: Path, *, refuse: bool, caged: bool = True) -> ToolLab:
    spy = Spy()
    tools = [
        *file_tools(),
        make_tool("search.look", handler=spy, search=["path"], requires=[RO]),
    ]
    made = ToolLab(project, tools, cage("rw ./src", root=project) if caged else None)
    made.dispatcher.permissions = ToolPermissions(refuse_hard_links=refuse)
    return made


async def refused(tool_lab: ToolLab, tool: str, **params: Any) -> str:
    error = await tool_lab.refusal(tool, **params)
    assert isinstance(error, ToolCapabilityRefused)
    assert error.rule == "tool.hard_link"
    return str(error.detail)


@requirement("AT-BEY-20")
async def test_a_hard_link_to_an_outside_file_is_refused_when_enabled(project: Path) -> None:
    strict = lab(project, refuse=True)
    for name in ("twin.txt", "other.txt"):
        assert await refused(strict, "file.read", path=f"src/{name}") == f"ro:fs:src/{name}"
        detail = await refused(strict, "file.write", path=f"src/{name}", content="x")
        assert detail == f"rw:fs:src/{name}"
    await strict.call("file.read", path="src/own.txt")
    await strict.call("file.write", path="src/own.txt", content="x")
    await strict.call("file.create", path="src/new.txt", content="x")
    await strict.call("search.look", path="src")
    await strict.call("file.read", path="src")
    assert (project / "data" / "secret.txt").read_text(encoding="utf-8") == "secret\n"


async def test_otherwise_and_without_a_cage_they_are_files_like_others(project: Path) -> None:
    for tool_lab in (lab(project, refuse=False), lab(project, refuse=True, caged=False)):
        await tool_lab.call("file.read", path="src/twin.txt")


def test_what_a_search_finds_is_judged_in_the_same_way(project: Path) -> None:
    policy = ToolPermissions(refuse_hard_links=True).compiled(cage("rw ./src", root=project))
    assert policy is not None
    assert policy.mode_at(f"{project}/src/own.txt") is FsMode.RW
    assert policy.mode_at(f"{project}/src/twin.txt") is None
    assert policy.mode_at(f"{project}/src") is FsMode.RW
    assert policy.mode_at(f"{project}/data/secret.txt") is None


def test_what_is_mounted_into_a_granted_folder_is_outside() -> None:
    table = (
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "40 22 8:2 /x /p/src/ven\\040dor rw - ext4 /dev/sdb1 rw\n"
        "41 22 8:2 /y /p/other rw - ext4 /dev/sdb1 rw\n"
    )
    assert mount_points(table) == ("/", "/p/src/ven dor", "/p/other")
    policy = HardLinkPolicy(CagePolicy(), [Mount("/p/src", FsMode.RW)], table)
    assert policy.mode_at("/p/src/a") is FsMode.RW
    assert policy.mode_at("/p/src/ven dor") is None
    assert policy.mode_at("/p/src/ven dor/a") is None
    assert policy.mode_at("/p/src/ven dorx") is FsMode.RW


def test_a_cage_that_cannot_be_judged_grants_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kaged.tools.hard_links.MOUNT_TABLE", project / "nothing")
    policy = ToolPermissions(refuse_hard_links=True).compiled(cage("rw ./src", root=project))
    assert policy is not None
    assert policy.mode_at(f"{project}/src/own.txt") is None
