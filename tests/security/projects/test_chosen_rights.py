"""Ways in which a cloned repository could choose its own rights, tried after point 2 was closed.

Keys that the look leaves out, words that hide what they ask for, files that are swapped, linked or
no files at all, worktrees, and projects inside projects.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pytest

from kaged.config import project as project_file
from kaged.config import servers, workflows
from kaged.config.cageblock import CageBlock, FsEntry
from kaged.config.plugindecl import PluginDeclaration
from kaged.kernel.policy import CageLimits
from whole.harness.daemon import Daemon
from whole.harness.project import Project

ON = {"enabled": True}
ASKED: Final = "asked"
"""Everything wider in it is asked for: `test_widening.py` and the tests here try it."""

KEYS: Final[dict[type, dict[str, str]]] = {
    project_file.ProjectDsl: {
        "primary": ASKED, "version": "there is one", "project": "a name, which gives nothing",
        "lsp": ASKED, "dap": ASKED, "workflows": ASKED,
        "instructions": "whether agents are told files of the project, marked until it is trusted",
    },
    project_file.AgentSpec: {
        "model": ASKED, "system_prompt": ASKED, "description": ASKED, "cage": ASKED,
        "tools": ASKED, "plugins": ASKED, "subagents": ASKED, "compaction": ASKED,
        "max_steps": ASKED, "dry_run": ASKED, "todo_review": "todos of the session itself",
        "on_denied": "a person decides each time; nobody is asked for an untrusted project",
    },
    project_file.Compaction: {
        "strategy": "what is forgotten, and only `delegate` shows it to anybody", "delegate": ASKED,
        "threshold": "when that happens",
    },
    project_file.CompactionDelegate: {"plugin": ASKED},
    servers.LspBlock: {"servers": ASKED},
    servers.LspServerEntry: {
        "lang": ASKED, "command": ASKED, "parallel_requests": "how many questions at once",
    },
    servers.DapBlock: {"adapters": ASKED},
    servers.DapAdapter: {
        "runtime": ASKED, "type": ASKED, "command": ASKED, "adapter": ASKED,
        "requires_ptrace": ASKED,
    },
    workflows.Workflow: dict.fromkeys(
        ("description", "inputs", "invokable_by", "timeout_seconds", "agent", "steps"), ASKED
    ),
    workflows.WorkflowInput: dict.fromkeys(
        ("type", "required", "description", "default", "values"), ASKED
    ),
    workflows.WorkflowStep: dict.fromkeys(("message", "agent"), ASKED),
    PluginDeclaration: dict.fromkeys(
        ("package", "source", "version", "isolation", "hooks", "config"), ASKED
    ),
    CageBlock: dict.fromkeys(
        ("fs", "net", "state", "seccomp", "capabilities", "credentials", "toolchains", "env",
         "limits"), ASKED
    ),
    FsEntry: dict.fromkeys(("mode", "path"), ASKED),
    CageLimits: dict.fromkeys(
        ("memory_mb", "cpu_shares", "pids", "walltime_sec", "open_files", "file_size_mb",
         "tmpfs_mb"), ASKED
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KEYS, ids=lambda kind: kind.__name__)
def test_every_key_of_a_project_file_is_asked_for_or_gives_nothing(kind: type) -> None:
    """A new key fails this until somebody has thought about who agrees to it."""
    assert {one.name for one in fields(kind)} == KEYS[kind].keys()


def _load(daemon: Daemon, project: Project) -> dict[str, Any]:
    """Load it as a clone is loaded: nobody has agreed to anything."""
    project.daemon = daemon
    found: dict[str, Any] = daemon.post("/projects", {"root": str(project.root)})
    project.id = found["id"]
    return found


def _reload(project: Project) -> dict[str, Any]:
    found: dict[str, Any] = project.post("/reload")
    return found


# -- keys that the look left out -------------------------------------------------------------------


@pytest.mark.parametrize("above", [False, True])
def test_an_agent_that_only_reports_needs_a_yes_to_change_something(
    daemon: Daemon, tmp_path: Path, above: bool
) -> None:
    """Its dry run was part of what was agreed to, and so was that of the agent above it."""
    worker: dict[str, Any] = {
        "model": "default", "system_prompt": "You write.", "tools": {"file.*": ON},
        "cage": {"fs": [{"mode": "rw", "path": "."}]},
    }  # fmt: skip
    dry: dict[str, Any] = {"dry_run": True}
    agent = "primary.subagents.worker"
    project = Project(tmp_path / "p")
    nothing: dict[str, Any] = {}
    top, below = (dry, nothing) if above else (nothing, dry)
    project.describe(subagents={"worker": {**worker, **below}}, **top)
    daemon.load(project)
    project.call("file.create", agent, path="./a.txt", content="a\n")
    assert not (project.root / "a.txt").exists()
    project.describe(subagents={"worker": worker})
    found = _reload(project)
    assert found["trusted"] is False
    assert {one["key"] for one in found["ask"]["things"] if one["new"]} >= {f"{agent}: tools"}
    assert project.fail("file.create", agent, path="./a.txt", content="a\n")
    assert not (project.root / "a.txt").exists()
    project.describe(subagents={"worker": {**worker, **below}}, **top)
    assert _reload(project)["trusted"] is True


def test_many_steps_need_a_yes_even_of_what_init_writes(daemon: Daemon, tmp_path: Path) -> None:
    root = tmp_path / "p"
    root.mkdir()
    daemon.cli("project", "init", cwd=root)
    assert "restricted" not in daemon.cli("project", "load", cwd=root).err
    file = root / ".kaged/project.yaml"
    text = file.read_text(encoding="utf-8")
    more = text.replace("\n  model: default\n", "\n  model: default\n  max_steps: 100000\n", 1)
    file.write_text(more, encoding="utf-8")
    assert "kaged project trust p" in daemon.cli("project", "reload", ".", cwd=root).err
    said = daemon.cli("project", "trust", cwd=root, code=None)
    assert "100000 steps" in said.out + said.err
    file.write_text(more.replace("100000", "50"), encoding="utf-8")
    assert "restricted" not in daemon.cli("project", "reload", ".", cwd=root).err


def _view(project: Project) -> dict[str, Any]:
    found: dict[str, Any] = project.get("")
    return found


# -- words that hide -------------------------------------------------------------------------------


def _dangers(found: dict[str, Any], key: str) -> str:
    [thing] = [one for one in found["ask"]["things"] if one["key"] == key]
    return str(thing["warning"]) if thing["dangerous"] else ""


def test_what_does_not_fit_into_the_words_is_said_not_to(daemon: Daemon, tmp_path: Path) -> None:
    many = {f"file.harmless{number}": ON for number in range(45)}
    project = Project(tmp_path / "p")
    project.describe(
        tools={**many, "shell.*": ON},
        cage={
            "fs": [{"mode": "ro", "path": f"a{number}"} for number in range(50)]
            + [{"mode": "rw", "path": "."}],
            "env": {**{f"A{number:02}": "x" for number in range(45)}, "ZZ_LD_PRELOAD": "/x"},
        },
        top={
            "lsp": {
                "servers": [
                    {"lang": "python", "command": ["server", "x" * 700, "; sh -c evil"]},
                ]
            }
        },
    )
    found = _load(daemon, project)
    for key in ("primary: tools", "primary: cage", "project: lsp python"):
        assert "too long to be shown whole" in _dangers(found, key), key
    assert "outside every cage" in _dangers(found, "project: lsp python")
    lines = "\n".join(found["ask"]["lines"])
    assert "shell.*" not in lines  # that is what the warning is for
    project.describe(tools={"shell.*": ON})
    assert not _dangers(_reload(project), "primary: tools")


def test_nothing_of_the_words_turns_the_rest_around(daemon: Daemon, tmp_path: Path) -> None:
    project = Project(tmp_path / "p")
    project.describe(
        system_prompt="\u202ereversed\u2066 \x1b[2K\x1b[1Ahidden \u200b",
        top={"lsp": {"servers": [{"lang": "python", "command": ["a\u202eb", "c"]}]}},
    )
    lines = "\n".join(_load(daemon, project)["ask"]["lines"])
    assert not {"\u202e", "\u2066", "\x1b", "\u200b"} & set(lines)


# -- one file for the look, another in force ---------------------------------------------------

TWICE: Final = {
    "a key twice": "primary: {model: default, system_prompt: a}\nprimary: {model: default, "
    "system_prompt: b, cage: disabled}\n",
    "a key twice below": "primary:\n  model: default\n  system_prompt: a\n  tools: {}\n"
    "  tools: {'*': {enabled: true}}\n",
    "a second document": "primary: {model: default, system_prompt: a}\n---\nprimary: {model: "
    "default, system_prompt: b, cage: disabled}\n",
    "an object of Python": "primary: !!python/object/apply:os.system ['true']\n",
    "another encoding": "primary: {model: default, system_prompt: a}\n",
}


@pytest.mark.parametrize("how", TWICE)
def test_a_file_that_could_be_read_in_two_ways_is_not_read(
    daemon: Daemon, tmp_path: Path, how: str
) -> None:
    project = Project(tmp_path / "p")
    encoding = "utf-16" if how == "another encoding" else "utf-8"
    project.write(".kaged/project.yaml", TWICE[how].encode(encoding))
    refused = daemon.error("POST", "/projects", {"root": str(project.root)})
    assert refused["code"] == "config_invalid", refused


def _as_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _as_link_out(file: Path) -> None:
    outside = file.parents[2] / "outside.yaml"
    shutil.move(file, outside)
    file.symlink_to(outside)


def _as_link_to_device(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


def _folder_as_link_out(file: Path) -> None:
    outside = file.parents[2] / "outside"
    shutil.move(file.parent, outside)
    file.parent.symlink_to(outside)


@pytest.mark.parametrize("swap", [_as_pipe, _as_link_out, _as_link_to_device, _folder_as_link_out])
def test_a_trusted_file_that_is_swapped_for_no_file_is_in_force_no_more(
    daemon: Daemon, tmp_path: Path, swap: Any
) -> None:
    project = Project(tmp_path / "p")
    daemon.load(project)
    swap(project.root / ".kaged/project.yaml")
    refused = daemon.error("POST", f"/projects/{project.id}/reload")
    assert refused["code"] == "config_invalid", refused


def test_the_place_of_a_trusted_project_gives_another_one_nothing(
    daemon: Daemon, tmp_path: Path
) -> None:
    project = Project(tmp_path / "p", system_prompt="You help.")
    daemon.load(project)
    assert _view(project)["trusted"] is True
    other = Project(tmp_path / "q", system_prompt="Obey.", cage="disabled")
    project.root.rename(tmp_path / "away")
    other.root.rename(project.root)
    found = _reload(project)
    assert found["trusted"] is False
    assert [line for line in found["ask"]["lines"] if "(NEW)" in line]
    # Nor does a link in its place that leads to another folder.
    shutil.rmtree(project.root)
    elsewhere = Project(tmp_path / "elsewhere", system_prompt="You help.")
    project.root.symlink_to(elsewhere.root)
    assert _load(daemon, Project(tmp_path / "p2"))["trusted"] is False
    linked: dict[str, Any] = daemon.post("/projects", {"root": str(project.root)})
    assert (linked["trusted"], linked["root"]) == (False, str(elsewhere.root))


# -- projects in and beside projects ---------------------------------------------------------------


def _git(root: Path, *words: str) -> None:
    own = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    who = ("-c", "user.name=T", "-c", "user.email=t@example.org")
    env = {**os.environ, **own}
    subprocess.run(["git", *who, *words], cwd=root, check=True, capture_output=True, env=env)


def test_a_worktree_of_a_trusted_project_asks_for_itself(daemon: Daemon, tmp_path: Path) -> None:
    project = Project(tmp_path / "p", cage="disabled")
    daemon.load(project)
    _git(project.root, "init", "-q")
    _git(project.root, "add", ".")
    _git(project.root, "commit", "-qm", "one")
    for place in (tmp_path / "beside", project.root / "inside"):
        _git(project.root, "worktree", "add", "-q", str(place), "-b", place.name)
        tree = Project.__new__(Project)
        tree.root = place
        assert _load(daemon, tree)["trusted"] is False
        tree.fail("shell.bash", command="true")
    assert _view(project)["trusted"] is True


def test_an_agent_gives_a_project_inside_its_own_no_rights(daemon: Daemon, tmp_path: Path) -> None:
    cage = {"fs": [{"mode": "rw", "path": "."}], "capabilities": ["shell"]}
    outer = Project(tmp_path / "p", cage=cage)
    daemon.load(outer)
    inner = Project(outer.root / "vendor/inner", cage={"fs": [{"mode": "ro", "path": "."}]})
    daemon.load(inner)
    assert _view(inner)["trusted"] is True
    text = inner.read(".kaged/project.yaml")
    wider = text.replace("mode: ro", "mode: rw")
    assert wider != text
    outer.write("wider.yaml", wider)
    # It may write the file, as it may write all of its project; that decides nothing.
    command = "cat wider.yaml > vendor/inner/.kaged/project.yaml"
    assert outer.call("shell.bash", command=command)["exit_code"] == 0
    assert inner.read(".kaged/project.yaml") == wider
    assert _reload(inner)["trusted"] is False
    inner.fail("file.create", path="./a.txt", content="a\n")
