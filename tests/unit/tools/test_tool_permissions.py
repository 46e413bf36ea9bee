from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.tool_lab import Spy, ToolLab, cage, make_tool
from kaged.kernel.mounts import Mount
from kaged.kernel.permissions import compile_policy
from kaged.kernel.policy import CagePolicy, FsGrant, FsMode
from kaged.kernel.requirements import (
    CapabilityRequirement,
    FsRequirement,
    NetRequirement,
    SeccompRequirement,
    parse_requirement,
)
from kaged.tools import ToolRefused
from kaged.tools.permissions import ToolPermissions, cage_summary, resolve_mounts
from requirements import requirement

RO, RW = FsRequirement(FsMode.RO), FsRequirement(FsMode.RW)
CODER = "primary.subagents.coder"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name in ("src/vendor", "src-secret", "data", "docs"):
        (root / name).mkdir(parents=True)
    for name in ("src/main.ts", "src/vendor/a", "src-secret/a", "data/secrets.json", "README.md"):
        (root / name).write_text("x", encoding="utf-8")
    return root


def lab(project: Path, *fs: str, **fields: Any) -> ToolLab:
    spy = Spy()
    tools = [
        make_tool("file.peek", handler=spy, paths=["path", "paths"], requires=[RO],
                  properties={"paths": {"type": "array", "items": {"type": "string"}}}),
        make_tool("file.put", handler=spy, paths=["path", "new_path"], requires=[RW]),
        make_tool("search.look", handler=spy, search=["path"], requires=[RO]),
        make_tool("debug.deep", handler=spy, requires=[SeccompRequirement()]),
        make_tool("shell.run", handler=spy, requires=[CapabilityRequirement("shell")]),
        make_tool(
            "code.call",
            handler=spy,
            requires=[cast("NetRequirement", parse_requirement(
                {"kind": "net", "target": "api.example.org:443"}))],
        ),
    ]  # fmt: skip
    return ToolLab(project, tools, cage(*fs, root=project, **fields), CODER)


async def allowed(tool_lab: ToolLab, tool: str, **params: Any) -> bool:
    try:
        await tool_lab.call(tool, **params)
    except ToolRefused:
        return False
    return True


@requirement("AT-PERM-02", "AT-AMB-24")
async def test_without_a_cage_only_the_project_is_the_border(project: Path) -> None:
    free = replace_cage(lab(project), None)
    for tool in ("file.peek", "file.put", "search.look"):
        for path in ("src/main.ts", "data/secrets.json", ".", "new/file"):
            await free.call(tool, path=path)
        for path in ("../x", "/etc/passwd", "src/../../x"):
            assert (await free.refusal(tool, path=path)).code == "invalid_params"
    for tool in ("debug.deep", "shell.run", "code.call"):
        await free.call(tool)
    caged = lab(project, "ro ./src")
    assert (await caged.refusal("file.peek", path="../x")).code == "invalid_params"
    assert (await caged.refusal("file.peek", path="data/x")).code == "capability_denied"


def replace_cage(tool_lab: ToolLab, policy: CagePolicy | None) -> ToolLab:
    tool_lab.context = replace(tool_lab.context, cage_policy=policy)
    return tool_lab


@requirement("AT-PERM-03", "AT-AMB-22")
async def test_a_mount_ends_at_a_component(project: Path) -> None:
    tool_lab = lab(project, "ro ./src")
    assert await allowed(tool_lab, "file.peek", path="./src")
    assert await allowed(tool_lab, "file.peek", path="./src/vendor/a")
    assert (await tool_lab.refusal("file.peek", path="./src-secret/a")).detail == (
        "ro:fs:./src-secret/a"
    )
    assert not await allowed(tool_lab, "file.peek", path="./srcx")


@requirement("AT-PERM-04")
async def test_links_are_followed_on_both_sides_of_the_comparison(project: Path) -> None:
    (project / "src" / "out").symlink_to(project / "data")
    (project / "linked").symlink_to(project / "data")
    tool_lab = lab(project, "ro ./src")
    assert not await allowed(tool_lab, "file.peek", path="src/out/secrets.json")
    assert not await allowed(tool_lab, "file.peek", path="src/out/not-there-yet")
    through = lab(project, "rw ./linked")
    assert await allowed(through, "file.peek", path="linked/secrets.json")
    assert await allowed(through, "file.put", path="data/new/deep.txt")
    assert not await allowed(through, "file.peek", path="src/main.ts")
    dotted = lab(project, "ro ./docs/../src")
    assert await allowed(dotted, "file.peek", path="docs/../src/./main.ts")


