"""`kaged mcp`: an agent's tools for an MCP client, and the outside MCP servers."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from kaged.cli.commands.project import find_project
from kaged.cli.context import AsJson, NoStart, command, daemon, locations, report
from kaged.cli.output import Output

Project = Annotated[
    str,
    typer.Option("--project", "-p", help="A loaded project: id, slug or folder; default here."),
]
Agent = Annotated[
    str, typer.Option("--agent", "-a", help="The agent's path, such as primary.subagents.coder.")
]
Name = Annotated[str, typer.Argument(help="The server's name in config.toml.")]


def build() -> typer.Typer:
    """Build the group. Without a command it serves."""
    app = typer.Typer(help="Serve an agent's tools to an MCP client; look after MCP servers.")

    @app.callback(invoke_without_command=True)
    def serve(
        context: typer.Context,
        project: Project = ".",
        agent: Agent = "primary",
        no_start: NoStart = False,
    ) -> None:
        """Serve the tools of an agent to an MCP client on stdin and stdout."""
        if context.invoked_subcommand is not None:
            return
        try:
            _serve(project, agent, start=not no_start)
        except Exception as error:  # noqa: BLE001  # boundary: command; every error has an exit
            raise typer.Exit(report(error, Output(as_json=False))) from None

    @command(app, "servers")
    def servers(as_json: AsJson = False, no_start: NoStart = False) -> None:
        """List the outside MCP servers and their tools."""
        output = Output(as_json=as_json)
        with daemon(start=not no_start) as client:
            found = client.get("/mcp/servers")
        output.result(found)
        output.table(
            ["server", "state", "tools", "held", "calls", "errors", "restarts", "note"],
            [_row(one) for one in found["servers"]],
        )
        for one in found["servers"]:
            for tool in one["tools"]:
                if not tool["offered"]:
                    output.note(f"{one['name']}: {tool['original']} is not offered: {tool['why']}")

    @command(app, "restart")
    def restart(name: Name, as_json: AsJson = False) -> None:
        """Stop and start a server, also one that was given up."""
        _act(name, "restart", as_json=as_json)

    @command(app, "approve")
    def approve(name: Name, as_json: AsJson = False) -> None:
        """Approve a server's tools as they are now; changed and new ones are offered again."""
        _act(name, "approve", as_json=as_json)

    @command(app, "logs")
    def logs(name: Name, as_json: AsJson = False) -> None:
        """Show the last lines that a server wrote on its standard error."""
        output = Output(as_json=as_json)
        with daemon() as client:
            found = client.get(f"/mcp/servers/{quote(name, safe='')}/logs")
        output.result(found)
        for line in found["lines"]:
            output.line(line)

    return app


def _serve(project: str, agent: str, *, start: bool) -> None:
    import uvloop

    from kaged.cli.stdio import relay

    with daemon(start=start) as client:
        project_id = find_project(client, project)["id"]
        # Asked here, where a wrong agent still gives a plain error.
        client.get(f"/projects/{project_id}/tools", {"agent": agent})
    path = f"/api/v1/projects/{project_id}/mcp/stream?agent={quote(agent, safe='')}"
    uvloop.run(relay(locations().socket, path))


def _act(name: str, what: str, *, as_json: bool) -> None:
    output = Output(as_json=as_json)
    with daemon() as client:
        found = client.post(f"/mcp/servers/{quote(name, safe='')}/{what}")
    output.result(found)
    offered = sum(tool["offered"] for tool in found["tools"])
    output.line(f"{found['name']} is {found['state']} and offers {offered} tools.")
    if found["note"]:
        output.note(found["note"])


def _row(server: dict[str, Any]) -> list[str]:
    offered = sum(tool["offered"] for tool in server["tools"])
    return [
        server["name"],
        server["state"],
        str(offered),
        str(server["pending"]),
        str(server["calls"]),
        str(server["errors"]),
        str(server["restarts"]),
        server["note"],
    ]
