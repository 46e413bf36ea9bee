"""`kaged acp`: agents for an editor that speaks the Agent Client Protocol."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Annotated, Any, cast

import typer

from kaged.cli.context import DEBUG_VARIABLE, daemon, locations, report, require_own_daemon
from kaged.cli.output import Output
from kaged.cli.runner import AgentPath, NoStart, find_project

app = typer.Typer()


@app.command("acp")
def acp(
    project: Annotated[
        str | None,
        typer.Option(
            "--project",
            "-p",
            help="The project: its id, slug or folder. Default: that of the editor's folder.",
        ),
    ] = None,
    agent: AgentPath = "primary",
    no_start: NoStart = False,
) -> None:
    """Serve agents to an ACP editor on stdin and stdout."""
    try:
        _serve(project, agent, start=not no_start)
    except Exception as error:  # noqa: BLE001  # boundary: command; every error has an exit
        raise typer.Exit(report(error, Output(as_json=False))) from None


def _serve(project: str | None, agent: str, *, start: bool) -> None:
    import uvloop

    require_own_daemon("Start `kaged acp` on the machine of the daemon.")
    with daemon(start=start) as client:
        client.get("/status")
        found = None if project is None else find_project(client, project)
        uvloop.run(_talk(client, found, agent))


async def _talk(client: Any, project: dict[str, Any] | None, agent: str) -> None:
    from acp import Agent, run_agent

    from kaged.cli.acp.agent import AcpAgent
    from kaged.cli.acp.feed import EventFeed
    from kaged.cli.acp.link import DaemonLink
    from kaged.cli.acp.pipes import StandardStreams

    if not os.environ.get(DEBUG_VARIABLE):
        # The SDK logs what it also answers; editors show every line as a complaint.
        logging.disable(logging.CRITICAL)
    feed = EventFeed(locations().socket)
    served = AcpAgent(DaemonLink(client), feed, project=project, agent=agent)
    try:
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(feed.run())
            # It calls every method by the names of its parameters.
            await run_agent(cast("Agent", served), StandardStreams(), use_unstable_protocol=True)
            reading.cancel()
    except ExceptionGroup as ended:
        raise ended.exceptions[0] from None  # one of the two failed, and ended the other
