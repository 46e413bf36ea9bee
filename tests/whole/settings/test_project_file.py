"""The project file as a running daemon reads it: what it says comes true, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from requirements.marker import whole
from whole.harness.daemon import Daemon
from whole.harness.model import ModelServer, say
from whole.harness.project import Project
from whole.harness.talk import Talk, asked

AGENT = "{model: default, system_prompt: hi"
BASE = f"primary: {AGENT}}}\n"
SUB = f"primary: {AGENT}, subagents: {{%s: {AGENT}, %s}}}}}}\n"
FLOW = BASE + "workflows: {w: {%s}}\n"
INPUT = BASE + "workflows: {w: {inputs: {a: {%s}}}}\n"


def load(daemon: Daemon, root: Path, text: str) -> Project:
    """Load a project whose file has this text."""
    project = Project(root)
    project.write(".kaged/project.yaml", text)
    return daemon.load(project)


def problems(daemon: Daemon, root: Path, text: str) -> dict[str, str]:
    """Return what is wrong with a project file that is not loaded, by key path."""
    project = Project(root)
    project.write(".kaged/project.yaml", text)
    refused = daemon.error("POST", "/projects", {"root": str(root), "trust": True})
    assert (refused["status"], refused["code"]) == (422, "config_invalid")
    found = refused["data"]["problems"]
    assert all(one["line"] >= 1 and one["file"].endswith("project.yaml") for one in found)
    assert str(root) not in [one["root"] for one in daemon.get("/projects?limit=200")["items"]]
    return {one["key_path"]: one["message"] for one in found}


def agents(project: Project) -> dict[str, Any]:
    """Return the agents of a loaded project by path."""
    return {one["path"]: one for one in project.get("")["tree"]["agents"]}


FULL: dict[str, Any] = {
    "version": 1,
    "project": {"name": "Music Box", "description": "Plays."},
    "primary": {
        "model": "default",
        "system_prompt": "project:/prompts/primary.md",
        "description": "Leads.",
        "cage": {
            "fs": [{"mode": "rw", "path": "./src"}, {"mode": "ro", "path": "."}],
            "net": {"allow": ["example.org:443"]},
            "state": "persistent",
            "seccomp": "relaxed",
            "capabilities": ["shell"],
            "env": {"GREETING": "hello"},
            "limits": {"memory_mb": 600, "cpu_shares": 100, "pids": 60, "walltime_sec": 90},
        },
        "tools": {"file.*": {"enabled": True}, "file.create": {"enabled": False}},
        "max_steps": 7,
        "compaction": {"strategy": "summarize", "threshold": 0.8},
        "plugins": {
            "memory": {
                "package": "@kaged/memory-x",
                "isolation": "project",
                "hooks": ["on_session_start", "on_session_idle", "pre_compact", "post_compact"],
                "config": {"recall_budget": "mid", "tags": ["primary"]},
            }
        },
        "subagents": {
            "coder": {
                "model": "default",
                "system_prompt": "config:/coder.md",
                "description": "Codes.",
                "todo_review": "auto",
                "plugins": {"memory": {"config": {"tags": ["coder"]}}},
                "subagents": {"inner_1": {"model": "default", "system_prompt": "x"}},
            }
        },
    },
    "lsp": {"servers": [{"lang": "python", "command": ["pylsp", "-v"]}]},
    "dap": {
        "adapters": [
            {"runtime": "bun", "command": ["bun"], "adapter": ["bun-dap"], "type": "bun"},
            {"runtime": "node", "adapter": ["js-debug"], "type": "pwa-node"},
            {"runtime": "python", "command": ["py"], "type": "python", "requires_ptrace": False},
        ]
    },
    "workflows": {
        "deploy": {
            "description": "Deploys.",
            "inputs": {"branch": {"type": "string", "required": True}},
            "invokable_by": ["operator", "guest"],
            "timeout": 60,
            "agent": "primary.subagents.coder",
        }
    },
}


@whole("AT-DSL-01", "AT-DSL-18")
def test_a_file_with_only_a_primary_is_enough(daemon: Daemon, tmp_path: Path) -> None:
    project = load(daemon, tmp_path / "My Songs", BASE)
    shown = project.get("")
    assert shown["slug"] == "my-songs"
    named = load(daemon, tmp_path / "b", BASE + "version: 1\nproject: music\n")
    assert named.get("")["slug"] == "music"
    assert problems(daemon, tmp_path / "c", "version: 1\n") == {"primary": "is missing"}
    for number, (text, key) in enumerate(
        [
            (BASE + "version: 2\n", "version"),
            (BASE + "version: '1'\n", "version"),
            (BASE + "colour: red\n", "colour"),
            (BASE + "tools: {}\n", "tools"),
            (BASE + "plugins: {}\n", "plugins"),
            (BASE + "project: No Slug\n", "project"),
            (BASE + "project: {description: x}\n", "project.name"),
        ]
    ):
        assert set(problems(daemon, tmp_path / f"d{number}", text)) == {key}, text


@whole("AT-DSL-02", "AT-DSL-05", "AT-DSL-09", "AT-DSL-13")
def test_a_file_with_every_key_means_what_it_says(
    daemon: Daemon, model: ModelServer, tmp_path: Path
) -> None:
    project = Project(tmp_path / "full")
    project.write("prompts/primary.md", "From the project.")
    project.write(".kaged/coder.md", "From the config folder.")
    project.write(".kaged/project.yaml", yaml.safe_dump(FULL, sort_keys=False))
    daemon.load(project)
    tree = project.get("")["tree"]
    assert (tree["slug"], tree["name"], tree["description"]) == (
        "music-box", "Music Box", "Plays.",
    )  # fmt: skip
    found = agents(project)
    assert list(found) == [
        "primary", "primary.subagents.coder", "primary.subagents.coder.subagents.inner_1",
    ]  # fmt: skip
    root, coder, inner = found.values()
    cage = root["cage"]["value"]
    assert [(one["mode"], Path(one["path"]).name) for one in cage["fs"]] == [
        ("rw", "src"), ("ro", "full"),
    ]  # fmt: skip
    assert (cage["net"], cage["state"], cage["seccomp"]) == (
        ["example.org:443"], "persistent", "relaxed",
    )  # fmt: skip
    assert (cage["capabilities"], cage["env"]) == (["shell"], ["GREETING"])
    assert cage["limits"] == FULL["primary"]["cage"]["limits"]
    assert (root["max_steps"]["value"], coder["max_steps"]["value"]) == (7, 50)
    assert (root["compaction"]["strategy"], root["compaction"]["threshold"]) == ("summarize", 0.8)
    assert coder["compaction"]["strategy"] == "drop"
    assert (coder["todo_review"]["value"], inner["todo_review"]["value"]) == ("auto", "review")
    memory, below = root["plugins"][0], coder["plugins"][0]
    assert (memory["key"], memory["package"]["value"]) == ("memory", "@kaged/memory-x")
    assert memory["hooks"]["value"] == FULL["primary"]["plugins"]["memory"]["hooks"]
    # The one inheritance there is: a plugin that the primary shares with the project.
    assert (below["isolation"]["value"], below["inherits"]) == ("project", True)
    assert below["config"]["recall_budget"]["value"] == "mid"
    assert below["config"]["tags"]["value"] == ["coder"]
    assert inner["plugins"] == []
    assert [one["runtime"] for one in tree["dap"]] == ["bun", "node", "python"]
    assert tree["lsp"] == [{"lang": "python", "command": ["pylsp", "-v"]}]
    assert tree["workflows"] == ["deploy"]


@whole("AT-DSL-02", "AT-DSL-03", "AT-DSL-11", "AT-DSL-17")
@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("primary: {modle: default, system_prompt: x}\n", {"primary.model", "primary.modle"}),
        ("primary: {model: default}\n", {"primary.system_prompt"}),
        (f"primary: {AGENT}, max_steps: 0}}\n", {"primary.max_steps"}),
        (f"primary: {AGENT}, max_steps: 1.5}}\n", {"primary.max_steps"}),
        (f"primary: {AGENT}, todo_review: auto}}\n", {"primary.todo_review"}),
        (SUB % ("coder", "todo_review: maybe"), {"primary.subagents.coder.todo_review"}),
        (SUB % ("coder", "modle: x"), {"primary.subagents.coder.modle"}),
        (SUB % ("a.b", "description: x"), {'primary.subagents."a.b"'}),
        (SUB % ("'a b'", "description: x"), {'primary.subagents."a b"'}),
        (SUB % ("Coder", "description: x"), {"primary.subagents.Coder"}),
        (SUB % ("1st", "description: x"), {"primary.subagents.1st"}),
        (
            f"primary: {AGENT}, subagents: {{a: {AGENT}}}, a: {AGENT}}}}}}}\n",
            {"primary.subagents.a"},
        ),
    ],
)
def test_an_agent_has_these_keys_and_no_others(
    daemon: Daemon, tmp_path: Path, text: str, keys: set[str]
) -> None:
    assert set(problems(daemon, tmp_path / "p", text)) == keys


@whole("AT-DSL-04")
def test_prompts_come_from_files_of_the_project_or_stand_in_place(
    daemon: Daemon, model: ModelServer, tmp_path: Path
) -> None:
    (tmp_path / "secret.md").write_text("Not yours.", encoding="utf-8")
    for number, (prompt, seen) in enumerate(
        [
            ("project:/prompts/primary.md", "From the project."),
            ("config:/primary.md", "From the config folder."),
            ("Plain text.", "Plain text."),
        ]
    ):
        project = Project(tmp_path / f"p{number}", system_prompt=prompt)
        project.write("prompts/primary.md", "From the project.")
        project.write(".kaged/primary.md", "From the config folder.")
        run = Talk(daemon.load(project), model).hear(say("ok"))
        assert asked(model, run["word"])[0]["messages"][0]["content"].strip() == seen
    link = Project(tmp_path / "link")
    (link.root / "link.md").symlink_to(tmp_path / "secret.md")
    for prompt in (
        "project:/../secret.md", "project:/a/../../secret.md", "config:/../../secret.md",
        "project:/nope.md", "project:/link.md",
    ):  # fmt: skip
        text = f'primary: {{model: default, system_prompt: "{prompt}"}}\n'
        assert set(problems(daemon, link.root, text)) == {"primary.system_prompt"}, prompt


@whole("AT-DSL-05", "AT-DSL-06")
def test_a_cage_says_which_files_a_glob_means(daemon: Daemon, tmp_path: Path) -> None:
    cage = {
        "fs": [
            {"mode": "ro", "path": "./src/*.py"},
            {"mode": "rw", "path": "./app/[id]"},
            {"mode": "ro", "path": "./deep/**/notes"},
        ],
        "capabilities": ["shell"],
        "env": {"GREETING": "hello"},
    }
    project = Project(tmp_path / "p", cage=cage)
    for path in (
        "src/a.py", "src/b.txt", "src/sub/c.py", "app/[id]/page.tsx", "app/i/page.tsx",
        "deep/x/y/notes/n.md", "deep/x/m.md",
    ):  # fmt: skip
        project.write(path, f"{path}\n")
    daemon.load(project)
    seen = {"src/a.py", "app/[id]/page.tsx", "deep/x/y/notes/n.md"}
    hidden = {"src/b.txt", "src/sub/c.py", "app/i/page.tsx", "deep/x/m.md"}
    for path in sorted(seen):
        assert project.call("file.read", path=path)["content"] == f"1: {path}"
    for path in sorted(hidden):
        assert project.fail("file.read", path=path)["code"] == "capability_denied", path
    refused = project.fail("file.write", path="src/a.py", content="x")
    assert refused["code"] == "capability_denied"
    project.call("file.create", path="app/[id]/new.tsx", content="x")
    # The cage itself agrees with the check before it.
    command = "echo $GREETING; for f in src/a.py src/b.txt app/*/page.tsx; do cat $f; done"
    said = project.call("shell.bash", command=command, cwd="./app/[id]")["stdout"]
    assert said.splitlines()[0] == "hello"
    listed = project.call(
        "shell.bash", command=f"cd {project.root}; find . -type f", cwd="./app/[id]"
    )["stdout"]
    found = {line.removeprefix("./") for line in listed.splitlines()}
    assert found & (seen | hidden) == seen
    for wrong in (
        "fs: [{mode: rx, path: .}]", "fs: [{path: .}]", "fs: [{mode: ro}]",
        "fs: [{mode: ro, path: ../x}]", "fs: [{mode: ro, path: /etc}]", "net: {allow: [':x']}",
        "state: sometimes", "seccomp: off", "capabilities: [7]", "env: {A: [1]}",
        "limits: {memory_mb: 0}", "limits: {colour: 1}", "colour: red",
    ):  # fmt: skip
        text = f"primary: {AGENT}, cage: {{{wrong}}}}}\n"
        (key,) = problems(daemon, tmp_path / "wrong", text)
        assert key.startswith("primary.cage."), (wrong, key)
    assert set(problems(daemon, tmp_path / "w", f"primary: {AGENT}, cage: enabled}}\n")) == {
        "primary.cage"
    }


@whole("AT-DSL-05")
def test_the_sample_cage_has_the_default_filter_and_no_grants(
    daemon: Daemon, tmp_path: Path
) -> None:
    cage = "fs: [{mode: rw, path: ./src}], net: {allow: []}, state: ephemeral"
    project = load(daemon, tmp_path / "p", SUB % ("coder", f"cage: {{{cage}}}"))
    shown = agents(project)["primary.subagents.coder"]["cage"]["value"]
    assert (shown["seccomp"], shown["capabilities"], shown["net"]) == ("default", [], [])
    said = daemon.cli("cage", "explain", "primary.subagents.coder", cwd=project.root).out
    assert "has no network" in said
    assert "strict system-call filter" in said


@whole("AT-DSL-08", "AT-AMB-31", "AT-AMB-32", "AT-AMB-33")
def test_tools_are_switched_by_name_or_glob_and_the_most_specific_wins(
    daemon: Daemon, tmp_path: Path
) -> None:
    def names(tools: str, place: str) -> set[str]:
        text = f"primary: {AGENT}, tools: {{{tools}}}}}\n"
        shown = load(daemon, tmp_path / place, text).get("/tools")["tools"]
        return {one["name"] for one in shown}

    on, off = "{enabled: true}", "{enabled: false}"
    both = [f"file.*: {on}", f"file.write: {off}"]
    for number, order in enumerate((both, both[::-1])):
        found = names(", ".join(order), f"a{number}")
        assert {"file.read", "file.create"} <= found
        assert "file.write" not in found
        assert "edit.text" not in found
    assert "code.lsp" in names(f"'lsp.*': {on}", "b")
    assert "kaged.issue" not in names(f"'kaged.*': {off}", "c")
    for number, (text, key) in enumerate(
        [
            (f"primary: {AGENT}, tools: {{file.read: true}}}}\n", "primary.tools.file.read"),
            (f"primary: {AGENT}, tools: {{file.read: {{on: 1}}}}}}\n", "primary.tools.file.read"),
            (f"primary: {AGENT}, tools: [file.read]}}\n", "primary.tools"),
            (SUB % ("a", f"tools: {{'*': {on}}}"), "primary.subagents.a.tools"),
            (SUB % ("a", f"tools: {{'kaged.*': {on}}}"), "primary.subagents.a.tools"),
            (SUB % ("a", f"tools: {{kaged.issue: {on}}}"), "primary.subagents.a.tools"),
        ]
    ):
        found = problems(daemon, tmp_path / f"d{number}", text)
        assert all(one.replace('"', "").startswith(key) for one in found), (text, found)


@whole("AT-DSL-09", "AT-DSL-10")
@pytest.mark.parametrize(
    ("agent", "key"),
    [
        ("plugins: {m: {isolation: agent}}", "primary.plugins.m"),
        ("plugins: {m: {package: '@k/m', isolation: world}}", "primary.plugins.m.isolation"),
        ("plugins: {m: {package: '@k/m', hooks: [on_fire]}}", "primary.plugins.m.hooks[0]"),
        ("plugins: {m: {package: '@k/m', config: [1]}}", "primary.plugins.m.config"),
        ("plugins: {m: {package: '@k/m', colour: red}}", "primary.plugins.m.colour"),
        ("plugins: {m: {package: '@k/m', grants: []}}", "primary.plugins.m.grants"),
        ("compaction: {strategy: forget}", "primary.compaction.strategy"),
        ("compaction: {threshold: 0}", "primary.compaction.threshold"),
        ("compaction: {strategy: delegate}", "primary.compaction"),
        ("compaction: {delegate: {plugin: nope}}", "primary.compaction.delegate.plugin"),
        ("compaction: {colour: red}", "primary.compaction.colour"),
    ],
)
def test_plugins_and_compaction_are_checked(
    daemon: Daemon, tmp_path: Path, agent: str, key: str
) -> None:
    found = problems(daemon, tmp_path / "p", f"primary: {AGENT}, {agent}}}\n")
    assert all(one.startswith(key) for one in found), found


@whole("AT-DSL-10")
def test_a_delegate_alone_is_the_strategy_delegate(daemon: Daemon, tmp_path: Path) -> None:
    plugins = "plugins: {m: {package: '@k/mem'}}"
    for number, (compaction, strategy) in enumerate(
        [
            ("{}", "drop"),
            ("{strategy: drop}", "drop"),
            ("{strategy: summarize, threshold: 9000}", "summarize"),
            ("{delegate: {plugin: m}}", "delegate"),
            ("{strategy: delegate, delegate: {plugin: '@k/mem'}}", "delegate"),
        ]
    ):
        text = f"primary: {AGENT}, {plugins}, compaction: {compaction}}}\n"
        shown = agents(load(daemon, tmp_path / f"p{number}", text))["primary"]["compaction"]
        assert shown["strategy"] == strategy, compaction


@whole("AT-DSL-12", "AT-DSL-13")
@pytest.mark.parametrize(
    ("text", "key"),
    [
        (
            "lsp: {servers: [{lang: a, command: [x]}, {lang: a, command: [y]}]}",
            "lsp.servers[1].lang",
        ),
        ("lsp: {servers: [{lang: a, command: []}]}", "lsp.servers[0].command"),
        ("lsp: {servers: [{lang: a, command: ['']}]}", "lsp.servers[0].command[0]"),
        ("lsp: {servers: [{lang: a, command: [1]}]}", "lsp.servers[0].command[0]"),
        ("lsp: {servers: [{lang: a, command: x -v}]}", "lsp.servers[0].command"),
        ("lsp: {servers: [{command: [x]}]}", "lsp.servers[0].lang"),
        ("dap: {adapters: [{runtime: a, type: x}]}", "dap.adapters[0]"),
        ("dap: {adapters: [{runtime: a, command: [x]}]}", "dap.adapters[0].type"),
        (
            (
                "dap: {adapters: [{runtime: a, type: x, command: [x]},"
                " {runtime: a, type: y, adapter: [y]}]}"
            ),
            "dap.adapters[1].runtime",
        ),
    ],
)
def test_servers_and_adapters_are_checked(
    daemon: Daemon, tmp_path: Path, text: str, key: str
) -> None:
    assert set(problems(daemon, tmp_path / "p", f"{BASE}{text}\n")) == {key}


@whole("AT-DSL-14", "AT-DSL-15", "AT-DSL-16")
@pytest.mark.parametrize(
    ("text", "key"),
    [
        (BASE + "workflows: {Bad Name: {description: x}}\n", 'workflows."Bad Name"'),
        (FLOW % "timeout_seconds: 0", "workflows.w.timeout_seconds"),
        (FLOW % "colour: red", "workflows.w.colour"),
        (FLOW % "agent: primary.subagents.nobody", "workflows.w.agent"),
        (FLOW % "invokable_by: [martian]", "workflows.w.invokable_by[0]"),
        (FLOW % "invokable_by: operator", "workflows.w.invokable_by"),
        (INPUT % "type: colour", "workflows.w.inputs.a.type"),
        (INPUT % "required: true", "workflows.w.inputs.a.type"),
        (INPUT % "type: boolean, default: x", "workflows.w.inputs.a.default"),
        (INPUT % "type: string, default: 5", "workflows.w.inputs.a.default"),
        (INPUT % "type: number, default: x", "workflows.w.inputs.a.default"),
        (INPUT % "type: integer, default: 1.5", "workflows.w.inputs.a.default"),
        (INPUT % "type: enum, values: [a], default: b", "workflows.w.inputs.a.default"),
        (INPUT % "type: file, default: x", "workflows.w.inputs.a.default"),
        (INPUT % "type: enum", "workflows.w.inputs.a"),
        (INPUT % "type: string, values: [a]", "workflows.w.inputs.a"),
    ],
)
def test_workflows_are_checked(daemon: Daemon, tmp_path: Path, text: str, key: str) -> None:
    found = problems(daemon, tmp_path / "p", text)
    assert all(one.startswith(key) for one in found), found


@whole("AT-DSL-15", "AT-DSL-16")
def test_every_type_of_input_may_have_a_default_that_fits(daemon: Daemon, tmp_path: Path) -> None:
    inputs = {
        "s": {"type": "string", "default": "x"},
        "n": {"type": "number", "default": 1.5},
        "i": {"type": "integer", "default": 2},
        "b": {"type": "boolean", "default": True},
        "e": {"type": "enum", "values": ["a", "b"], "default": "b"},
        "f": {"type": "file", "description": "A file."},
    }
    text = BASE + yaml.safe_dump({"workflows": {"w": {"inputs": inputs}}})
    (flow,) = load(daemon, tmp_path / "p", text).call("kaged.workflow.list")["workflows"]
    assert {name: one["default"] for name, one in flow["inputs"].items()} == {
        "s": "x", "n": 1.5, "i": 2, "b": True, "e": "b", "f": None,
    }  # fmt: skip
    assert {one["required"] for one in flow["inputs"].values()} == {False}
    assert (flow["invokable_by"], flow["timeout_seconds"]) == (["operator"], 600)


@whole("AT-DSL-18", "AT-DSL-22")
def test_all_problems_are_told_at_once_and_nothing_is_loaded_by_halves(
    daemon: Daemon, tmp_path: Path
) -> None:
    bad = f"primary: {AGENT}, max_steps: 0, modle: 1}}\nversion: 2\n"
    wanted = {"primary.max_steps", "primary.modle", "version"}
    assert set(problems(daemon, tmp_path / "p", bad)) == wanted
    said = daemon.cli("project", "check", str(tmp_path / "p"), "--json", code=6).json
    assert {one["key_path"] for one in said["problems"]} == wanted
    project = load(daemon, tmp_path / "p", f"primary: {AGENT}, max_steps: 3}}\n")
    project.write(".kaged/project.yaml", f"primary: {AGENT}, max_steps: 4}}\nversion: 2\n")
    refused = daemon.error("POST", f"/projects/{project.id}/reload")
    assert refused["code"] == "config_invalid"
    assert agents(project)["primary"]["max_steps"]["value"] == 3


@whole("AT-DSL-22")
@pytest.mark.parametrize(
    "text",
    [
        "primary: {model: default, system_prompt: !!python/object/apply:os.system ['touch %s']}\n",
        "primary: !!python/object/new:os.system ['touch %s']\n",
        "primary: {model: default, system_prompt: !custom x}\n",
        "primary: {model: default, system_prompt: a, system_prompt: b}\n",
        f"{BASE}version: 1\nversion: 1\n",
        f"{BASE}---\n{BASE}",
        "a: &a {model: default}\nprimary: {<<: *a, system_prompt: x}\n",
    ],
)
def test_a_file_is_data_with_each_key_once(daemon: Daemon, tmp_path: Path, text: str) -> None:
    made = tmp_path / "made"
    assert problems(daemon, tmp_path / "p", text.replace("%s", str(made)))
    assert not made.exists()
