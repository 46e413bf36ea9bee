"""`kaged project`: create, check and show projects; load them into the daemon."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from kaged.base import KagedError
from kaged.cli.context import daemon, locations
from kaged.cli.exits import Exit
from kaged.cli.granted import granted_in, granted_lines
from kaged.cli.output import Output, counted, table
from kaged.cli.runner import (
    DaemonClient,
    command,
    daemon_command,
    find_project,
    group,
    note_restricted,
)

Root = Annotated[Path, typer.Argument(help="The project's folder.")]
Which = Annotated[str, typer.Argument(help="The loaded project: its id, slug or folder.")]
WhichHere = Annotated[
    str, typer.Argument(help="The loaded project: its id, slug or folder; this folder by default.")
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Agree to whatever its files ask for, unseen.")
]
Digest = Annotated[
    str | None,
    typer.Option("--digest", help="Agree only if what its files ask for has this digest."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Agree without being asked.")]
HERE = Path()

app = group("Create, check, show and load projects.")


def _show_problems(found: Any, output: Output) -> None:
    for problem in found["problems"]:
        place = f"{problem['file']}:{problem['line']}" if problem["line"] else problem["file"]
        output.note(f"{problem['severity']}: {place}: {problem['key_path']}: {problem['message']}")


def _show_loaded(found: Any, output: Output) -> None:
    _show_problems(found, output)
    output.line(f"Loaded {_name(found)}.")
    note_restricted(found, output)
    if found["state"] == "pending":
        output.note("Plugins are missing: `kaged plugin consents` lists what the project asks for.")


def _show_reloaded(found: Any, output: Output) -> None:
    _show_problems(found, output)
    output.line(f"Reloaded {_name(found)}.")
    note_restricted(found, output)


def _state(found: Any) -> str:
    """Return the state; while the project opens, that and what is missing."""
    readiness = found["readiness"]
    if found["state"] == "failed" or not readiness["missing"]:
        return str(found["state"])
    word = "opening" if readiness["state"] == "opening" else "guards failed"
    return f"{word} ({', '.join(readiness['missing'])})"


def _name(found: Any) -> str:
    return f"{found['slug']} ({found['id']}), {counted(found['agents'], 'agent')}"


def _show_ask(found: Any, output: Output) -> None:
    ask = found["ask"]
    more = " more than you agreed to before" if ask["agreed_digest"] else ""
    if found["trusted"]:
        output.line(f"{found['slug']} is trusted. Its files ask for:")
    else:
        output.line(f"{found['slug']} is restricted to reading. Its files ask for{more}:")
    for line in ask["lines"]:
        output.line(line)
    output.line(f"  digest: {ask['digest']}")


def _show_tree(tree: Any, output: Output) -> None:
    output.line(f"{tree['name']} ({tree['slug']})  {tree['root']}")
    for agent in tree["agents"]:
        _show_agent(agent, output)
    for name in tree["workflows"]:
        output.line(f"workflow {name}")
    output.line(f"instructions {_instructions(tree['instructions'])}")
    for problem in tree["warnings"]:
        output.note(f"warning: {problem['key_path']}: {problem['message']}")


def _instructions(found: dict[str, Any]) -> str:
    """Return in words what of the project's files becomes part of prompts."""
    if not found["enabled"]:
        return "switched off (instructions: false)"
    file = found["file"]
    if file is None:
        return "none (AGENTS.md or CLAUDE.md would be part of the prompts)"
    cut = ", the beginning of it" if file["cut"] else ""
    return f"{file['path']} ({file['bytes']} bytes{cut}, sha256 {file['sha256'][:12]})"


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
    if cage["toolchains"]:
        parts.append("toolchains " + ", ".join(cage["toolchains"]))
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
    from kaged.diagnostics.toolchain_check import missing_toolchains

    try:
        loaded = load_project(root)
        found = [*loaded.warnings, *missing_toolchains(loaded.value, os.environ)]
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
def show(output: Output, root: Root = HERE) -> Any:
    """Show a project's agents as its files describe them, and where each setting comes from."""
    from kaged.config import load_project, resolve_agents
    from kaged.config.describe import describe
    from kaged.config.settings import read_settings

    settings = read_settings(locations(), os.environ)
    tree = describe(resolve_agents(load_project(root), settings.daemon, settings.local))
    if not output.as_json:
        _note_standing(str(tree["root"]), output)
        for line in granted_lines(granted_in(str(tree["root"])), named=True):
            output.note(line)
    return tree


