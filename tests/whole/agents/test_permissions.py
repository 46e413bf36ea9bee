"""What a cage lets an agent's tools do, path by path, and what a refusal gives away: nothing."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.agents import agent, caged, path_of
from whole.harness.project import Project

CODER = path_of("coder")
EDIT = {"old_string": "one", "new_string": "two"}
REWRITE = {"rewrites": {"one": "two"}, "lang": "python", "dry_run": False}
TOOLS = ("file.*", "edit.*", "search.*", "code.*", "debug", "shell.*")


def enclosed(project: Project, cage: object, **more: Any) -> Project:
    """Describe a coder with every tool and this cage, and write a few files."""
    for path in ("src/a.py", "src/vendor/a.py", "src-secret/a", "srcx/a", "data/a", "data/a.py"):
        project.write(path, "one\n")
    project.write("README.md", "one\n")
    project.write("README.md.bak", "one\n")
    coder = agent(*TOOLS) if cage is None else agent(*TOOLS, cage=cage)
    project.describe(cage="disabled", subagents={"coder": coder}, **more)
    project.reload()
    return project


def denied(project: Project, tool: str, **params: Any) -> str:
    """Make a call of the coder that its cage has to refuse; returns the detail."""
    refused = project.fail(tool, CODER, **params)
    assert (refused["code"], refused["data"]["number"]) == ("capability_denied", -32001), refused
    return str(refused["data"]["detail"])


@whole("AT-PERM-02", "AT-CTX-05", "AT-AMB-24")
def test_without_a_cage_the_project_is_open_and_its_root_is_the_end(project: Project) -> None:
    enclosed(project, "disabled")
    for who in ("primary", CODER):
        for path in ("src/a.py", "data/a", "README.md"):
            assert project.call("file.read", who, path=path)["content"] == "1: one"
        project.call("edit.text", who, path="data/a", **EDIT)
        project.call("edit.text", who, path="data/a", old_string="two", new_string="one")
        assert project.call("search.grep", who, pattern="^one$")["total_matches"] >= 6
        assert project.call("shell.bash", who, command="cat data/a")["stdout"].strip() == "one"
        for path in ("../x", "/etc/passwd", "src/../../x"):
            for tool, more in (("file.read", {}), ("file.create", {"content": "x"})):
                assert project.fail(tool, who, path=path, **more)["code"] == "invalid_params"
    enclosed(project, caged("ro:./src"))
    assert project.fail("file.read", CODER, path="../x")["code"] == "invalid_params"
    assert denied(project, "file.read", path="data/a")


@whole("AT-CTX-05", "AT-AMB-21")
def test_a_root_agent_with_a_cage_is_held_to_it_like_any_other(project: Project) -> None:
    enclosed(project, "disabled")
    project.describe(cage=caged("ro:./src"))
    project.reload()
    assert project.call("file.read", path="src/a.py")["content"] == "1: one"
    for path in ("./src/new", "./data/new"):
        refused = project.fail("file.write", path=path, content="x")
        assert (refused["code"], refused["data"]["detail"]) == (
            "capability_denied",
            f"rw:fs:{path}",
        )
    assert project.fail("file.read", path="./data/a")["data"]["detail"] == "ro:fs:./data/a"


class Swapper(threading.Thread):
    """Puts a file and a link out of the project in the same place, in turn, until it is stopped."""

    def __init__(self, place: Path, leads_to: Path) -> None:
        super().__init__(daemon=True)
        self.place, self.leads_to = place, leads_to
        self.swaps = 0
        self.stopped = threading.Event()

    def run(self) -> None:
        honest, link = self.place.with_name("honest"), self.place.with_name("link")
        while not self.stopped.is_set():
            link.symlink_to(self.leads_to)
            link.replace(self.place)
            honest.write_text("honest\n", encoding="utf-8")
            honest.replace(self.place)
            self.swaps += 1


@whole("AT-PERM-15")
def test_a_link_that_is_swapped_in_during_calls_leads_nowhere(
    project: Project, tmp_path: Path
) -> None:
    secret = tmp_path / "neighbour.txt"
    secret.write_text("the neighbour's secret\n", encoding="utf-8")
    project.write("swap/f", "honest\n")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("file.read", {"path": "swap/f"}),
        ("search.grep", {"pattern": "secret|honest", "path": "swap", "output_mode": "content"}),
        ("edit.text", {"path": "swap/f", "old_string": "secret", "new_string": "planted"}),
        ("file.write", {"path": "swap/f", "content": "planted\n"}),
    ]
    swapper = Swapper(project.root / "swap" / "f", secret)
    swapper.start()
    said: list[str] = []
    try:
        for turn in range(160):
            tool, params = calls[turn % 8 if turn % 8 < 4 else 0]
            body = {"agent": "primary", "tool": tool, "params": params}
            answer = project.daemon.client.post(
                f"/api/v1/projects/{project.id}/tools/call", json=body
            )
            said.append(answer.text)
    finally:
        swapper.stopped.set()
        swapper.join()
    assert swapper.swaps > 100, "the attack did take place"
    assert any("honest" in one for one in said), "and not every call failed"
    assert "neighbour's" not in "".join(said)
    assert "internal_error" not in "".join(said)
    assert secret.read_text(encoding="utf-8") == "the neighbour's secret\n"


@whole("AT-PERM-03", "AT-AMB-22")
@pytest.mark.parametrize("mount", ["./src", "src", "./src/", "project:/src"])
def test_a_mount_grants_what_lies_in_it_and_not_what_begins_like_it(
    project: Project, mount: str
) -> None:
    enclosed(project, caged(f"ro:{mount}"))
    for path in ("src", "src/a.py", "src/vendor/a.py"):
        project.call("file.read", CODER, path=path)
    for path in ("./src-secret/a", "./srcx/a", "./src-secret", "./src/../data/a", "./"):
        assert denied(project, "file.read", path=path) == f"ro:fs:{path}"


@whole("AT-PERM-04")
def test_links_are_followed_before_anything_is_compared(project: Project) -> None:
    enclosed(project, caged("ro:./src", "rw:./alias", "rw:./box"))
    (project.root / "src" / "out").symlink_to("../data")
    (project.root / "src" / "file").symlink_to("../data/a")
    (project.root / "real").mkdir()
    (project.root / "alias").symlink_to("real")
    project.write("box/inner/a", "one\n")
    (project.root / "box" / "leaves").symlink_to("../data")
    project.reload()
    for path in ("src/out/a", "src/file", "src/out"):
        assert denied(project, "file.read", path=path)
    project.call("file.create", CODER, path="alias/new", content="x")
    assert project.read("real/new") == "x"
    assert project.call("file.read", CODER, path="real/new")["content"] == "1: x"
    assert denied(project, "file.create", path="box/leaves/new/deep", content="x")
    assert denied(project, "file.create", path="box/inner/../../data/new", content="x")
    project.call("file.create", CODER, path="box/fresh/deep/new", content="x")
    assert not (project.root / "data" / "new").exists()


@whole("AT-PERM-05", "AT-PERM-17", "AT-PERM-18", "AT-FAIL-08")
def test_reading_takes_either_mode_and_writing_takes_rw(project: Project) -> None:
    project.write("src/main.ts", "one\n")
    project.write("data/secrets.json", "{}")
    project.write("out/a", "one\n")
    enclosed(project, caged("ro:./src", "rw:./out"))
    assert project.call("file.read", CODER, path="./src/main.ts")["content"] == "1: one"
    assert project.call("file.read", CODER, path="out/a")["content"] == "1: one"
    assert denied(project, "file.read", path="./data/secrets.json")
    assert denied(project, "edit.text", path="./src/main.ts", **EDIT) == "rw:fs:./src/main.ts"
    project.call("edit.text", CODER, path="out/a", **EDIT)
    assert (project.read("src/main.ts"), project.read("out/a")) == ("one\n", "two\n")


@whole("AT-PERM-06", "AT-AMB-23")
@pytest.mark.parametrize("turned", [False, True])
def test_of_several_mounts_the_most_specific_one_decides(project: Project, turned: bool) -> None:
    mounts = ["rw:./src", "ro:./src/vendor", "rw:./src/vendor/mine"]
    enclosed(project, caged(*(mounts[::-1] if turned else mounts)))
    project.call("file.write", CODER, path="src/new", content="x")
    assert project.call("file.read", CODER, path="src/vendor/a.py")["content"] == "1: one"
    assert denied(project, "file.write", path="./src/vendor/b", content="x")
    project.call("file.write", CODER, path="src/vendor/mine/b", content="x")


@whole("AT-PERM-07")
@pytest.mark.parametrize(
    ("mount", "granted", "refused"),
    [
        ("./README.md", ["README.md"], ["README.md.bak", "src/a.py", "./"]),
        (".", ["README.md", "src/a.py", "./"], []),
        ("./", ["README.md", "data/a", "./"], []),
        ("src/*.py", ["src/a.py"], ["src/vendor/a.py", "data/a.py"]),
        ("**/*.py", ["src/a.py", "src/vendor/a.py", "data/a.py"], ["data/a", "README.md"]),
        ("data/?", ["data/a"], ["data/a.py"]),
        ("[sd]*/a.py", ["src/a.py", "data/a.py"], ["data/a", "src/vendor/a.py"]),
    ],
)
def test_a_mount_can_be_a_file_the_root_or_a_pattern(
    project: Project, mount: str, granted: list[str], refused: list[str]
) -> None:
    enclosed(project, caged(f"ro:{mount}"))
    for path in granted:
        project.call("file.read", CODER, path=path)
    for path in refused:
        assert denied(project, "file.read", path=path)


@whole("AT-PERM-08")
@pytest.mark.parametrize(
    ("tool", "params", "detail"),
    [
        ("search.ast", {"pattern": "one", "lang": "python", "paths": ["src", "./data"]}, "ro"),
        ("shell.bash", {"command": "touch ran", "cwd": "./data"}, "rw"),
        ("debug", {"action": "launch", "runtime": "python", "script": "./data/a.py"}, "ro"),
        (
            "debug",
            {"action": "launch", "runtime": "python", "script": "src/a.py", "cwd": "./data"},
            "ro",
        ),
        ("search.glob", {"pattern": "*", "path": "./data"}, "ro"),
        ("edit.ast", {**REWRITE, "path": "./data"}, "rw"),
        ("code.lsp", {"action": "symbols", "path": "./data/a.py"}, "ro"),
    ],
)
def test_every_path_of_a_call_is_checked(
    project: Project, tool: str, params: dict[str, Any], detail: str
) -> None:
    cage = caged("rw:./src", capabilities=["shell", "exec"])
    enclosed(project, cage)
    assert denied(project, tool, **params).startswith(f"{detail}:fs:./data")
    assert not (project.root / "data" / "ran").exists()
    assert project.read("data/a.py") == "one\n"


@whole("AT-PERM-08")
def test_where_a_file_would_be_moved_to_is_checked_too(project: Project) -> None:
    enclosed(project, caged("rw:./src"))
    move = {"action": "rename_file", "path": "./src/a.py", "new_path": "./data/moved.py"}
    refused = project.fail("code.lsp", CODER, **move)
    assert refused["code"] in ("rename_scope_exceeds_cage", "capability_denied"), refused
    assert "./data/moved.py" in json.dumps(refused["data"])
    assert project.read("src/a.py") == "one\n"
    assert not (project.root / "data" / "moved.py").exists()
    edit = {**REWRITE, "path": "./"}
    assert project.fail("edit.ast", CODER, **edit)["code"] == "capability_denied"
    assert project.read("src/a.py") == project.read("data/a.py") == "one\n"


@whole("AT-PERM-09", "AT-PERM-26")
@pytest.mark.parametrize(
    ("tool", "mode", "more"),
    [
        ("file.read", "ro", {}),
        ("file.write", "rw", {"content": "x"}),
        ("file.create", "rw", {"content": "x"}),
        ("edit.text", "rw", EDIT),
        ("search.grep", "ro", {"pattern": "one"}),
        ("search.glob", "ro", {"pattern": "*"}),
    ],
)
def test_a_refusal_names_the_missing_access_and_not_whether_the_file_is_there(
    project: Project, tool: str, mode: str, more: dict[str, Any]
) -> None:
    enclosed(project, caged("ro:./src"))
    answers: list[dict[str, Any]] = []
    for path in ("./data/a", "./data/x"):
        refused = project.fail(tool, CODER, path=path, **more)
        assert refused["data"]["detail"] == f"{mode}:fs:{path}"
        answers.append(json.loads(json.dumps(refused).replace(path, "PATH")))
        answers[-1].pop("request_id")
    assert answers[0] == answers[1]
    assert answers[0]["code"] == "capability_denied"


@whole("AT-PERM-01", "AT-PERM-11", "AT-DAP-14")
def test_every_requirement_has_to_be_met_and_the_missing_capability_is_named(
    project: Project,
) -> None:
    launch = {"action": "launch", "runtime": "python", "script": "src/a.py"}
    enclosed(project, caged("rw:./src"))
    assert "shell" in denied(project, "shell.bash", command="touch ran", cwd="./src")
    assert "exec" in denied(project, "debug", **launch)
    enclosed(project, caged("rw:./src", capabilities=["exec"]))
    assert "shell" in denied(project, "shell.bash", command="touch ran", cwd="./src")
    enclosed(project, caged("ro:./src", capabilities=["shell", "exec"]))
    assert denied(project, "shell.bash", command="touch ran", cwd="./src") == "rw:fs:./src"
    enclosed(project, caged("rw:./src", capabilities=["shell"]))
    assert "exec" in denied(project, "debug", **launch)
    assert not (project.root / "src" / "ran").exists()
    project.call("shell.bash", CODER, command="touch ran", cwd="./src")
    assert (project.root / "src" / "ran").exists()


@whole("AT-PERM-14", "AT-PERM-13")
@pytest.mark.parametrize("cage", [caged(), {}, {"net": {"allow": ["*"]}}, None])
@pytest.mark.parametrize("capabilities", [[], ["shell", "exec"]])
def test_an_empty_cage_leaves_no_tool_that_touches_files(
    project: Project, cage: dict[str, Any] | None, capabilities: list[str]
) -> None:
    enclosed(project, None if cage is None else {**cage, "capabilities": capabilities})
    for tool, params in (
        ("file.read", {"path": "src/a.py"}),
        ("edit.text", {"path": "src/a.py", **EDIT}),
        ("search.grep", {"pattern": "one"}),
        ("code.lsp", {"action": "diagnostics", "path": "src/a.py"}),
        ("debug", {"action": "launch", "runtime": "python", "script": "src/a.py"}),
        ("debug", {"action": "threads"}),
        ("shell.bash", {"command": "touch ran"}),
    ):
        assert denied(project, tool, **params), tool
    assert not (project.root / "ran").exists()
    assert project.read("src/a.py") == "one\n"


MATRIX_CAGES: dict[str, Any] = {
    "none": "disabled",
    "default": caged("ro:./src", "rw:./out", capabilities=["shell", "exec"]),
    "relaxed": caged("ro:./src", "rw:./out", capabilities=["shell", "exec"], seccomp="relaxed"),
}


@whole("AT-PERM-19", "AT-PERM-20", "AT-PERM-21", "AT-PERM-24")
@pytest.mark.parametrize("column", MATRIX_CAGES)
def test_the_table_of_tools_and_cages(project: Project, column: str) -> None:
    enclosed(project, MATRIX_CAGES[column])
    free = column == "none"
    for folder, reads, writes in (
        ("src", True, free),
        ("out", True, True),
        ("data", free, free),
    ):
        for name in ("read.py", "write.py", "text.py", "ast.py"):
            project.write(f"{folder}/{name}", "one\n")
        for tool, allowed, params in (
            ("file.read", reads, {"path": f"{folder}/read.py"}),
            ("file.create", writes, {"path": f"{folder}/new", "content": "x"}),
            ("file.write", writes, {"path": f"{folder}/fresh", "content": "x"}),
            ("edit.text", writes, {"path": f"{folder}/read.py", **EDIT}),
            ("edit.ast", writes, {"path": f"{folder}/ast.py", **REWRITE}),
            ("search.grep", reads, {"pattern": "one", "path": folder}),
            ("search.glob", reads, {"pattern": "*", "path": folder}),
            ("search.ast", reads, {"pattern": "one", "lang": "python", "paths": [folder]}),
            ("shell.bash", writes, {"command": "echo hi > said", "cwd": folder}),
        ):
            if allowed:
                project.call(tool, CODER, **params)
            else:
                assert denied(project, tool, **params), (tool, folder)
        files = {path.name for path in (project.root / folder).iterdir()}
        assert ({"new", "fresh", "said"} <= files) is writes
        assert (project.read(f"{folder}/ast.py") == "two\n") is writes
    found = project.call("search.grep", CODER, pattern="^one$", output_mode="content")
    inside = {one["file"].split("/")[1] for one in found["matches"] if "content" in one}
    assert {"src", "out"} <= inside
    assert ({"data", "srcx", "README.md"} <= inside) is free
    outside = [one for one in found["matches"] if "content" not in one]
    assert {one["file"].split("/")[1] for one in outside} == (
        set() if free else {"data", "src-secret", "srcx", "README.md", "README.md.bak"}
    )
    assert all(set(one) == {"file", "line", "outside_cage"} for one in outside), outside


@whole("AT-PERM-24")
def test_a_shell_needs_the_capability_in_either_cage(project: Project) -> None:
    for seccomp in ("default", "relaxed"):
        enclosed(project, caged("rw:.", seccomp=seccomp))
        assert "shell" in denied(project, "shell.bash", command="touch ran")
    assert not (project.root / "ran").exists()
