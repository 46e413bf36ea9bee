"""An agent tree for people: each agent with its model, cage, tools and plugins, and why."""

from __future__ import annotations

from typing import Any

from kaged.cli.output import Output


def show_tree(tree: dict[str, Any], output: Output) -> None:
    """Show a described project, agent by agent; nothing for JSON, which has it all."""
    output.line(f"{tree['name']} ({tree['slug']})  {tree['root']}")
    for agent in tree["agents"]:
        _show_agent(agent, output)
    for name in tree["workflows"]:
        output.line(f"workflow {name}")
    for problem in tree["warnings"]:
        output.note(f"warning: {problem['key_path']}: {problem['message']}")


def _show_agent(agent: dict[str, Any], output: Output) -> None:
    indent = "  " * agent["path"].count(".subagents.")
    output.line(f"{indent}● {agent['path']}")
    for name, value, origin in _settings(agent):
        where = f"   [{origin}]" if origin else ""
        output.line(f"{indent}    {name:<11} {value}{where}")


def _settings(agent: dict[str, Any]) -> list[tuple[str, str, str]]:
    model = agent["model"]
    shown = model["value"]
    if model["resolves_to"]:
        shown += f" → {model['resolves_to']}"
    rows = [("model", shown, model["from"])]
    rows.append(("prompt", agent["system_prompt"]["value"], agent["system_prompt"]["from"]))
    rows.append(("cage", _cage(agent["cage"]["value"]), agent["cage"]["from"]))
    for rule in agent["tools"]:
        state = "on" if rule["enabled"] else "off"
        rows.append(("tools", f"{rule['pattern']} {state}", rule["from"]))
    for plugin in agent["plugins"]:
        package = plugin["package"]
        rows.append(("plugin", f"{plugin['key']} ({package['value']})", package["from"]))
    rows.append(("max steps", str(agent["max_steps"]["value"]), agent["max_steps"]["from"]))
    return rows


def _cage(cage: Any) -> str:
    if not isinstance(cage, dict):
        return "none: can reach everything that the daemon's user can"
    parts = [f"{grant['mode']} {grant['path']}" for grant in cage["fs"]] or ["no files"]
    parts.append("net " + (", ".join(cage["net"]) if cage["net"] else "none"))
    if cage["capabilities"]:
        parts.append("may " + ", ".join(cage["capabilities"]))
    return "; ".join(parts)
