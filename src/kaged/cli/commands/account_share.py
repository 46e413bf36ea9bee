"""`kaged account share`: let somebody else use an account of yours, for named operations."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from kaged.cli.commands.account import PAGE
from kaged.cli.commands.account_link import accounts
from kaged.cli.commands.service_account import lifetime_s
from kaged.cli.output import Output, table
from kaged.cli.runner import DaemonClient, daemon_command

__all__ = ["accounts"]


@daemon_command(accounts, "share", view=None)
def share(
    client: DaemonClient,
    output: Output,
    capability: Annotated[str, typer.Argument(help="Its capability, such as imap.email.")],
    account: Annotated[str, typer.Argument(help="Its account_ref, from `kaged account list`.")],
    operation: Annotated[
        list[str], typer.Option("--operation", "-o", help="What they may do; again for more.")
    ],
    person: Annotated[str | None, typer.Option("--with", help="The person's id.")] = None,
    team: Annotated[str | None, typer.Option("--team", help="A team, instead of a person.")] = None,
    expires: Annotated[
        str | None,
        typer.Option("--expires", help="When it ends by itself: 30m, 12h, 30d or 8w from now."),
    ] = None,
) -> None:
    """Let a person or a team use an account of yours. They never get its credential."""
    body = {
        "capability": capability,
        "account_ref": account,
        "person": person,
        "team": team,
        "operations": operation,
        "expires_in_s": None if expires is None else lifetime_s(expires),
    }
    made = client.post("/services/shares", body)
    output.result(made)
    named = made["person"] or f"the team {made['team']}"
    output.line(f"Shared {account} with {named} as {made['share_id']}.")


@daemon_command(
    accounts,
    "shares",
    view=table(
        ("share_id", "owner", "capability", "account_ref", "person", "team", "operations", "state",
         "expires_at", "last_used_at", "last_used_by")
    ),
)  # fmt: skip
def list_shares(client: DaemonClient) -> Any:
    """List the shares of accounts: those you gave and were given; the operator sees all."""
    found: list[Any] = []
    offset: int | None = 0
    while offset is not None:
        page = client.get("/services/shares", {"limit": PAGE, "offset": offset})
        found += page["shares"]
        offset = page["next_offset"]
    return found


@daemon_command(accounts, "unshare", view="{found[share_id]} of {found[owner]} has ended.")
def unshare(
    client: DaemonClient,
    share: Annotated[str, typer.Argument(help="Its share_id, from `kaged account shares`.")],
) -> Any:
    """End a share. The next call with it is refused."""
    return client.delete(f"/services/shares/{quote(share, safe='')}")