@requirement("AT-PERM-05", "AT-PERM-17", "AT-PERM-18")
async def test_reading_needs_any_mount_and_writing_a_writable_one(project: Path) -> None:
    tool_lab = lab(project, "ro ./src")
    assert await allowed(tool_lab, "file.peek", path="./src/main.ts")
    assert (await tool_lab.refusal("file.peek", path="./data/secrets.json")).code == (
        "capability_denied"
    )
    assert (
        await tool_lab.refusal("file.put", path="./src/main.ts")
    ).detail == "rw:fs:./src/main.ts"
    writable = lab(project, "rw ./src")
    assert await allowed(writable, "file.peek", path="./src/main.ts")
    assert await allowed(writable, "file.put", path="./src/main.ts")


@requirement("AT-PERM-06", "AT-AMB-23")
@pytest.mark.parametrize("order", [1, -1])
async def test_the_most_specific_mount_decides(project: Path, order: int) -> None:
    tool_lab = lab(project, *["rw ./src", "ro ./src/vendor"][::order])
    assert await allowed(tool_lab, "file.put", path="./src/a")
    assert not await allowed(tool_lab, "file.put", path="./src/vendor/a")
    assert await allowed(tool_lab, "file.peek", path="./src/vendor/a")


@requirement("AT-PERM-07")
async def test_a_mount_grants_exactly_what_it_names(project: Path) -> None:
    (project / "README.md.bak").write_text("x", encoding="utf-8")
    (project / "[id]").mkdir()
    (project / "src" / "a.py").write_text("x", encoding="utf-8")
    file = lab(project, "ro ./README.md")
    assert await allowed(file, "file.peek", path="README.md")
    assert not await allowed(file, "file.peek", path="README.md.bak")
    assert not await allowed(file, "file.peek", path="README.md/x")
    for spelling in (".", "./"):
        whole = lab(project, f"ro {spelling}")
        assert await allowed(whole, "file.peek", path="data/secrets.json")
        assert await allowed(whole, "file.peek", path=".")
    glob = lab(project, "ro ./src/*.py")
    assert await allowed(glob, "file.peek", path="src/a.py")
    assert not await allowed(glob, "file.peek", path="src/main.ts")
    assert not await allowed(glob, "file.peek", path="src/vendor/b.py")
    literal = lab(project, "ro ./[id]")
    assert await allowed(literal, "file.peek", path="[id]/x")
    assert not await allowed(literal, "file.peek", path="i/x")


async def test_every_path_of_a_call_is_checked(project: Path) -> None:
    tool_lab = lab(project, "rw ./src")
    assert await allowed(tool_lab, "file.peek", path="src/main.ts", paths=["src/vendor", "src"])
    assert not await allowed(tool_lab, "file.peek", path="src/main.ts", paths=["src", "data"])
    assert not await allowed(tool_lab, "file.put", path="src/main.ts", new_path="data/main.ts")
    assert not await allowed(tool_lab, "file.put", path="data/x", new_path="src/main.ts")


@requirement("AT-PERM-10", "AT-PERM-11", "AT-PERM-12")
async def test_profiles_capabilities_and_targets_are_asked_of_the_cage(project: Path) -> None:
    bare = lab(project, "rw .")
    seccomp = await bare.refusal("debug.deep")
    assert (seccomp.code, seccomp.number) == ("seccomp_insufficient", -32001)
    assert seccomp.detail == "requires relaxed, have default"
    shell = await bare.refusal("shell.run")
    assert (shell.code, shell.detail) == ("capability_denied", "shell")
    assert (await bare.refusal("code.call")).detail == "net:api.example.org:443"
    for target in ("api.example.org:443", "api.example.org:*", "*"):
        assert await allowed(lab(project, net=[target]), "code.call")
    for target in ("api.example.org:80", "example.org:*"):
        assert not await allowed(lab(project, net=[target]), "code.call")
    full = lab(project, capabilities=["shell"], relaxed=True)
    assert await allowed(full, "debug.deep")
    assert await allowed(full, "shell.run")


@requirement("AT-PERM-13")
async def test_a_check_that_cannot_be_made_is_a_denial(project: Path) -> None:
    tool_lab = lab(project, "rw .")
    broken: Any
    for broken in (None, "rw .", ({"mode": "rw"},), [FsGrant(str(project), FsMode.RW)], (1,)):
        replace_cage(tool_lab, replace(CagePolicy(), fs=broken))
        error = await tool_lab.refusal("file.peek", path="src/main.ts")
        assert (error.code, error.number) == ("capability_denied", -32001)
        # It is written down all the same, in words that need nothing of that policy.
        denied = tool_lab.audit.of("tool.denied")[-1]
        assert (denied["cage_summary"] == "malformed") is not isinstance(broken, list)
    replace_cage(tool_lab, replace(CagePolicy(), capabilities=cast("Any", "shell")))
    assert not await allowed(tool_lab, "shell.run")


