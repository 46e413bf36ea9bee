from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fakes.agent_trees import load_tree
from fakes.tool_lab import Spy, make_tool
from kaged.config.problems import ConfigFileInvalid
from kaged.tools.registry import ToolRegistry
from kaged.tools.resolution import AgentTools, resolve_tools
from requirements import requirement

ISSUE_ACTIONS = ("list", "get", "create", "comment", "transition")
PLAIN = (
    "file.read",
    "file.write",
    "file.create",
    "edit.text",
    "edit.ast",
    "search.grep",
    "search.glob",
    "code.lsp",
    "debug",
    "shell.bash",
    "kaged.checkpoint",
)
ROOT_ONLY = (
    "kaged.todo",
    "kaged.ask",
    "kaged.form",
    "kaged.workflow.list",
    "kaged.workflow.trigger",
    "kaged.workflow.status",
)
ROOT_DEFAULT = sorted((*ROOT_ONLY, "kaged.issue", "kaged.checkpoint"))
CODER = "primary.subagents.coder"


@pytest.fixture
def registry() -> ToolRegistry:
    """Return a registry with every built-in name, and the tools of two plugins and a server."""
    made = ToolRegistry()
    made.register_all(make_tool(name) for name in PLAIN)
    made.register_all(make_tool(name, root_only=True) for name in ROOT_ONLY)
    made.register(
        make_tool(
            "kaged.issue",
            root_only=True,
            properties={"action": {"enum": list(ISSUE_ACTIONS)}},
            aliases={f"kaged.issue.{one}": {"action": one} for one in ISSUE_ACTIONS},
        )
    )
    made.register(make_tool("search.ast", aliases={"search.ast_grep": {}}))
    for name in ("memory-md.recall", "memory-md.retain"):
        made.register(make_tool(name, plugin="memory-md"))
    made.register(make_tool("notes.add", plugin="notes"))
    made.register(make_tool("web-kit.getUser", plugin="web-kit"), outside=True)
    return made


def project(root: str = "", coder: str = "", *, subagents: bool = True) -> str:
    """Write a project; the arguments are YAML lines inside the two agents."""
    text = "primary:\n  model: m\n  system_prompt: p\n" + _indented(root, 2)
    if subagents:
        text += "  subagents:\n    coder:\n      model: m\n      system_prompt: p\n"
        text += _indented(coder, 6)
    return text


def _indented(lines: str, by: int) -> str:
    return "".join(" " * by + line + "\n" for line in lines.splitlines())


def tools(*rules: tuple[str, bool]) -> str:
    """Write a tools: map."""
    lines = [f"  '{name}': {{enabled: {str(on).lower()}}}" for name, on in rules]
    return "\n".join(["tools:", *lines])


def resolved(
    tmp_path: Path,
    registry: ToolRegistry,
    text: str,
    agent: str = "primary",
    plugins: Iterable[str] | None = None,
) -> AgentTools:
    tree = load_tree(tmp_path, text)
    return resolve_tools(
        tree, agent, registry, plugins=None if plugins is None else frozenset(plugins)
    )


@requirement("AT-RES-04", "AT-RES-19", "AT-RES-18", "AT-AMB-30")
def test_the_root_has_its_defaults_and_nothing_else(tmp_path: Path, registry: ToolRegistry) -> None:
    assert resolved(tmp_path, registry, project(subagents=False)).names == ROOT_DEFAULT
    without = resolved(tmp_path, registry, project(tools(("kaged.ask", False)), subagents=False))
    assert without.names == sorted(set(ROOT_DEFAULT) - {"kaged.ask"})
    with_edit = resolved(tmp_path, registry, project(tools(("edit.*", True)), subagents=False))
    assert set(with_edit.names) - set(ROOT_DEFAULT) == {"edit.text", "edit.ast"}


@requirement("AT-RES-05", "AT-REG-23")
def test_a_subagent_starts_with_nothing(tmp_path: Path, registry: ToolRegistry) -> None:
    assert "file.read" in registry
    assert resolved(tmp_path, registry, project(), CODER).names == []


