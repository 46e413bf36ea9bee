"""`describe`: an agent tree as JSON, for `kaged project show` and the API. Holds no secrets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kaged.base import JsonObject, JsonValue
from kaged.config.agents import AgentTree, ResolvedAgent, ResolvedPlugin, Sourced
from kaged.config.instructions import find_instructions
from kaged.kernel.policy import CagePolicy

T = TypeVar("T")


def describe(tree: AgentTree) -> JsonObject:
    """Write a project and its agents as JSON; each setting is `{value, from}`."""
    project = tree.project
    agents: list[JsonValue] = [_agent(agent) for agent in tree]
    warnings: list[JsonValue] = [problem.as_json() for problem in tree.warnings]
    workflows: list[JsonValue] = [*sorted(project.workflows)]
    given = find_instructions(project.root) if project.dsl.instructions else None
    return {
        "slug": project.slug,
        "name": project.name,
        "description": project.description,
        "root": str(project.root),
        "file": str(project.file),
        "agents": agents,
        "workflows": workflows,
        "instructions": {
            "enabled": project.dsl.instructions,
            "file": None if given is None else given.as_json(),
        },
        "lsp": [
            {"lang": server.lang, "command": list(server.command)}
            for server in project.dsl.lsp.servers
        ],
        "dap": [
            {"runtime": adapter.runtime, "type": adapter.type}
            for adapter in project.dsl.dap.adapters
        ],
        "warnings": warnings,
    }


def _agent(agent: ResolvedAgent) -> JsonObject:
    model = agent.model.value
    entry = model.entry
    prompt = agent.system_prompt.value
    compaction = agent.compaction.value
    return {
        "path": agent.path,
        "description": agent.spec.description,
        "model": {
            "value": model.alias,
            "from": str(agent.model.origin),
            "resolves_to": None if entry is None else entry.model,
            "resolved_in": None if model.entry_origin is None else str(model.entry_origin),
            "problems": [str(problem) for problem in model.problems],
        },
        "system_prompt": {
            "value": prompt.location or f"{len(prompt.text)} characters written in place",
            "from": str(agent.system_prompt.origin),
        },
        "cage": _sourced(agent.cage, _cage),
        "tools": [
            {"pattern": rule.value.pattern, "enabled": rule.value.enabled, "from": str(rule.origin)}
            for rule in agent.tools
        ],
        "plugins": [_plugin(plugin) for plugin in agent.plugins],
        "compaction": {
            "strategy": compaction.strategy.value,
            "threshold": compaction.threshold,
            "delegate": compaction.delegate,
            "from": str(agent.compaction.origin),
        },
        "max_steps": _sourced(agent.max_steps, int),
        "dry_run": _sourced(agent.dry_run, bool),
        "on_denied": _sourced(agent.on_denied, str),
        "todo_review": _sourced(agent.todo_review, str),
        "children": list(agent.children),
    }


def _cage(policy: CagePolicy | None) -> JsonValue:
    if policy is None:
        return "disabled"
    limits = policy.limits
    written: JsonObject = {
        "fs": [{"mode": grant.mode.value, "path": grant.path} for grant in policy.fs],
        "net": [target.text for target in policy.net],
        "state": policy.state.value,
        "seccomp": policy.seccomp.value,
        "capabilities": [*sorted(policy.capabilities)],
        "toolchains": [one.value for one in policy.toolchains],
        # Values of variables may be private; their names say what is there.
        "env": [name for name, _ in policy.env],
        "limits": {
            "memory_mb": limits.memory_mb,
            "cpu_shares": limits.cpu_shares,
            "pids": limits.pids,
            "walltime_sec": limits.walltime_sec,
        },
    }
    return written


def _plugin(plugin: ResolvedPlugin) -> JsonObject:
    config: JsonObject = {
        name: {"value": value, "from": str(plugin.config_origins[name])}
        for name, value in plugin.config.items()
    }
    hooks = plugin.hooks.value
    source, version = plugin.source.value, plugin.version.value
    return {
        "key": plugin.key,
        "name": plugin.name,
        "package": _sourced(plugin.package, str),
        "isolation": _sourced(plugin.isolation, str),
        "hooks": {
            "value": "all of the plugin's" if hooks is None else [hook.value for hook in hooks],
            "from": str(plugin.hooks.origin),
        },
        "source": None if source is None else source.location,
        "version": None if version is None else version.text,
        "inherits": plugin.inherits,
        "config": config,
    }


def _sourced(item: Sourced[T], write: Callable[[T], JsonValue]) -> JsonObject:
    return {"value": write(item.value), "from": str(item.origin)}
