"""`kaged account` and `kaged capability`: people's linked accounts, as the operator sees them."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from kaged.cli.context import AsJson, command, daemon
from kaged.cli.output import Output

PAGE = 200
User = Annotated[str | None, typer.Option("--user", "-u", help="Only this person's accounts.")]


def build() -> typer.Typer:
    """Build the group `account`."""
    app = typer.Typer(
        help="List and revoke linked accounts; answer requests for consent.",
        no_args_is_help=True,
    )
    _register_accounts(app)
    _register_approvals(app)
    return app


def build_capability() -> typer.Typer:
    """Build the group `capability`."""
    app = typer.Typer(
        help="List the service capabilities and their providers.", no_args_is_help=True
    )

    @command(app, "list")
    def list_capabilities(as_json: AsJson = False) -> None:
        """List the capabilities and their providers."""
        output = Output(as_json=as_json)
        with daemon() as client:
            found = client.get("/services/providers")["providers"]
        output.result(found)
        rows = [row for provider in found for row in _capability_rows(provider)]
        output.table(["capability", "provider", "kind", "state", "operations"], rows)

    @command(app, "refresh")
    def refresh(
        namespace: Annotated[str, typer.Argument(help="The provider's namespace.")],
        as_json: AsJson = False,
    ) -> None:
        """Ask a provider again what it offers."""
        output = Output(as_json=as_json)
        with daemon() as client:
            done = client.post(f"/services/providers/{quote(namespace, safe='')}/refresh")
        output.result(done)
        output.table(
            ["capability", "provider", "kind", "state", "operations"], _capability_rows(done)
        )

    return app


def _register_accounts(app: typer.Typer) -> None:
    @command(app, "list")
    def list_accounts(user: User = None, as_json: AsJson = False) -> None:
        """List who has linked which account; no credential is ever shown."""
        output = Output(as_json=as_json)
        found: list[Any] = []
        offset: int | None = 0
        with daemon() as client:
            while offset is not None:
                params = {"user_id": user, "limit": PAGE, "offset": offset}
                page = client.get("/services/accounts", params)
                found += page["accounts"]
                offset = page["next_offset"]
        output.result(found)
        columns = ["user_id", "capability", "account_ref", "account_email", "created_at"]
        output.table(columns, [[one[column] or "" for column in columns] for one in found])

    @command(app, "revoke")
    def revoke(
        user: Annotated[str, typer.Argument(help="Whose account.")],
        capability: Annotated[str, typer.Argument(help="Its capability, e.g. imap.email.")],
        account: Annotated[str, typer.Argument(help="Its account_ref, as `list` shows it.")],
        as_json: AsJson = False,
    ) -> None:
        """Take an account back: its credential is gone when this returns."""
        output = Output(as_json=as_json)
        body = {"user_id": user, "capability": capability, "account_ref": account}
        with daemon() as client:
            done = client.post("/services/accounts/revoke", body)
        output.result(done)
        told = "was notified" if done["provider_revoked"] else "was not notified"
        output.line(f"{account} of {user} is unlinked; the service itself {told}.")


def _register_approvals(app: typer.Typer) -> None:
    @command(app, "approvals")
    def approvals(as_json: AsJson = False) -> None:
        """List the operations that wait for somebody's consent."""
        output = Output(as_json=as_json)
        with daemon() as client:
            found = client.get("/services/approvals")["approvals"]
        output.result(found)
        columns = ["plan_id", "user_id", "capability", "operation", "status", "summary"]
        output.table(columns, [[one[column] for column in columns] for one in found])

    for name, decision, text in (
        ("approve", "confirm", "Consent to an operation; it may then be done once, as shown."),
        ("deny", "deny", "Refuse an operation."),
    ):
        _register_decision(app, name, decision, text)


def _register_decision(app: typer.Typer, name: str, decision: str, text: str) -> None:
    def decide(
        plan_id: Annotated[str, typer.Argument(help="The plan, as `approvals` shows it.")],
        as_json: AsJson = False,
    ) -> None:
        output = Output(as_json=as_json)
        with daemon() as client:
            place = f"/services/approvals/{quote(plan_id, safe='')}"
            done = client.post(place, {"decision": decision})
        output.result(done)
        output.line(f"{done['operation']} on {done['capability']}: {done['status']}.")

    decide.__doc__ = text
    command(app, name)(decide)


def _capability_rows(provider: dict[str, Any]) -> list[list[str]]:
    state = "ok" if provider["available"] else f"down: {provider['reason'] or 'not started yet'}"
    offered: list[Any] = provider["capabilities"] or [
        {"id": f"{provider['namespace']}.*", "operations": []}
    ]
    return [
        [one["id"], provider["name"], provider["kind"], state, ", ".join(one["operations"])]
        for one in offered
    ]