@requirement("AT-RES-07")
def test_a_glob_stands_for_the_tools_it_matches(tmp_path: Path, registry: ToolRegistry) -> None:
    found = resolved(tmp_path, registry, project(coder=tools(("file.*", True))), CODER)
    assert found.names == ["file.create", "file.read", "file.write"]
    dotted = resolved(tmp_path, registry, project(tools(("kaged.w*s", False))))
    assert "kaged.workflow.status" not in dotted.names
    assert "kaged.workflow.list" in dotted.names


@requirement("AT-RES-09", "AT-AMB-32")
@pytest.mark.parametrize("reverse", [False, True])
def test_the_most_specific_key_wins_in_either_order(
    tmp_path: Path, registry: ToolRegistry, reverse: bool
) -> None:
    rules = [("file.*", True), ("file.write", False)]
    shown = rules[::-1] if reverse else rules
    found = resolved(tmp_path, registry, project(coder=tools(*shown)), CODER)
    assert found.names == ["file.create", "file.read"]
    globs = [("file.*", False), ("file.r*", True)]
    shown = globs[::-1] if reverse else globs
    found = resolved(tmp_path, registry, project(coder=tools(*shown)), CODER)
    assert found.names == ["file.read"]


def test_of_two_equally_specific_globs_the_later_wins(
    tmp_path: Path, registry: ToolRegistry
) -> None:
    later_on = project(coder=tools(("file.*d", False), ("file.*", True)))
    later_off = project(coder=tools(("file.*", True), ("file.*d", False)))
    assert "file.read" in resolved(tmp_path, registry, later_on, CODER).names
    assert "file.read" not in resolved(tmp_path, registry, later_off, CODER).names


@requirement("AT-RES-10", "AT-AMB-31")
def test_globs_over_former_names_mean_the_tool_of_today(
    tmp_path: Path, registry: ToolRegistry
) -> None:
    found = resolved(tmp_path, registry, project(coder=tools(("lsp.*", True))), CODER)
    assert found.names == ["code.lsp"]
    assert found.warnings == ()
    off = resolved(tmp_path, registry, project(tools(("kaged.issue.*", False)), subagents=False))
    assert off.names == sorted(set(ROOT_DEFAULT) - {"kaged.issue"})
    old = resolved(tmp_path, registry, project(coder=tools(("search.ast_grep", True))), CODER)
    assert old.names == ["search.ast"]


def test_a_former_child_switches_only_its_action(tmp_path: Path, registry: ToolRegistry) -> None:
    text = project(tools(("kaged.issue.create", False)), subagents=False)
    found = resolved(tmp_path, registry, text)
    assert found.enabled["kaged.issue"].off == {"create"}
    (exported,) = [one for one in found.export(registry) if one["name"] == "kaged.issue"]
    parameters: Any = exported["parameters"]
    assert parameters["properties"]["action"]["enum"] == ["list", "get", "comment", "transition"]
    only = project(tools(("kaged.issue", False), ("kaged.issue.get", True)), subagents=False)
    assert resolved(tmp_path, registry, only).enabled["kaged.issue"].off == set(ISSUE_ACTIONS) - {
        "get"
    }
    none = project(tools(*((f"kaged.issue.{one}", False) for one in ISSUE_ACTIONS)))
    assert "kaged.issue" not in resolved(tmp_path, registry, none).names
    some = project(tools(("kaged.issue.c*", False)), subagents=False)
    assert resolved(tmp_path, registry, some).enabled["kaged.issue"].off == {"create", "comment"}


@requirement("AT-RES-13")
def test_tools_are_not_inherited(tmp_path: Path, registry: ToolRegistry) -> None:
    deep = tools(("search.*", True)) + (
        "\nsubagents:\n  linter:\n    model: m\n    system_prompt: p"
    )
    text = project(tools(("search.*", True)), deep)
    assert "search.grep" in resolved(tmp_path, registry, text).names
    assert "search.grep" in resolved(tmp_path, registry, text, CODER).names
    assert resolved(tmp_path, registry, text, f"{CODER}.subagents.linter").names == []


