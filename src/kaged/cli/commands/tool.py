"""`kaged tool`: list an agent's tools, call them as that agent, and explain decisions."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaged.base import KagedError
from kaged.cli.exits import Exit
from kaged.cli.inputs import json_object, json_value
from kaged.cli.output import Output, show_rows
from kaged.cli.runner import (
    AgentPath,
    DaemonClient,
    daemon_command,
    find_project,
    group,
    project_command,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


MAX_PARAMS_CHARS = 8 * 1024 * 1024

Name = Annotated[str, typer.Argument(help="The tool's name, such as file.read.")]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(help="Its arguments: key=value for text, key:=JSON for anything else."),
]
Params = Annotated[
    str | None,
    typer.Option("--params", help="All arguments as one JSON object, or - to read it from stdin."),
]

app = group("List an agent's tools, call them, and explain what is allowed.")


def _show_tools(found: Any, output: Output) -> None:
    columns = (
        "tool=name",
        ("from", lambda tool: tool["plugin_name"] or tool["source"]),
        ("because", _why),
    )
    show_rows(found["tools"], columns, output)
    for warning in found["warnings"]:
        output.note(f"warning: {warning['message']} (line {warning['line']})")


def _why(tool: Any) -> str:
    off = tool["off_actions"]
    return tool["why"] + (f"; without {', '.join(off)}" if off else "")


def _show_result(found: Any, output: Output) -> None:
    output.line(json.dumps(found["result"], indent=2, ensure_ascii=False))


def _show_decision(found: Any, output: Output) -> Exit | None:
    word = "allowed" if found["allowed"] else "refused"
    output.line(f"{found['tool']} by {found['agent']} would be {word}.")
    marks = {True: "ok", False: "NO", None: "?"}
    columns = ("gate=step", ("", lambda gate: marks[gate["passed"]]), "rule", "detail")
    show_rows(found["gates"], columns, output)
    for gate in found["gates"]:
        if gate["passed"] is False and gate["remedy"]:
            output.note(f"  fix: {gate['remedy']}")
    return None if found["allowed"] else Exit.DENIED


def _show_stats(found: Any, output: Output) -> None:
    columns = (
        "tool",
        "agent",
        "calls",
        ("failed", lambda one: one["failed"] + one["cancelled"]),
        "denied",
        ("mean ms", lambda one: f"{one['mean_ms']:.1f}"),
        ("p95 ms", lambda one: "over 120000" if one["p95_ms"] is None else f"{one['p95_ms']:g}"),
        ("errors", _most_errors),
    )
    show_rows(found["series"], columns, output)
    output.note(f"since {found['since']}")


def _most_errors(one: Any) -> str:
    most = sorted(one["errors"].items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{code} {count}" for code, count in most)


@project_command(app, "list", view=_show_tools, no_start=True)
def list_tools(client: DaemonClient, agent: AgentPath = "primary") -> Any:
    """List the tools of an agent, each with the rule that enables it."""
    return client.get("/tools", {"agent": agent})


@project_command(app, "call", view=_show_result, no_start=True)
def call(
    client: DaemonClient,
    name: Name,
    arguments: Arguments = None,
    params: Params = None,
    agent: AgentPath = "primary",
) -> Any:
    """Call a tool with the permissions of an agent."""
    body = {"agent": agent, "tool": name, "params": read_params(arguments or [], params)}
    return client.post("/tools/call", body)


@project_command(app, "explain", view=_show_decision, no_start=True)
def explain(
    client: DaemonClient,
    name: Name,
    arguments: Arguments = None,
    params: Params = None,
    agent: AgentPath = "primary",
) -> Any:
    """Explain whether a call would be allowed, and by which rule.

    Also shows what would change the decision. Nothing is run. Exit code 4 if the call would be
    refused.
    """
    body = {"agent": agent, "tool": name, "params": read_params(arguments or [], params)}
    return client.post("/tools/explain", body)


@daemon_command(app, "stats", view=_show_stats, no_start=True)
def stats(
    client: DaemonClient,
    project: Annotated[
        str | None,
        typer.Option("--project", "-p", help="Only this project: id, slug or folder."),
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", "-a", help="Only the agent at this path.")
    ] = None,
    tool: Annotated[str | None, typer.Option("--tool", "-t", help="Only this tool.")] = None,
) -> Any:
    """Show how often tools were called, their results and their times.

    Counts since the daemon started, the busiest tools first. /metrics has the same numbers.
    """
    project_id = None if project is None else find_project(client, project)["id"]
    return client.get("/tools/stats", {"agent": agent, "tool": tool, "project_id": project_id})


def read_params(arguments: Sequence[str], params: str | None) -> dict[str, Any]:
    """Read a tool's arguments from `key=value`, `key:=json` and one JSON object."""
    found: dict[str, Any] = {}
    if params is not None:
        text = sys.stdin.read(MAX_PARAMS_CHARS) if params == "-" else params
        found.update(json_object(text, "--params"))
    for one in arguments:
        key, equals, value = one.partition("=")
        if not equals or not key.removesuffix(":"):
            raise KagedError(
                f"{one!r} is not an argument.",
                code="invalid_params",
                fix="Write key=value or key:=JSON.",
            )
        if key.endswith(":"):
            found[key[:-1]] = json_value(value, key[:-1])
        else:
            found[key] = value
    return found
