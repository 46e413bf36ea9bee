"""`kaged people`: invite people who have no other way to sign in."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from kaged.cli.commands.service_account import lifetime_s
from kaged.cli.output import Output, table
from kaged.cli.runner import DaemonClient, daemon_command, group

app = group("Invite people, list and revoke invitations.")

Person = Annotated[
    str, typer.Argument(help="The person's id, as in [people] and as their work is kept under.")
]
Expires = Annotated[
    str, typer.Option("--expires", help="How long it can be used: 30m, 12h, 7d or 4w from now.")
]
Access = Annotated[
    str, typer.Option("--access", help="How long they can come in with it: 12h, 30d, 8w.")
]
Team = Annotated[
    str | None,
    typer.Option("--team", help="Invite somebody new into this team; PERSON is a name of theirs."),
]
Id = Annotated[str, typer.Argument(help="The invitation's id.")]


@daemon_command(app, "invite")
def invite(
    client: DaemonClient,
    output: Output,
    person: Person,
    expires: Expires = "7d",
    access: Access = "30d",
    team: Team = None,
) -> None:
    """Invite a person. The link is shown once and works once."""
    body = {
        "team": team,
        "person_id": person,
        "expires_in_s": lifetime_s(expires),
        "access_s": lifetime_s(access),
    }
    made: dict[str, Any] = client.post("/people/invitations", body)
    output.result(made)
    output.line(made["url"] or made["code"])
    output.note(
        f"{made['person_id']} can accept it until {made['expires_at']}: with a browser, or with "
        f"`kaged login URL --invitation {made['code']}`."
    )


@daemon_command(
    app,
    "list",
    view=table(("id", "person_id", "state", "expires_at", "access_expires_at", "created_by")),
)
def list_invitations(client: DaemonClient) -> Any:
    """List the invitations. Codes are never shown."""
    return client.get("/people/invitations")["items"]


@daemon_command(app, "revoke")
def revoke(client: DaemonClient, output: Output, invitation: Id) -> None:
    """Revoke an invitation. Who has accepted it is out from the next request on."""
    done = client.delete(f"/people/invitations/{quote(invitation, safe='')}")
    output.result(done)
    output.line(f"The invitation of {done['person_id']} is revoked.")


@daemon_command(app, "sign-out")
def sign_out(client: DaemonClient, output: Output, person: Person) -> None:
    """Sign a person out: browsers, accepted invitations, and tokens given before now."""
    done = client.delete(f"/people/{quote(person, safe='')}/sign-ins")
    output.result(done)
    output.line(
        f"{person} is signed out: {done['sessions']} sessions, {done['invitations']} invitations, "
        "and every token given before now."
    )
