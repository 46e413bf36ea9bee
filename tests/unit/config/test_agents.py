from __future__ import annotations

import json
from pathlib import Path

import pytest

from kaged.config import describe, resolve_agents
from kaged.config.agent_limits import agent_defaults
from kaged.config.agents import AgentTree
from kaged.config.project import CompactionStrategy
from kaged.config.serverchoice import AdapterChoice, choose_dap_adapters, choose_lsp_servers
from kaged.kernel.policy import CagePolicy, FsGrant, FsMode
from requirements import requirement
from unit.config.test_project_file import RESOLUTION_SAMPLE
from unit.config.trials import OperatorFiles, ProjectFolder


@pytest.fixture
def sample(project: ProjectFolder, operator: OperatorFiles) -> AgentTree:
    project.put("prompts/primary.md", "Root prompt.")
    project.put("prompts/coder.md", "Coder prompt.")
    return resolve_agents(
        project.load(RESOLUTION_SAMPLE),
        operator.config("[sandbox.agent_limits]\nmemory_mb = 2048\n"),
        operator.local('[models.smart-fast]\nmodel = "openai:small"\napi_key = "sk-secret"\n'),
    )


def test_every_agent_knows_its_settings_and_where_they_came_from(
    sample: AgentTree, project: ProjectFolder, operator: OperatorFiles
) -> None:
    root, coder = sample
    file = str(project.file)
    assert (root.path, coder.path) == ("primary", "primary.subagents.coder")
    assert root.children == (coder.path,)
    assert root.is_root
    assert not coder.is_root
    assert root.model.value.entry is None
    assert coder.model.value.entry is not None
    assert coder.model.value.entry.model == "openai:small"
    assert str(coder.model.origin) == f"{file}:9"
    assert str(coder.model.value.entry_origin) == f"{operator.local_toml}:1"
    assert (root.cage.value, str(root.cage.origin)) == (None, f"{file}:5")
    policy = coder.cage.value
    assert isinstance(policy, CagePolicy)
    assert policy.fs == (FsGrant(f"{project.root}/src", FsMode.RW),)
    assert policy.limits.memory_mb == 2048
    assert [(rule.value.pattern, rule.origin.line) for rule in coder.tools] == [
        ("file.*", 16),
        ("search.*", 17),
        ("lsp.*", 18),
    ]
    assert (coder.max_steps.value, str(coder.max_steps.origin)) == (50, "default")
    assert sample.primary is root
    assert sample["primary.subagents.coder"] is coder
    with pytest.raises(KeyError):
        sample["primary.subagents.nobody"]


def test_an_omitted_cage_is_none_for_the_root_and_empty_below(
    project: ProjectFolder, operator: OperatorFiles
) -> None:
    tree = resolve_agents(
        project.load(project.agent("", "")), operator.config(""), operator.local("")
    )
    root, coder = tree
    assert root.cage.value is None
    assert "uncaged" in str(root.cage.origin)
    assert coder.cage.value == CagePolicy(limits=agent_defaults().limits)
    assert "nothing" in str(coder.cage.origin)


def test_the_description_is_json_with_origins_and_without_secrets(
    sample: AgentTree, project: ProjectFolder
) -> None:
    text = json.dumps(describe(sample))
    assert "sk-secret" not in text
    written = json.loads(text)
    assert written["slug"] == "sample"
    assert [agent["path"] for agent in written["agents"]] == ["primary", "primary.subagents.coder"]
    coder = written["agents"][1]
    assert coder["model"] == {
        "value": "smart-fast",
        "from": f"{project.file}:9",
        "resolves_to": "openai:small",
        "resolved_in": coder["model"]["resolved_in"],
        "problems": [],
    }
    assert coder["cage"]["value"]["fs"] == [{"mode": "rw", "path": f"{project.root}/src"}]
    assert written["agents"][0]["cage"] == {"value": "disabled", "from": f"{project.file}:5"}
    assert coder["tools"][0] == {"pattern": "file.*", "enabled": True, "from": f"{project.file}:16"}


