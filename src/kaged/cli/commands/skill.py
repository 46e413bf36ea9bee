"""`kaged skill`: the skills that agents can load and run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from kaged.cli.exits import Exit
from kaged.cli.output import Output, counted, show_rows
from kaged.cli.runner import (
    DaemonClient,
    InProject,
    command,
    daemon_command,
    find_project,
    group,
    project_command,
)

REQUEST = "skill_"
"""How the ids of requests begin that skills make."""

Name = Annotated[str, typer.Argument(help="The skill's name, which is that of its folder.")]
Folder = Annotated[Path, typer.Argument(help="The folder with the SKILL.md.")]

app = group("Show the skills that agents can use, check one, and agree to what one asks for.")


def _show_list(found: Any, output: Output) -> None:
    columns = (
        "skill=name",
        "of=source",
        "state",
        ("accounts", lambda one: ", ".join(one["capabilities"])),
        ("about", lambda one: one["description"] or _first_problem(one)),
    )
    show_rows(found["skills"], columns, output)
    if found["restricted"]:
        output.note("The project is restricted: its own skills are not offered.")
    waiting = [one["name"] for one in found["skills"] if one["state"] == "waiting"]
    if waiting:
        output.note(f"Agree with `kaged skill approve NAME`: {', '.join(waiting)}.")


def _first_problem(skill: Any) -> str:
    return next((_problem(one) for one in skill["problems"]), "")


def _problem(one: Any) -> str:
    place = one["file"] if one["line"] is None else f"{one['file']}:{one['line']}"
    fix = f" ({one['fix']})" if one["fix"] else ""
    return f"{place}: {one['severity']}: {one['message']}{fix}"


def _show_one(found: Any, output: Output) -> None:
    named = ("name", "source", "state", "description", "folder", "digest")
    output.fields({name: found[name] for name in named})
    for one in found["problems"]:
        output.line(_problem(one))
    if found["ask"]:
        output.line("It asks for:")
        for line in found["ask"]:
            output.line(line)
    output.line(counted(len(found["files"]), "file") + ":")
    for one in found["files"]:
        output.line(f"  {one['path']}")
    output.line("")
    output.line(found["instructions"])


@project_command(app, "list", view=_show_list)
def list_skills(client: DaemonClient) -> Any:
    """List the skills of a project and your own, refused ones with the reason."""
    return client.get("/skills")


@project_command(app, "show", view=_show_one)
def show(client: DaemonClient, name: Name) -> Any:
    """Show one skill: its files, what it asks for, its instructions."""
    return client.get(f"/skills/{quote(name, safe='')}")


def _show_check(found: Any, output: Output) -> Exit:
    for one in found["problems"]:
        output.line(_problem(one))
    if not found["usable"]:
        return Exit.INVALID
    output.line(f"{found['name']} can be used; {counted(len(found['files']), 'file')}.")
    return Exit.OK


@command(app, "check", view=_show_check)
def check(folder: Folder) -> Any:
    """Check a skill's folder without a daemon; exit code 6 if it cannot be used."""
    # Not at the top: the other commands only ask the daemon.
    from kaged.config.skill_file import SkillFileInvalid
    from kaged.skills.library import SkillSource, read_skill

    place = folder.resolve()
    try:
        found = read_skill(place, SkillSource.OPERATOR, place.parent)
    except SkillFileInvalid as error:
        problems = [one.as_json() for one in error.problems]
        return {"name": place.name, "usable": False, "problems": problems, "files": []}
    return {**found.as_json(), "usable": True}


def _show_approved(found: Any, output: Output) -> None:
    for line in found["ask"]:
        output.line(line)
    output.line(f"Agreed to {found['name']}.")


@daemon_command(app, "approve", view=_show_approved, no_start=True)
def approve(
    client: DaemonClient,
    which: Annotated[str, typer.Argument(help="The skill's name, or the id from `kaged inbox`.")],
    project: InProject = ".",
    digest: Annotated[
        str | None, typer.Option("--digest", help="Agree only if this is its digest.")
    ] = None,
) -> Any:
    """Let agents use a skill, with the accounts that it asks for, exactly as its files are now."""
    if which.startswith(REQUEST):
        request = client.get(f"/inbox/{quote(which, safe='')}")
        answer = {"digest": request["digest"], "answer": {"choice": "yes"}}
        client.post(f"/inbox/{request['id']}/answer", answer)
        return {"name": request["title"], "ask": request["details"]}
    below = client.below(f"/projects/{find_project(client, project)['id']}")
    shown = below.get(f"/skills/{quote(which, safe='')}")
    wanted = shown["digest"] if digest is None else digest
    agreed = below.post(f"/skills/{shown['name']}/agree", {"digest": wanted})
    return {**agreed, "ask": shown["ask"]}
