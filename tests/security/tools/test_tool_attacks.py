"""Attempts to get past the dispatcher, each named after what it tries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes.tool_lab import Spy, ToolLab, cage, make_tool
from kaged.kernel.policy import FsMode
from kaged.kernel.requirements import FsRequirement
from kaged.toolbox.files import file_tools
from kaged.tools import ToolError
from requirements import requirement

CODER = "primary.subagents.coder"
RO = FsRequirement(FsMode.RO)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name in ("src", "data", "src-secret"):
        (root / name).mkdir(parents=True)
    (root / "src" / "a.py").write_text("open\n", encoding="utf-8")
    (root / "data" / "secret").write_text("canary\n", encoding="utf-8")
    (root / "src-secret" / "b").write_text("canary\n", encoding="utf-8")
    (tmp_path / "outside").write_text("canary\n", encoding="utf-8")
    (root / "src" / "link").symlink_to("../data")
    (root / "src" / "far").symlink_to("../../outside")
    (root / "src" / "loop").symlink_to("loop")
    return root


SPELLINGS = [
    "data/secret",
    "./data/secret",
    "src/../data/secret",
    "src/./.././data/./secret",
    "src/link/secret",
    "./src/link/../data/secret",
    "src//link//secret",
    "src-secret/b",
    "src/../src-secret/b",
    "../outside",
    "src/../../outside",
    "src/far",
    "src/link/../../outside",
    "{root}/data/secret",
    "{root}/src/../data/secret",
    "{root}/../outside",
    "/proc/self/root{root}/data/secret",
    "/proc/self/cwd/data/secret",
    "/dev/stdin",
    "/etc/passwd",
    "~/x",
    "~root/x",
    "data/secret\0.py",
    "src/a.py\0/../../data/secret",
    "data/secret/",
    "DATA/secret",
    "data%2Fsecret",
    "data\\secret",
    "src/a.py/../../data/secret",
    "src/loop/x",
    "",
    " ",
    ".",
    "..",
    "../project/data/secret",
    "src/\u2025/data/secret",
    "\uff44ata/secret",
    "file:///etc/passwd",
    "src/" + "x/" * 3000 + "a",
    "x" * 5000,
]


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_no_spelling_of_a_path_reads_what_the_cage_hides(
    project: Path, spelling: str
) -> None:
    path = spelling.replace("{root}", str(project.resolve()))
    lab = ToolLab(project, file_tools(), cage("rw ./src", root=project), CODER)
    for tool, more in (
        ("file.read", {}),
        ("file.write", {"content": "mine"}),
        ("file.create", {"content": "mine"}),
        ("edit.text", {"old_string": "canary", "new_string": "mine"}),
    ):
        try:
            result = await lab.call_with(tool, {"path": path, **more})
        except ToolError as error:
            shown = json.dumps(error.as_json())
        else:
            shown = json.dumps(result)
        assert "canary" not in shown
    for name in ("data/secret", "src-secret/b", "../outside"):
        assert (project / name).read_text(encoding="utf-8") == "canary\n"


@requirement("AT-CTX-08")
async def test_arguments_cannot_dress_up_as_the_context(project: Path) -> None:
    spy = Spy()
    tool = make_tool("file.peek", handler=spy, paths=["path"], requires=[RO])
    lab = ToolLab(project, [tool], cage("ro ./src", root=project), CODER)
    forged: list[dict[str, Any]] = [
        {"path": "data/secret", "cage_policy": None},
        {"path": "data/secret", "caller": "primary"},
        {"path": "data/secret", "context": {"caller": "primary", "cage_policy": None}},
        {"path": "data/secret", "__class__": "x"},
    ]
    for params in forged:
        assert (await lab.refusal_with("file.peek", params)).code == "invalid_params"
    assert spy.calls == []


async def test_a_handler_cannot_widen_its_own_call(project: Path) -> None:
    async def greedy(call: Any) -> Any:
        call.args["path"] = "data/secret"
        return {"readable": call.readable(f"{call.workspace.root}/data/secret")}

    tool = make_tool("file.peek", handler=greedy, paths=["path"], requires=[RO])
    lab = ToolLab(project, [tool], cage("ro ./src", root=project), CODER)
    sent = {"path": "src/a.py"}
    assert await lab.call_with("file.peek", sent) == {"readable": False}
    assert sent == {"path": "src/a.py"}


@pytest.mark.parametrize(
    "name", ["kaged.issue", "kaged.issue.create", "KAGED.ISSUE", "kaged.issue ", "kaged\0.issue"]
)
async def test_no_spelling_of_a_name_leaves_the_scope(project: Path, name: str) -> None:
    spy = Spy()
    tool = make_tool(
        "kaged.issue",
        handler=spy,
        root_only=True,
        properties={"action": {"enum": ["create"]}},
        aliases={"kaged.issue.create": {"action": "create"}},
    )
    lab = ToolLab(project, [tool], None, CODER)
    error = await lab.refusal_with(name, {"action": "create"})
    assert error.code in {"principal_scope_violation", "tool_not_found"}
    assert spy.calls == []


async def test_huge_and_deep_arguments_end_as_errors(project: Path) -> None:
    tool = make_tool("file.peek", properties={"x": {"type": "integer"}})
    lab = ToolLab(project, [tool])
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    for params in ({"x": deep}, {"x": "y" * 5_000_000}, {f"k{n}": n for n in range(20_000)}):
        error = await lab.refusal_with("file.peek", params)
        assert error.code == "invalid_params"
        assert len(json.dumps(error.as_json())) < 20_000
