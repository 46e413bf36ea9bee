"""`kaged cage`: what the cage of an agent or plugin allows, in words, and a shell inside it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaged.base import KagedError
from kaged.cli.context import daemon, locations, quiet_logs
from kaged.cli.granted import granted_in, granted_lines
from kaged.cli.output import Output, harmless
from kaged.cli.runner import command, group

if TYPE_CHECKING:
    from kaged.cage import CageRequest
    from kaged.cage.net import NetEvent
    from kaged.config.settings import Settings
    from kaged.diagnostics.cage_views import CageOwner, CageView, CageViews

Name = Annotated[
    str | None,
    typer.Argument(help="An agent's path, such as primary.subagents.reader, or a plugin's name."),
]
Project = Annotated[Path, typer.Option("--project", help="The project's folder.")]
Kind = Annotated[str, typer.Option("--kind", help="agent or plugin, if the name could be either.")]
Policy = Annotated[
    Path | None,
    typer.Option("--policy", help="Use a YAML file with the keys of `cage:` instead of a name."),
]
HERE = Path()


app = group("Look at a cage from outside or inside, and run any program in one.")


@command(app, "explain")
def explain(
    output: Output,
    name: Name = None,
    project: Project = HERE,
    kind: Kind = "",
    policy: Policy = None,
) -> None:
    """Explain what an agent or a plugin can reach, and what it cannot."""
    _check(name, kind, policy)
    views, _ = _views(project)
    if policy is not None:
        found = [views.file(policy)]
    elif name is None:
        found = views.agents()
    else:
        found = [views.find(name, _owner(kind))]
    items = [{**view.as_json(), **_running(view)} for view in found]
    granted = granted_in(str(project))
    for view, item in zip(found, items, strict=True):
        if view.plugin is None and policy is None:
            item["granted"] = [one for one in granted if one["agent"] == view.name]
    output.result({"items": items})
    for view, item in zip(found, items, strict=True):
        for line in view.lines():
            output.line(line)
        for line in (*granted_lines(item.get("granted", ())), *_running_lines(item)):
            output.line(line)


@command(app, "shell", json=False)
def shell(
    name: Name = None,
    project: Project = HERE,
    kind: Kind = "",
    policy: Policy = None,
) -> None:
    """Open a shell in a cage, to see what can be reached there. Default: the cage of primary."""
    from kaged.diagnostics.cage_views import TRUST

    _check(name, kind, policy)
    views, settings = _views(project)
    view = views.find(name or "primary", _owner(kind)) if policy is None else views.file(policy)
    if view.restricted:
        note = f"{view.name} is restricted until you agree to what its project asks for: {TRUST}"
        typer.echo(note, err=True)
    request = views.shell(view)
    raise typer.Exit(asyncio.run(_shell(settings, request)))


def _running(view: CageView) -> dict[str, Any]:
    """Return the cage that a plugin runs in now; nothing where no daemon is there to be asked."""
    if view.plugin is None:
        return {}
    try:
        with daemon(start=False) as client:
            found = client.get(f"/plugins/{view.name}")
    except KagedError:
        return {}
    if found["pid"] is None:
        return {"running": None}
    asked = {one.text for one in view.capabilities}
    same = found["version"] == view.version and asked == {
        *found["capabilities"],
        *found["operator_grants"],
    }
    return {"running": {"same": same, "pid": found["pid"], "allows": found["cage"]}}


def _running_lines(item: dict[str, Any]) -> Iterator[str]:
    running = item.get("running")
    if running is None:
        return
    if running["same"]:
        yield f"  It runs with these capabilities now (pid {running['pid']})."
        return
    yield "  !! The cage above is the one of its next start."
    yield f"  It runs in this one now (pid {running['pid']}):"
    for one in running["allows"]:
        yield f"    {one['words']}"
    yield f"  `kaged plugin restart {item['name']}` ends that."


def _check(name: str | None, kind: str, policy: Path | None) -> None:
    if policy is not None and (name is not None or kind):
        raise typer.BadParameter("name a cage or give a file with --policy, not both")
    if kind not in {"", "agent", "plugin"}:
        raise typer.BadParameter("--kind is agent or plugin")


def _owner(kind: str) -> CageOwner | None:
    from kaged.diagnostics.cage_views import CageOwner

    return CageOwner(kind) if kind else None


def _views(root: Path) -> tuple[CageViews, Settings]:
    from kaged.base import SystemClock
    from kaged.config.settings import read_settings
    from kaged.diagnostics.cage_views import CageViews
    from kaged.projects.in_force import read_project_record

    quiet_logs()
    settings = read_settings(locations(), os.environ)
    real = os.path.realpath(root)
    record = asyncio.run(read_project_record(real, settings, SystemClock()))
    return CageViews(settings, os.environ, root, record), settings


async def _shell(settings: Settings, request: CageRequest) -> int:
    from kaged.cage.foreground import run_in_foreground
    from kaged.cli.caged_program import caged

    async with caged(settings, request, _tell_denial) as spawner:
        report, _ = await run_in_foreground(spawner, request)
    return report.exit_code


def _tell_denial(event: NetEvent) -> None:
    from kaged.kernel.describe import not_allowed

    if event.name == "cage.net.denied":
        words = not_allowed(f"net:{harmless(event.host)}:{event.port}")
        typer.echo(f"\r\n[kaged] {words}\r", err=True)


@command(app, "run", json=False, runs_program=True)
def run(
    output: Output,
    program: Annotated[list[str], typer.Argument(help="The program and its arguments.")],
    agent: Annotated[
        str | None, typer.Option("--agent", "-a", help="Use the cage of this agent.")
    ] = None,
    policy: Policy = None,
    read: Annotated[
        list[str] | None, typer.Option("--read", "-r", help="Show a file or folder; repeat it.")
    ] = None,
    write: Annotated[
        list[str] | None,
        typer.Option("--write", "-w", help="Show it writable. Default: this folder."),
    ] = None,
    net: Annotated[
        list[str] | None,
        typer.Option("--net", "-n", help="Allow HOST:PORT, HOST:* or *; repeat it. Default: none."),
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", "-e", help="Pass on NAME, or set NAME=VALUE.")
    ] = None,
    home: Annotated[
        Path | None,
        typer.Option("--home", help="A folder that is the program's home. Default: an empty one."),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", help="memory_mb=N, pids=N, walltime_sec=N or tmpfs_mb=N."),
    ] = None,
    learn: Annotated[
        Path | None,
        typer.Option("--learn", help="Allow every public host, and write the policy it needed."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No report at the end.")] = False,
    project: Project = HERE,
) -> None:
    """Run a program in a cage: it reaches what you name, and nothing else."""
    from kaged.cli.caged_program import CageOptions, run_program

    given = CageOptions(
        read=read or [],
        write=write or [],
        net=net or [],
        env=env or [],
        home=home,
        limits=limit or [],
        learn=learn,
    )
    if agent is not None and policy is not None:
        raise typer.BadParameter("use --agent or --policy, not both")
    views, settings = _views(project)
    if agent is not None:
        base = views.find(agent, _owner("agent"))
    else:
        base = None if policy is None else views.file(policy)
    raise typer.Exit(run_program(views, settings, base, given, tuple(program), output, quiet=quiet))