@requirement("AT-RES-14", "AT-DSL-03")
def test_each_direct_child_is_a_tool_of_its_parent_only(
    tmp_path: Path, registry: ToolRegistry
) -> None:
    text = project(tools(("*", False))) + (
        "      subagents:\n        linter: {model: m, system_prompt: p}\n"
        "    scraper: {model: m, system_prompt: p, description: Reads pages.}\n"
    )
    assert resolved(tmp_path, registry, text).names == ["agent-coder", "agent-scraper"]
    assert resolved(tmp_path, registry, text, CODER).names == ["agent-linter"]
    assert resolved(tmp_path, registry, text, "primary.subagents.scraper").names == []
    exported = resolved(tmp_path, registry, text).export(registry)
    assert exported[1]["description"] == "Reads pages."
    parameters: Any = exported[1]["parameters"]
    assert parameters["required"] == ["message"]
    made = resolved(tmp_path, registry, text).synthetic
    assert [one.tool.definition.namespace for one in made.values()] == ["agent", "agent"]


PLUGINS = "plugins:\n  memory: {package: memory-md}"


@requirement("AT-RES-16", "PH-TOOL-08", "PH-TOOL-09", "PH-TOOL-10")
def test_a_declared_plugin_brings_its_tools_which_can_be_switched_off(
    tmp_path: Path, registry: ToolRegistry
) -> None:
    text = project("", PLUGINS)
    found = resolved(tmp_path, registry, text, CODER)
    assert found.names == ["memory-md.recall", "memory-md.retain"]
    assert "plugin memory-md" in found.enabled["memory-md.recall"].why
    assert "memory-md.recall" not in resolved(tmp_path, registry, text).names
    off = project("", PLUGINS + "\n" + tools(("memory-md.recall", False)))
    left = resolved(tmp_path, registry, off, CODER)
    assert left.names == ["memory-md.retain"]
    assert list(left.off_because) == ["memory-md.recall"]
    assert "'memory-md.recall' {enabled: false}" in left.off_because["memory-md.recall"]


def test_no_glob_brings_tools_of_a_plugin_that_is_not_declared_or_not_admitted(
    tmp_path: Path, registry: ToolRegistry
) -> None:
    everything = project(tools(("*", True)), subagents=False)
    names = resolved(tmp_path, registry, everything).names
    assert "notes.add" not in names
    assert "web-kit.getUser" in names  # nobody declares a server; the map alone enables it
    text = project("", PLUGINS + "\n" + tools(("memory-md.*", True)))
    assert resolved(tmp_path, registry, text, CODER, plugins=()).names == []


@requirement("AT-RES-17")
def test_the_documented_sample_resolves_as_stated(tmp_path: Path, registry: ToolRegistry) -> None:
    for name in ("primary", "coder"):
        (tmp_path / "prompts").mkdir(exist_ok=True)
        (tmp_path / "prompts" / f"{name}.md").write_text("Work.", encoding="utf-8")
    sample = """\
# Root agent — gets kaged.issue.* and kaged.workflow.* by default
primary:
  model: smart-generalist
  system_prompt: project:/prompts/primary.md
  cage: disabled
  # tools: omitted → role-based defaults only (kaged.issue.*, kaged.workflow.*)
  subagents:
    coder:
      model: smart-fast
      system_prompt: project:/prompts/coder.md
      cage:
        fs: [{ mode: rw, path: ./src }]
        net: { allow: [] }
        state: ephemeral
      tools:
        "file.*": { enabled: true }
        "search.*": { enabled: true }
        "lsp.*": { enabled: true }
        # kaged.issue.create: { enabled: true }  ← PARSE ERROR: root-only
"""
    root = resolved(tmp_path, registry, sample)
    assert root.names == sorted((*ROOT_DEFAULT, "agent-coder"))
    coder = resolved(tmp_path, registry, sample, CODER)
    assert coder.names == [
        "code.lsp",
        "file.create",
        "file.read",
        "file.write",
        "search.ast",
        "search.glob",
        "search.grep",
    ]