def _note_standing(root: str, output: Output) -> None:
    """Note that a project is restricted, if a daemon is running and holds it."""
    try:
        with daemon(start=False) as client:
            note_restricted(find_project(client, root), output)
    except KagedError:
        return


@daemon_command(app, "load", view=_show_loaded, no_start=True)
def load(
    client: DaemonClient,
    root: Root = HERE,
    trust: Trust = False,
    digest: Digest = None,
) -> Any:
    """Load a project into the daemon, or read its files again.

    Until you agree to what its files ask for, its agents only read and search.
    """
    said: dict[str, Any] = {"root": str(root.absolute()), "trust": trust, "digest": digest}
    return client.post("/projects", said)


@daemon_command(
    app,
    "list",
    view=table(
        (
            "id",
            "slug",
            ("state", _state),
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
def reload(client: DaemonClient, which: Which, trust: Trust = False, digest: Digest = None) -> Any:
    """Read a loaded project's files again. If they have errors, the old ones stay in force.

    If they ask for more than you agreed to, the project is restricted to reading until you agree.
    """
    said: dict[str, Any] = {"trust": trust, "digest": digest}
    return client.post(f"/projects/{find_project(client, which)['id']}/reload", said)


@daemon_command(app, "unload")
def unload(client: DaemonClient, output: Output, which: Which) -> None:
    """Unload a project; its files and its trust stay as they are."""
    found = find_project(client, which)
    client.delete(f"/projects/{found['id']}")
    output.result({"id": found["id"], "unloaded": True})
    output.line(f"Unloaded {found['slug']} ({found['id']}).")


@daemon_command(app, "trust")
def trust(
    client: DaemonClient,
    output: Output,
    which: WhichHere = ".",
    yes: Yes = False,
    digest: Digest = None,
    revoke: Annotated[
        bool,
        typer.Option("--revoke", help="Withdraw it; what runs in the project ends."),
    ] = False,
) -> None:
    """Show what a project's files ask for and agree to it.

    Agents of a project that you have not agreed to only read and search its files.
    """
    path = f"/projects/{find_project(client, which)['id']}"
    if revoke:
        found = client.put(f"{path}/trust", {"trusted": False})
        output.result(found)
        output.line(f"{found['slug']} is not trusted any more.")
        note_restricted(found, output)
        return
    found = client.get(path)
    if found["ask"] is not None:
        _show_ask(found, output)
    if not found["trusted"] or digest is not None:
        if digest is None:
            _require_yes(output, yes=yes)
            digest = None if found["ask"] is None else found["ask"]["digest"]
        found = client.put(f"{path}/trust", {"trusted": True, "digest": digest})
        output.line(f"{found['slug']} is trusted now. New sessions work as its files say.")
    output.result(found)


def _require_yes(output: Output, *, yes: bool) -> None:
    """Ask the operator; raise `project_not_agreed` for anything but a yes."""
    if yes:
        return
    if not output.for_people:
        raise KagedError(
            "There is no terminal to ask on. Nothing was agreed.",
            code="project_not_agreed",
            fix="Run the command in a terminal, or pass --yes, or --digest and what you have seen.",
        )
    if input("Let it have all this? [y/N] ").strip().lower() not in {"y", "yes"}:
        raise KagedError("You did not agree. Nothing was changed.", code="project_not_agreed")
