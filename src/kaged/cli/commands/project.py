"""`kaged project`: create, check and show projects; load them into the daemon."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaged.cli.context import locations
from kaged.cli.exits import Exit
from kaged.cli.output import Output, counted, table
from kaged.cli.runner import command, daemon_command, find_project, group

if TYPE_CHECKING:
    from kaged.cli.client import DaemonClient

Root = Annotated[Path, typer.Argument(help="The project's folder.")]
Which = Annotated[str, typer.Argument(help="The loaded project: its id, slug or folder.")]
HERE = Path()

app = group("Create, check, show and load projects.")


def _show_problems(found: Any, output: Output) -> None:
    for problem in found["problems"]:
        place = f"{problem['file']}:{problem['line']}" if problem["line"] else problem["file"]
        output.note(f"{problem['severity']}: {place}: {problem['key_path']}: {problem['message']}")


def _show_loaded(found: Any, output: Output) -> None:
    _show_problems(found, output)
    output.line(f"Loaded {_name(found)}.")
    if found["state"] == "pending":
        output.note("Plugins are missing: `kaged plugin consents` lists what the project asks for.")


def _show_reloaded(found: Any, output: Output) -> None:
    _show_problems(found, output)
    output.line(f"Reloaded {_name(found)}.")


def _name(found: Any) -> str:
    return f"{found['slug']} ({found['id']}), {counted(found['agents'], 'agent')}"


def _show_trust(found: Any, output: Output) -> None:
    output.line(f"{found['slug']} is {'trusted' if found['trusted'] else 'not trusted'} now.")


def _show_tree(tree: Any, output: Output) -> None:
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
    for name, value, origin in _settings_of(agent):
        where = f"   [{origin}]" if origin else ""
        output.line(f"{indent}    {name:<11} {value}{where}")


def _settings_of(agent: dict[str, Any]) -> list[tuple[str, str, str]]:
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


@command(app, "init")
def init(output: Output, root: Root = HERE) -> None:
    """Write a commented project file into a folder. Existing files are kept."""
    from kaged.config import init_project

    report = init_project(root)
    output.result(
        {"root": str(report.root), "created": list(report.created), "kept": list(report.kept)}
    )
    for name in report.created:
        output.line(f"created  {name}")
    for name in report.kept:
        output.line(f"kept     {name}")
    output.note(f"Next: edit {report.root}/.kaged/project.yaml, then run `kaged project check`.")


@command(app, "check")
def check(output: Output, root: Root = HERE) -> None:
    """Check a project's files. Exit code 6 if they cannot be used."""
    from kaged.config import ConfigFileInvalid, load_project

    try:
        found = load_project(root).warnings
        ok = True
    except ConfigFileInvalid as error:
        found, ok = error.problems, False
    output.result({"ok": ok, "problems": [problem.as_json() for problem in found]})
    for problem in found:
        output.line(problem)
    output.line(f"{counted(len(found), 'problem')} found." if found else "No problems found.")
    if not ok:
        raise typer.Exit(Exit.INVALID)


@command(app, "show", view=_show_tree)
def show(root: Root = HERE) -> Any:
    """Show a project's agents and where each setting comes from."""
    from kaged.config import load_project, resolve_agents
    from kaged.config.describe import describe
    from kaged.config.settings import read_settings

    settings = read_settings(locations(), os.environ)
    return describe(resolve_agents(load_project(root), settings.daemon, settings.local))


@daemon_command(app, "load", view=_show_loaded, no_start=True)
def load(
    client: DaemonClient,
    root: Root = HERE,
    trust: Annotated[
        bool, typer.Option("--trust", help="Also allow the commands that its files name.")
    ] = False,
) -> Any:
    """Load a project into the daemon, or read its files again."""
    found = client.post("/projects", {"root": str(root.absolute())})
    if trust and not found["trusted"]:
        found = client.put(f"/projects/{found['id']}/trust", {"trusted": True})
    return found


@daemon_command(
    app,
    "list",
    view=table(
        (
            "id",
            "slug",
            "state",
            ("trusted", lambda one: "yes" if one["trusted"] else "no"),
            "agents",
            "root",
        )
    ),
    no_start=True,
)
def list_projects(client: DaemonClient) -> Any:
    """List the loaded projects."""
    return list(client.pages("/projects"))


@daemon_command(app, "reload", view=_show_reloaded)
def reload(client: DaemonClient, which: Which) -> Any:
    """Read a loaded project's files again. If they have errors, the old ones stay in force."""
    return client.post(f"/projects/{find_project(client, which)['id']}/reload")


@daemon_command(app, "unload")
def unload(client: DaemonClient, output: Output, which: Which) -> None:
    """Unload a project; its files and its trust stay as they are."""
    found = find_project(client, which)
    client.delete(f"/projects/{found['id']}")
    output.result({"id": found["id"], "unloaded": True})
    output.line(f"Unloaded {found['slug']} ({found['id']}).")


@daemon_command(app, "trust", view=_show_trust)
def trust(
    client: DaemonClient,
    which: Which,
    revoke: Annotated[bool, typer.Option("--revoke", help="Withdraw the trust.")] = False,
) -> Any:
    """Allow the commands that a project's files name: language servers and debug adapters."""
    project_id = find_project(client, which)["id"]
    return client.put(f"/projects/{project_id}/trust", {"trusted": not revoke})
