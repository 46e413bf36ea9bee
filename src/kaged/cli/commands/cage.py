"""`kaged cage`: what an agent's cage allows, in plain words, and a shell inside it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from kaged.base import KagedError
from kaged.cli.context import AsJson, command, locations, quiet_logs
from kaged.cli.output import Output, harmless

if TYPE_CHECKING:
    from kaged.app.settings import Settings
    from kaged.cage.net import NetEvent
    from kaged.config import AgentTree, ResolvedAgent
    from kaged.kernel.policy import CagePolicy

Root = Annotated[Path, typer.Argument(help="The project's folder; the current one by default.")]
HERE = Path()


class AgentNotFound(KagedError):
    """The project has no agent at that path."""

    code: ClassVar[str] = "agent_not_found"


class AgentUncaged(KagedError):
    """The agent has no cage to go into."""

    code: ClassVar[str] = "agent_uncaged"


def build() -> typer.Typer:
    """Build the group."""
    app = typer.Typer(help="Look at an agent's cage, from outside or inside.", no_args_is_help=True)

    @command(app, "explain")
    def explain(
        root: Root = HERE,
        agent: Annotated[
            str | None, typer.Option(help="Only this agent, e.g. primary.subagents.reader.")
        ] = None,
        as_json: AsJson = False,
    ) -> None:
        """Say in sentences what each agent of a project can reach, and what it cannot."""
        from kaged.cage import CageKind
        from kaged.cage.explain import explain as in_words

        output = Output(as_json=as_json)
        tree, _ = _resolve(root)
        chosen = list(tree) if agent is None else [_agent(tree, agent)]
        found = {
            str(one.path): [_UNCAGED]
            if one.cage.value is None
            else in_words(one.cage.value, CageKind.AGENT)
            for one in chosen
        }
        output.result(found)
        for path, lines in found.items():
            output.line(f"● {path}")
            for line in lines:
                output.line(f"    {line}")

    @command(app, "shell")
    def shell(
        root: Root = HERE,
        agent: Annotated[str, typer.Option(help="Whose cage.")] = "primary",
    ) -> None:
        """Open a shell in an agent's cage, to see for yourself what it can reach."""
        tree, settings = _resolve(root)
        chosen = _agent(tree, agent)
        policy = chosen.cage.value
        if policy is None:
            raise AgentUncaged(
                f"{chosen.path} has no cage: it reaches everything that you can.",
                fix="Give it a `cage:` block in .kaged/project.yaml, or name a caged agent.",
            )
        quiet_logs()
        raise typer.Exit(asyncio.run(_shell(settings, policy, str(tree.project.root))))

    return app


_UNCAGED = "has no cage: reaches everything that the daemon's user can"


def _resolve(root: Path) -> tuple[AgentTree, Settings]:
    from kaged.app.settings import read_settings
    from kaged.config import load_project, resolve_agents

    settings = read_settings(locations(), os.environ)
    return resolve_agents(load_project(root), settings.daemon, settings.local), settings


def _agent(tree: AgentTree, path: str) -> ResolvedAgent:
    try:
        return tree[path]
    except KeyError:
        known = ", ".join(str(one.path) for one in tree)
        raise AgentNotFound(
            f"The project has no agent {path!r}.", fix=f"Take one of {known}."
        ) from None


async def _shell(settings: Settings, policy: CagePolicy, root: str) -> int:
    from kaged.app.cages import cage_settings
    from kaged.cage import CageKind, Spawner
    from kaged.cage.net import NetGate
    from kaged.cage.shell import run_shell

    settings.places.ensure()
    gate = NetGate(_tell_denial)
    chosen = cage_settings(settings)
    try:
        if policy.net:
            await gate.start(chosen.bwrap)
        spawner = Spawner(chosen, gate=gate)
        try:
            report = await run_shell(spawner, policy, kind=CageKind.AGENT, cwd=root)
        finally:
            await spawner.close()
    finally:
        await gate.close()
    return report.exit_code


def _tell_denial(event: NetEvent) -> None:
    if event.name == "cage.net.denied":
        typer.echo(f"\r\n[kaged] not granted: {harmless(event.host)}:{event.port}\r", err=True)


__all__ = ["AgentNotFound", "AgentUncaged", "build"]
