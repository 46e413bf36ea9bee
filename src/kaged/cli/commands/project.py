"""`kaged project`: make, check and look at projects; load them into the daemon."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from kaged.base import KagedError
from kaged.cli.context import AsJson, NoStart, command, daemon, locations
from kaged.cli.exits import Exit
from kaged.cli.output import Output
from kaged.cli.tree import show_tree

if TYPE_CHECKING:
    from kaged.cli.client import DaemonClient

Root = Annotated[Path, typer.Argument(help="The project's folder; the current one by default.")]
Which = Annotated[str, typer.Argument(help="A loaded project: its id, its slug or its folder.")]
HERE = Path()


class ProjectNotLoaded(KagedError):
    """No loaded project goes by that name."""

    code: ClassVar[str] = "project_not_found"


class ProjectAmbiguous(KagedError):
    """Several loaded projects go by that name."""

    code: ClassVar[str] = "project_ambiguous"


def build() -> typer.Typer:
    """Build the group."""
    app = typer.Typer(help="Make, check, load and look at projects.", no_args_is_help=True)
    _register_files(app)
    _register_loaded(app)
    return app


def _register_files(app: typer.Typer) -> None:
    @command(app, "init")
    def init(root: Root = HERE, as_json: AsJson = False) -> None:
        """Put a commented project file into a folder; what is there already is kept."""
        from kaged.config import init_project

        output = Output(as_json=as_json)
        report = init_project(root)
        output.result(
            {
                "root": str(report.root),
                "created": list(report.created),
                "kept": list(report.kept),
            }
        )
        for name in report.created:
            output.line(f"created  {name}")
        for name in report.kept:
            output.line(f"kept     {name}")
        output.note(f"Next: edit {report.root}/.kaged/project.yaml, then `kaged project check`.")

    @command(app, "check")
    def check(root: Root = HERE, as_json: AsJson = False) -> None:
        """Check a project's files; exit code 6 when they cannot be used."""
        from kaged.config import ConfigFileInvalid, load_project

        output = Output(as_json=as_json)
        try:
            found = load_project(root).warnings
            ok = True
        except ConfigFileInvalid as error:
            found, ok = error.problems, False
        output.result({"ok": ok, "problems": [problem.as_json() for problem in found]})
        for problem in found:
            output.line(problem)
        output.line("All is well." if ok and not found else f"{len(found)} found.")
        if not ok:
            raise typer.Exit(Exit.INVALID)

    @command(app, "show")
    def show(root: Root = HERE, as_json: AsJson = False) -> None:
        """Show what a project's files amount to: its agents, and where each setting came from."""
        from kaged.config import load_project, resolve_agents
        from kaged.config.describe import describe
        from kaged.config.settings import read_settings

        output = Output(as_json=as_json)
        settings = read_settings(locations(), os.environ)
        tree = describe(resolve_agents(load_project(root), settings.daemon, settings.local))
        output.result(tree)
        show_tree(tree, output)


def _register_loaded(app: typer.Typer) -> None:
    @command(app, "load")
    def load(
        root: Root = HERE,
        trust: Annotated[
            bool, typer.Option("--trust", help="Also allow the commands that its files name.")
        ] = False,
        as_json: AsJson = False,
        no_start: NoStart = False,
    ) -> None:
        """Load a project into the daemon, or read its files anew."""
        output = Output(as_json=as_json)
        with daemon(start=not no_start) as client:
            found = client.post("/projects", {"root": str(root.absolute())})
            if trust and not found["trusted"]:
                found = client.put(f"/projects/{found['id']}/trust", {"trusted": True})
        output.result(found)
        _show_problems(found, output)
        output.line(f"Loaded {found['slug']} ({found['id']}), {_agents(found)}.")
        if found["state"] == "pending":
            output.note("It lacks plugins: `kaged plugin consents` lists what it asks for.")

    @command(app, "list")
    def list_projects(as_json: AsJson = False, no_start: NoStart = False) -> None:
        """List the loaded projects."""
        output = Output(as_json=as_json)
        with daemon(start=not no_start) as client:
            found = list(client.pages("/projects"))
        output.result(found)
        output.table(
            ["id", "slug", "state", "trusted", "agents", "root"],
            [
                [
                    one["id"],
                    one["slug"],
                    one["state"],
                    "yes" if one["trusted"] else "no",
                    one["agents"],
                    one["root"],
                ]
                for one in found
            ],
        )

    @command(app, "reload")
    def reload(which: Which, as_json: AsJson = False) -> None:
        """Read a loaded project's files again; with errors in them the old ones stay in force."""
        output = Output(as_json=as_json)
        with daemon() as client:
            found = client.post(f"/projects/{find_project(client, which)['id']}/reload")
        output.result(found)
        _show_problems(found, output)
        output.line(f"Reloaded {found['slug']} ({found['id']}), {_agents(found)}.")

    @command(app, "unload")
    def unload(which: Which, as_json: AsJson = False) -> None:
        """Let go of a loaded project; its files and its trust stay as they are."""
        output = Output(as_json=as_json)
        with daemon() as client:
            found = find_project(client, which)
            client.delete(f"/projects/{found['id']}")
        output.result({"id": found["id"], "unloaded": True})
        output.line(f"Unloaded {found['slug']} ({found['id']}).")

    @command(app, "trust")
    def trust(
        which: Which,
        revoke: Annotated[bool, typer.Option("--revoke", help="Withdraw the trust.")] = False,
        as_json: AsJson = False,
    ) -> None:
        """Allow the commands that a project's files name (language servers, debug adapters)."""
        output = Output(as_json=as_json)
        with daemon() as client:
            project_id = find_project(client, which)["id"]
            found = client.put(f"/projects/{project_id}/trust", {"trusted": not revoke})
        output.result(found)
        output.line(f"{found['slug']} is {'trusted' if found['trusted'] else 'not trusted'} now.")


def find_project(client: DaemonClient, which: str) -> dict[str, Any]:
    """Find a loaded project by id, slug or folder."""
    loaded = list(client.pages("/projects"))
    for one in loaded:
        if one["id"] == which:
            return one
    real = os.path.realpath(which)
    found = [one for one in loaded if one["root"] == real]
    found = found or [one for one in loaded if one["slug"] == which]
    if not found:
        raise ProjectNotLoaded(
            f"No loaded project goes by {which!r}.",
            fix="`kaged project list` shows the loaded ones; `kaged project load` loads one.",
        )
    if len(found) > 1:
        raise ProjectAmbiguous(
            f"{len(found)} loaded projects have the slug {which!r}.",
            fix="Name one by its id: " + ", ".join(one["id"] for one in found),
        )
    return found[0]


def _agents(found: dict[str, Any]) -> str:
    return "1 agent" if found["agents"] == 1 else f"{found['agents']} agents"


def _show_problems(found: dict[str, Any], output: Output) -> None:
    for problem in found["problems"]:
        place = f"{problem['file']}:{problem['line']}" if problem["line"] else problem["file"]
        output.note(f"{problem['severity']}: {place}: {problem['key_path']}: {problem['message']}")