@requirement("AT-PERM-26")
async def test_a_denial_says_nothing_about_the_target(project: Path) -> None:
    tool_lab = lab(project, "ro ./src")
    there = await tool_lab.refusal("file.peek", path="data/secrets.json")
    not_there = await tool_lab.refusal("file.peek", path="data/nothing-here")
    folder = await tool_lab.refusal("file.peek", path="data/secrets.json/below")
    assert str(there.as_json()).replace("secrets.json", "X") == str(not_there.as_json()).replace(
        "nothing-here", "X"
    )
    assert (folder.code, folder.number) == (there.code, there.number)


async def test_a_search_may_start_above_what_it_may_see(project: Path) -> None:
    tool_lab = lab(project, "ro ./src/vendor")
    assert await allowed(tool_lab, "search.look", path=".")
    assert await allowed(tool_lab, "search.look", path="src")
    assert not await allowed(tool_lab, "search.look", path="data")
    assert not await allowed(tool_lab, "file.peek", path=".")


@requirement("AT-CTX-06")
async def test_the_policy_alone_decides(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # no sandbox program anywhere
    tool_lab = lab(project, "ro ./src")
    assert await allowed(tool_lab, "file.peek", path="src/main.ts")
    assert not await allowed(tool_lab, "file.put", path="src/main.ts")
    assert not await allowed(tool_lab, "shell.run")


@requirement("AT-PERM-16")
async def test_names_are_compared_as_the_file_system_has_them(project: Path) -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    (project / composed).mkdir()
    tool_lab = lab(project, f"ro ./{composed}", "ro ./Docs")
    assert await allowed(tool_lab, "file.peek", path=f"{composed}/a")
    same = os.path.realpath(project / decomposed) == os.path.realpath(project / composed)
    exists = (project / decomposed).exists()
    assert await allowed(tool_lab, "file.peek", path=f"{decomposed}/a") is (same or exists)
    assert await allowed(tool_lab, "file.peek", path="docs/a") is (project / "Docs").exists()


async def test_a_grant_cannot_be_moved_by_its_holder(project: Path) -> None:
    """With rw ./src, the holder turns ./src/cache, granted ro, into a link to ./data."""
    (project / "src" / "cache").symlink_to(project / "data")
    tool_lab = lab(project, "rw ./src", "ro ./src/cache")
    assert not await allowed(tool_lab, "file.peek", path="data/secrets.json")
    assert not await allowed(tool_lab, "file.peek", path="src/cache/secrets.json")


async def test_a_restriction_is_not_lost_through_a_link(project: Path) -> None:
    (project / "src" / "kept").symlink_to(project / "src" / "vendor")
    tool_lab = lab(project, "rw ./src", "ro ./src/kept")
    assert not await allowed(tool_lab, "file.put", path="src/vendor/a")
    assert await allowed(tool_lab, "file.put", path="src/main.ts")


async def test_grants_stay_where_they_were_when_files_move_later(project: Path) -> None:
    tool_lab = lab(project, "rw ./docs")
    assert await allowed(tool_lab, "file.put", path="docs/a")
    (project / "docs").rmdir()
    (project / "docs").symlink_to(project / "data")
    assert not await allowed(tool_lab, "file.peek", path="docs/secrets.json")


def test_policies_are_compiled_once(project: Path) -> None:
    permissions = ToolPermissions()
    policy = cage("ro ./src", root=project)
    assert permissions.compiled(policy) is permissions.compiled(policy)
    assert permissions.compiled(None) is None
    other = permissions.compiled(cage("ro ./src", root=project))
    assert other is not permissions.compiled(policy)


def test_the_summary_names_paths_as_the_project_has_them(project: Path) -> None:
    root = str(project.resolve())
    policy = cage("ro .", "rw ./src", root=project, capabilities=["shell"], net=["*"])
    assert cage_summary(policy, root) == {
        "fs": ["ro:./", "rw:./src"],
        "net": ["*"],
        "capabilities": ["shell"],
        "seccomp": "default",
    }
    assert cage_summary(None, root) == "uncaged"


NAMES = st.sampled_from(["a", "b", "ab", "a.b", "c"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)


@given(st.lists(st.tuples(st.sampled_from(["ro", "rw"]), PATHS), max_size=4), PATHS)
def test_a_path_is_granted_only_at_or_below_a_mount(
    mounts: list[tuple[str, str]], path: str
) -> None:
    policy = CagePolicy(fs=tuple(FsGrant(f"/nowhere/{one}", FsMode(mode)) for mode, one in mounts))
    compiled = compile_policy(policy, resolve_mounts(policy))
    granted = compiled.mode_at(f"/nowhere/{path}")
    covering = [one for _, one in mounts if path == one or path.startswith(f"{one}/")]
    assert (granted is not None) == bool(covering)


def test_mounts_know_files_from_folders(project: Path) -> None:
    found = resolve_mounts(cage("ro ./README.md", "ro ./src", "rw ./new/*.py", root=project))
    assert found == (
        Mount(str(project / "README.md"), FsMode.RO, file=True),
        Mount(str(project / "src"), FsMode.RO),
        Mount(f"{project}/new/*.py", FsMode.RW, pattern=True),
    )
