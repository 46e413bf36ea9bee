"""`kaged tool`: what the tools of an agent are, calls as that agent, and why or why not."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from kaged.base import KagedError
from kaged.cli.commands.project import find_project
from kaged.cli.context import AsJson, NoStart, command, daemon
from kaged.cli.exits import Exit
from kaged.cli.output import Output

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_PARAMS_CHARS = 8 * 1024 * 1024

Project = Annotated[
    str,
    typer.Option("--project", "-p", help="A loaded project: id, slug or folder; default here."),
]
Agent = Annotated[
    str, typer.Option("--agent", "-a", help="The agent's path, such as primary.subagents.coder.")
]
Name = Annotated[str, typer.Argument(help="The tool's name, such as file.read.")]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(help="Its arguments: key=value, or key:=JSON for anything but text."),
]
Params = Annotated[
    str | None,
    typer.Option("--params", help="All arguments as one JSON object; - reads it from stdin."),
]


class ArgumentsInvalid(KagedError):
    """The arguments of a tool cannot be read."""

    code: ClassVar[str] = "invalid_params"


def build() -> typer.Typer:
    """Build the group."""
    app = typer.Typer(
        help="Look at an agent's tools, call them, and ask what would be allowed.",
        no_args_is_help=True,
    )

    @command(app, "list")
    def list_tools(
        project: Project = ".",
        agent: Agent = "primary",
        as_json: AsJson = False,
        no_start: NoStart = False,
    ) -> None:
        """List the tools that an agent has, each with the rule that gives it to the agent."""
        output = Output(as_json=as_json)
        with daemon(start=not no_start) as client:
            found = client.get(
                f"/projects/{find_project(client, project)['id']}/tools", {"agent": agent}
            )
        output.result(found)
        output.table(["tool", "from", "because"], [_row(one) for one in found["tools"]])
        for warning in found["warnings"]:
            output.note(f"warning: {warning['message']} (line {warning['line']})")

    @command(app, "call")
    def call(
        name: Name,
        arguments: Arguments = None,
        params: Params = None,
        project: Project = ".",
        agent: Agent = "primary",
        as_json: AsJson = False,
        no_start: NoStart = False,
    ) -> None:
        """Call a tool with the rights of an agent."""
        output = Output(as_json=as_json)
        body = {"agent": agent, "tool": name, "params": read_params(arguments or [], params)}
        with daemon(start=not no_start) as client:
            found = client.post(f"/projects/{find_project(client, project)['id']}/tools/call", body)
        output.result(found)
        output.line(json.dumps(found["result"], indent=2, ensure_ascii=False))

    @command(app, "explain")
    def explain(
        name: Name,
        arguments: Arguments = None,
        params: Params = None,
        project: Project = ".",
        agent: Agent = "primary",
        as_json: AsJson = False,
        no_start: NoStart = False,
    ) -> None:
        """Explain whether a call would be allowed, by which rule, and what would change that.

        Nothing is run. Exit code 4 when it would be refused.
        """
        output = Output(as_json=as_json)
        body = {"agent": agent, "tool": name, "params": read_params(arguments or [], params)}
        with daemon(start=not no_start) as client:
            project_id = find_project(client, project)["id"]
            found = client.post(f"/projects/{project_id}/tools/explain", body)
        output.result(found)
        _show(found, output)
        if not found["allowed"]:
            raise typer.Exit(Exit.DENIED)

    @command(app, "stats")
    def stats(
        project: Annotated[
            str | None,
            typer.Option("--project", "-p", help="Only this project: id, slug or folder."),
        ] = None,
        agent: Annotated[
            str | None, typer.Option("--agent", "-a", help="Only the agent at this path.")
        ] = None,
        tool: Annotated[str | None, typer.Option("--tool", "-t", help="Only this tool.")] = None,
        as_json: AsJson = False,
        no_start: NoStart = False,
    ) -> None:
        """Show how often tools were called, how that ended, and how long it took.

        Counts since the daemon started, the busiest first. The same numbers are in /metrics.
        """
        output = Output(as_json=as_json)
        asked = {"agent": agent, "tool": tool}
        with daemon(start=not no_start) as client:
            if project is not None:
                asked["project_id"] = find_project(client, project)["id"]
            found = client.get(
                "/tools/stats", {name: value for name, value in asked.items() if value is not None}
            )
        output.result(found)
        output.table(
            ["tool", "agent", "calls", "failed", "denied", "mean ms", "p95 ms", "errors"],
            [_stats_row(one) for one in found["series"]],
        )
        output.note(f"since {found['since']}")

    return app


def read_params(arguments: Sequence[str], params: str | None) -> dict[str, Any]:
    """Read a tool's arguments from `key=value`, `key:=json` and one JSON object."""
    found: dict[str, Any] = {}
    if params is not None:
        text = sys.stdin.read(MAX_PARAMS_CHARS) if params == "-" else params
        whole = _json(text, "--params")
        if not isinstance(whole, dict):
            raise ArgumentsInvalid("--params is no JSON object.", fix='Write {"path": "a"}.')
        found.update(whole)
    for one in arguments:
        key, equals, value = one.partition("=")
        if not equals or not key.removesuffix(":"):
            raise ArgumentsInvalid(f"{one!r} is no argument.", fix="Write key=value or key:=JSON.")
        if key.endswith(":"):
            found[key[:-1]] = _json(value, key[:-1])
        else:
            found[key] = value
    return found


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentsInvalid(f"{what} is no JSON: {error}") from error


def _row(tool: dict[str, Any]) -> list[str]:
    why = tool["why"]
    if tool["off_actions"]:
        why += f"; without {', '.join(tool['off_actions'])}"
    return [tool["name"], tool["plugin_name"] or tool["source"], why]


def _stats_row(one: dict[str, Any]) -> list[str]:
    most = sorted(one["errors"].items(), key=lambda item: -item[1])[:3]
    slow = "over 120000" if one["p95_ms"] is None else f"{one['p95_ms']:g}"
    return [
        one["tool"],
        one["agent"],
        str(one["calls"]),
        str(one["failed"] + one["cancelled"]),
        str(one["denied"]),
        f"{one['mean_ms']:.1f}",
        slow,
        ", ".join(f"{code} {count}" for code, count in most),
    ]


def _show(found: dict[str, Any], output: Output) -> None:
    word = "allowed" if found["allowed"] else "refused"
    output.line(f"{found['tool']} by {found['agent']} would be {word}.")
    marks = {True: "ok", False: "NO", None: "?"}
    output.table(
        ["gate", "", "rule", "detail"],
        [[one["step"], marks[one["passed"]], one["rule"], one["detail"]] for one in found["gates"]],
    )
    for one in found["gates"]:
        if one["passed"] is False and one["remedy"]:
            output.note(f"To change this: {one['remedy']}")