@requirement("AT-RES-20", "AT-AMB-05")
def test_any_agent_may_have_the_checkpoint(tmp_path: Path, registry: ToolRegistry) -> None:
    found = resolved(tmp_path, registry, project(coder=tools(("kaged.checkpoint", True))), CODER)
    assert found.names == ["kaged.checkpoint"]


@requirement("AT-RES-22")
def test_a_key_that_matches_nothing_is_a_warning(tmp_path: Path, registry: ToolRegistry) -> None:
    found = resolved(tmp_path, registry, project(coder=tools(("flie.*", True))), CODER)
    assert found.names == []
    (warning,) = found.warnings
    assert (warning.pattern, warning.agent) == ("flie.*", CODER)
    assert "flie.*" in warning.message


@requirement("AT-RES-23")
def test_the_resolved_set_is_a_sorted_list(tmp_path: Path, registry: ToolRegistry) -> None:
    found = resolved(
        tmp_path, registry, project(coder=tools(("search.*", True), ("file.*", True))), CODER
    )
    assert isinstance(found.names, list)
    assert found.names == sorted(found.names)
    with pytest.raises(KeyError):
        resolve_tools(load_tree(tmp_path), "primary.subagents.nobody", registry)


@requirement("AT-RES-03")
def test_each_stage_of_the_resolution_counts_in_its_order(tmp_path: Path) -> None:
    registry = ToolRegistry()
    text = project(tools(("file.*", True), ("kaged.ask", False)), tools(("file.*", True)))
    # Nothing is registered: no default and no rule brings anything.
    assert resolved(tmp_path, registry, text).names == ["agent-coder"]
    registry.register_all([make_tool("kaged.ask", root_only=True), make_tool("kaged.checkpoint")])
    # Defaults come, and the map takes one away again.
    assert resolved(tmp_path, registry, text).names == ["agent-coder", "kaged.checkpoint"]
    registry.register_all([make_tool("file.read"), make_tool("file.secret", root_only=True)])
    # The map adds; scope has the last word.
    assert set(resolved(tmp_path, registry, text).names) >= {"file.read", "file.secret"}
    assert resolved(tmp_path, registry, text, CODER).names == ["file.read"]


@requirement("AT-REG-24")
def test_only_the_tools_of_the_agent_are_exported(tmp_path: Path, registry: ToolRegistry) -> None:
    text = project("", tools(("file.read", True), ("search.ast", True))) + (
        "      subagents:\n        linter: {model: m, system_prompt: p}\n"
    )
    exported = resolved(tmp_path, registry, text, CODER).export(registry)
    assert [one["name"] for one in exported] == ["agent-linter", "file.read", "search.ast"]
    assert all(set(one) == {"name", "description", "parameters"} for one in exported)
    registry.withdraw("file.read")
    exported = resolved(tmp_path, registry, text, CODER).export(registry)
    assert [one["name"] for one in exported] == ["agent-linter", "search.ast"]


@requirement("AT-RES-15")
def test_a_delegation_tool_cannot_be_switched(tmp_path: Path, registry: ToolRegistry) -> None:
    with pytest.raises(ConfigFileInvalid, match="agent-"):
        load_tree(tmp_path, project(tools(("agent-coder", False))))


async def test_a_delegation_tool_is_answered_by_whoever_delegates(
    tmp_path: Path, registry: ToolRegistry
) -> None:
    tree = load_tree(tmp_path, project())
    spy = Spy("done")
    entry = resolve_tools(tree, "primary", registry, delegate=spy).synthetic["agent-coder"]
    assert entry.tool.handler is spy
