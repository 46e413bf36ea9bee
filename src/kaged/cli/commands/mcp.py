"""`kaged mcp`: an agent's tools for an MCP client, and the outside MCP servers."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from kaged.cli.commands.mcp_add import app
from kaged.cli.context import daemon, locations, report, require_own_daemon
from kaged.cli.output import Output, show_lines, show_rows
from kaged.cli.runner import (
    AgentPath,
    DaemonClient,
    InProject,
    NoStart,
    daemon_command,
    find_project,
)

__all__ = ["app"]

Name = Annotated[str, typer.Argument(help="The server's name in config.toml.")]


@app.callback(invoke_without_command=True)
def serve(
    context: typer.Context,
    project: InProject = ".",
    agent: AgentPath = "primary",
    no_start: NoStart = False,
) -> None:
    """Serve the tools of an agent to an MCP client on stdin and stdout."""
    if context.invoked_subcommand is not None:
        return
    try:
        _serve(project, agent, start=not no_start)
    except Exception as error:  # noqa: BLE001  # boundary: command; every error has an exit
        raise typer.Exit(report(error, Output(as_json=False))) from None


def _serve(project: str, agent: str, *, start: bool) -> None:
    import uvloop

    from kaged.cli.stdio import relay

    require_own_daemon("Give the MCP client the daemon's own address: /api/v1/projects/ID/mcp.")
    with daemon(start=start) as client:
        project_id = find_project(client, project)["id"]
        # Asked here, where a wrong agent still gives a plain error.
        client.get(f"/projects/{project_id}/tools", {"agent": agent})
    path = f"/api/v1/projects/{project_id}/mcp/stream?agent={quote(agent, safe='')}"
    uvloop.run(relay(locations().socket, path))


def _show_servers(found: Any, output: Output) -> None:
    columns = (
        "server=name",
        "state",
        ("tools", _offered),
        "held=pending",
        "calls",
        "errors",
        "restarts",
        "note",
    )
    show_rows(found["servers"], columns, output)
    for one in found["servers"]:
        for tool in one["tools"]:
            if not tool["offered"]:
                output.note(f"{one['name']}: {tool['original']} is not offered: {tool['why']}")


def _offered(server: Any) -> int:
    return sum(tool["offered"] for tool in server["tools"])


def _show_server(found: Any, output: Output) -> None:
    output.line(f"{found['name']} is {found['state']} and offers {_offered(found)} tools.")
    if found["note"]:
        output.note(found["note"])


@daemon_command(app, "servers", view=_show_servers, no_start=True)
def servers(client: DaemonClient) -> Any:
    """List the outside MCP servers and their tools."""
    return client.get("/mcp/servers")


@daemon_command(app, "restart", view=_show_server)
def restart(client: DaemonClient, name: Name) -> Any:
    """Stop and start a server, including one that is no longer restarted."""
    return client.post(f"/mcp/servers/{quote(name, safe='')}/restart")


@daemon_command(app, "approve", view=_show_server)
def approve(client: DaemonClient, name: Name) -> Any:
    """Approve a server's current tools. New and changed ones are offered again."""
    return client.post(f"/mcp/servers/{quote(name, safe='')}/approve")


@daemon_command(app, "logs", view=show_lines)
def logs(client: DaemonClient, name: Name) -> Any:
    """Show the last lines that a server wrote to its standard error."""
    return client.get(f"/mcp/servers/{quote(name, safe='')}/logs")
