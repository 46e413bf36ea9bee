"""`kaged service-account`: tokens for programs, with roles, projects and an end."""

from __future__ import annotations

import re
from typing import Annotated, Any
from urllib.parse import quote

import typer

from kaged.cli.output import Output, table
from kaged.cli.runner import DaemonClient, daemon_command, group

_UNITS = {"m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}

Name = Annotated[str, typer.Argument(help="The account's name, such as nightly-report.")]
Roles = Annotated[list[str] | None, typer.Option("--role", help="A role; may be repeated.")]
Teams = Annotated[list[str] | None, typer.Option("--team", help="A team; may be repeated.")]
Projects = Annotated[
    list[str] | None,
    typer.Option("--project", help="A project it may use; may be repeated. None: every one."),
]
Operations = Annotated[
    list[str] | None,
    typer.Option(
        "--operation",
        help="Operations of capabilities it may call, such as mail.inbox.*; may be repeated. "
        "None: every one.",
    ),
]
Expires = Annotated[
    str, typer.Option("--expires", help="When its token ends: 30m, 12h, 30d or 8w from now.")
]

app = group("Make, list and revoke tokens for programs; none of them is the operator.")


def lifetime_s(text: str) -> int:
    """Read a span of time such as `30d` in seconds. Raises BadParameter."""
    match = re.fullmatch(r"([1-9][0-9]{0,5})([mhdw])", text.strip())
    if match is None:
        raise typer.BadParameter(
            "write a number and m, h, d or w, such as 30d", param_hint="--expires"
        )
    return int(match[1]) * _UNITS[match[2]]


@daemon_command(app, "create")
def create(
    client: DaemonClient,
    output: Output,
    name: Name,
    role: Roles = None,
    team: Teams = None,
    project: Projects = None,
    operation: Operations = None,
    expires: Expires = "30d",
) -> None:
    """Make a service account. Its token is shown once and cannot be shown again."""
    body = {
        "name": name,
        "roles": role or [],
        "teams": team or [],
        "projects": project or None,
        "operations": operation or None,
        "expires_in_s": lifetime_s(expires),
    }
    made: dict[str, Any] = client.post("/service-accounts", body)
    output.result(made)
    output.line(made["token"])
    output.note(f"{made['person_id']} may come in with it until {made['expires_at']}.")


@daemon_command(
    app,
    "list",
    view=table(
        (
            "name",
            "state",
            ("roles", lambda one: ", ".join(one["roles"])),
            ("projects", lambda one: _listed(one["projects"])),
            ("operations", lambda one: _listed(one["operations"])),
            "expires_at",
        )
    ),
)
def list_accounts(client: DaemonClient) -> Any:
    """List the service accounts. Tokens are never shown."""
    return client.get("/service-accounts")["items"]


@daemon_command(app, "revoke")
def revoke(client: DaemonClient, output: Output, name: Name) -> None:
    """Revoke a service account. Its token is refused from the next request on."""
    done = client.delete(f"/service-accounts/{quote(name, safe='')}")
    output.result(done)
    output.line(f"{name} is revoked.")


def _listed(names: list[str] | None) -> str:
    return "all" if names is None else ", ".join(names) or "none"
