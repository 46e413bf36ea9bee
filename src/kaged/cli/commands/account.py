"""`kaged account` and `kaged capability`: people's linked accounts, as the operator sees them."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer

from kaged.cli.output import Output, table
from kaged.cli.runner import DaemonClient, daemon_command, group

PAGE = 200
DECIDED = "{found[operation]} on {found[capability]}: {found[status]}."

User = Annotated[str | None, typer.Option("--user", "-u", help="Only this person's accounts.")]
PlanId = Annotated[str, typer.Argument(help="The plan's id, from `kaged account approvals`.")]

accounts = group("List and revoke linked accounts; answer requests for consent.")
capabilities = group("List the service capabilities and their providers.")


def _show_capabilities(found: Any, output: Output) -> None:
    rows = [row for provider in found for row in _capability_rows(provider)]
    output.table(["capability", "provider", "kind", "state", "operations"], rows)


def _capability_rows(provider: dict[str, Any]) -> list[list[str]]:
    state = "ok" if provider["available"] else f"down: {provider['reason'] or 'not started yet'}"
    offered: list[Any] = provider["capabilities"] or [
        {"id": f"{provider['namespace']}.*", "operations": []}
    ]
    return [
        [one["id"], provider["name"], provider["kind"], state, ", ".join(one["operations"])]
        for one in offered
    ]


@daemon_command(capabilities, "list", view=_show_capabilities)
def list_capabilities(client: DaemonClient) -> Any:
    """List the capabilities and their providers."""
    return client.get("/services/providers")["providers"]


@daemon_command(
    capabilities, "refresh", view=lambda found, output: _show_capabilities([found], output)
)
def refresh(
    client: DaemonClient,
    namespace: Annotated[str, typer.Argument(help="The provider's namespace.")],
) -> Any:
    """Ask a provider again what it offers."""
    return client.post(f"/services/providers/{quote(namespace, safe='')}/refresh")


@daemon_command(
    accounts,
    "list",
    view=table(("user_id", "capability", "account_ref", "account_email", "status", "created_at")),
)
def list_accounts(client: DaemonClient, user: User = None) -> Any:
    """List who has linked which account. Credentials are never shown."""
    found: list[Any] = []
    offset: int | None = 0
    while offset is not None:
        params = {"user_id": user, "limit": PAGE, "offset": offset}
        page = client.get("/services/accounts", params)
        found += page["accounts"]
        offset = page["next_offset"]
    return found


@daemon_command(
    accounts,
    "check",
    view=table(("user_id", "capability", "account_ref", "status", "checked", "status_reason")),
)
def check_accounts(client: DaemonClient, user: User = None) -> Any:
    """Test linked accounts at their services. Bridges test none; they show what calls found."""
    found: list[Any] = []
    offset: int | None = 0
    while offset is not None:
        query = urlencode({"offset": offset} | ({} if user is None else {"user_id": user}))
        page = client.post(f"/services/accounts/check?{query}")
        found += page["accounts"]
        offset = page["next_offset"]
    return found


@daemon_command(accounts, "revoke")
def revoke(
    client: DaemonClient,
    output: Output,
    user: Annotated[str, typer.Argument(help="The account's user.")],
    capability: Annotated[str, typer.Argument(help="Its capability, such as imap.email.")],
    account: Annotated[str, typer.Argument(help="Its account_ref, from `kaged account list`.")],
) -> None:
    """Unlink an account. Its credential is deleted when this command returns."""
    body = {"user_id": user, "capability": capability, "account_ref": account}
    done = client.post("/services/accounts/revoke", body)
    output.result(done)
    told = "was notified" if done["provider_revoked"] else "was not notified"
    output.line(f"{account} of {user} is unlinked; the service itself {told}.")


@daemon_command(
    accounts,
    "approvals",
    view=table(("plan_id", "user_id", "capability", "operation", "status", "summary")),
)
def approvals(client: DaemonClient) -> Any:
    """List the operations that wait for consent."""
    return client.get("/services/approvals")["approvals"]


def _register_decision(verb: str, decision: str, text: str) -> None:
    @daemon_command(accounts, verb, view=DECIDED, text=text)
    def decide(client: DaemonClient, plan_id: PlanId) -> Any:
        path = f"/services/approvals/{quote(plan_id, safe='')}"
        return client.post(path, {"decision": decision})


_register_decision(
    "approve", "confirm", "Approve an operation. It can then be done once, exactly as shown."
)
_register_decision("deny", "deny", "Deny an operation.")