def test_values_of_cage_variables_are_not_shown(
    project: ProjectFolder, operator: OperatorFiles
) -> None:
    loaded = project.load(project.agent("cage: { env: { TOKEN: hunter2 } }\n"))
    tree = resolve_agents(loaded, operator.config(""), operator.local(""))
    text = json.dumps(describe(tree))
    assert "TOKEN" in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    ("block", "strategy", "delegate"),
    [
        ("{}", CompactionStrategy.DROP, None),
        ("{strategy: summarize}", CompactionStrategy.SUMMARIZE, None),
        ("{delegate: {plugin: memory}}", CompactionStrategy.DELEGATE, "memory"),
        ("{delegate: {plugin: smart}}", CompactionStrategy.DELEGATE, "memory"),
        ("{delegate: {plugin: '@k/smart'}}", CompactionStrategy.DELEGATE, "memory"),
        ("{strategy: delegate, delegate: {plugin: other}}", CompactionStrategy.DELEGATE, "other"),
        ("{strategy: drop, delegate: {plugin: other}}", CompactionStrategy.DROP, "other"),
    ],
)
def test_a_delegate_is_found_by_key_name_or_package(
    project: ProjectFolder,
    operator: OperatorFiles,
    block: str,
    strategy: CompactionStrategy,
    delegate: str | None,
) -> None:
    plugins = "plugins: { memory: { package: '@k/smart' }, other: { package: plain } }\n"
    loaded = project.load(project.agent(f"{plugins}compaction: {block}\n"))
    tree = resolve_agents(loaded, operator.config(""), operator.local(""))
    found = tree.primary.compaction.value
    assert (found.strategy, found.delegate) == (strategy, delegate)


def test_a_model_that_cannot_be_used_says_why(
    project: ProjectFolder, operator: OperatorFiles
) -> None:
    local = operator.local('[models.smart]\nmodel = "a:b"\napi_key = "${UNSET}"\n')
    tree = resolve_agents(project.load(project.agent()), operator.config(""), local)
    choice = tree.primary.model.value
    assert choice.entry is None
    assert "UNSET" in choice.problems[0].message
    assert "UNSET" in json.dumps(describe(tree))


LSP = "lsp: {servers: [{lang: python, command: [project-ls]}, {lang: zig, command: [zls]}]}\n"
DAP = "dap: {adapters: [{runtime: python, type: t, adapter: [project-dap]}]}\n"


@requirement("AT-DSL-19")
def test_operator_settings_live_outside_the_project(
    project: ProjectFolder, operator: OperatorFiles
) -> None:
    config = operator.config(
        """\
        [lsp.servers.python]
        command = ["operator-ls"]
        [lsp.servers.go]
        command = ["gopls"]
        [dap.adapters.python]
        type = "debugpy"
        adapter = ["operator-dap"]
        [sandbox.limits]
        memory_mb = 99
        """
    )
    local = operator.local(
        '[plugins."@k/m"]\ntoken = "${TOKEN}"\n[models.smart]\nmodel = "a:b"\n', {"TOKEN": "tok"}
    )
    builtin = {"rust": ("rust-analyzer",), "go": ("builtin-go",)}
    loaded = project.load(LSP + DAP + project.agent())
    servers = choose_lsp_servers(loaded, config, builtin, trusted=True)
    assert {lang: found.value for lang, found in servers.items()} == {
        "rust": ("rust-analyzer",),
        "go": ("gopls",),
        "python": ("project-ls",),
        "zig": ("zls",),
    }
    assert str(servers["go"].origin) == f"{operator.config_toml}:3"
    assert str(servers["python"].origin) == f"{project.file}:1"
    assert str(servers["rust"].origin) == "built in"
    assert config.value.sandbox.limits.memory_mb == 99
    assert local.value.plugin("@k/m", "m").values.reveal() == {"token": "tok"}
    assert local.value.models.good["smart"].model == "a:b"
    # Secrets, models and plugin secrets have no place in the project file.
    for text in (
        "secrets: {a: b}\n" + project.agent(),
        "models: {a: {}}\n" + project.agent(),
        project.agent("plugins: { m: { package: '@k/m', config: { token: tok } } }\n"),
    ):
        assert project.problems(text)


def test_commands_of_an_untrusted_project_are_not_used(
    project: ProjectFolder, operator: OperatorFiles
) -> None:
    loaded = project.load(LSP + DAP + project.agent())
    config = operator.config("")
    builtin = {"python": ("pyright",)}
    found = choose_lsp_servers(loaded, config, builtin, trusted=False)
    assert {lang: item.value for lang, item in found.items()} == builtin
    adapter = AdapterChoice("debugpy", None, ("debugpy",), requires_ptrace=False)
    adapters = choose_dap_adapters(loaded, config, {"python": adapter}, trusted=False)
    assert adapters["python"].value is adapter
    trusted = choose_dap_adapters(loaded, config, {"python": adapter}, trusted=True)
    assert trusted["python"].value.adapter == ("project-dap",)
    own = operator.config('[dap.adapters.python]\ntype = "x"\ncommand = ["y"]\n')
    configured = choose_dap_adapters(loaded, own, {}, trusted=False)
    assert configured["python"].value.command == ("y",)


def test_a_tree_is_resolved_from_values_alone(
    project: ProjectFolder, operator: OperatorFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = project.load(project.agent("", ""))
    config, local = operator.config(""), operator.local("")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the disk was touched")

    monkeypatch.setattr("os.open", refuse)
    monkeypatch.setattr(Path, "stat", refuse)
    assert len(list(resolve_agents(loaded, config, local))) == 2
