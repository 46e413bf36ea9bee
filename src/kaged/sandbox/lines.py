"""What `ash-sb` prints: labelled lines for a language model, every list with its count."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def capability_lines(result: dict[str, Any]) -> list[str]:
    """Show the answer of `capability.list`."""
    rows = _objects(result, "capabilities")
    if not rows:
        return ["No capabilities available."]
    lines = ["Capabilities:"]
    for row in rows:
        lines.append(f"- {text(row, 'id')}: {text(row, 'description')}")
        lines.append(f"  Available: {_yes(row.get('available'))}")
        lines.append(f"  Authenticated: {_yes(row.get('authenticated'))}")
        accounts = [_account(one) for one in _objects(row, "linked_accounts")]
        if accounts:
            lines.append(f"  Accounts: {', '.join(accounts)}")
        lines += [_shared(one) for one in _objects(row, "shared_accounts")]
        operations = row.get("operations")
        names = operations if isinstance(operations, list) else []
        lines.append(f"  Operations: {', '.join(one_line(str(name)) for name in names)}")
    lines.append(f"Total: {len(rows)} capability(ies)")
    return lines


def invoked_lines(result: dict[str, Any], capability: str, operation: str) -> list[str]:
    """Show the answer of `capability.invoke`."""
    replayed = ", replayed=yes" if result.get("replayed") is True else ""
    return [
        f"Capability invocation succeeded (request_id={text(result, 'request_id')}{replayed})",
        f"Capability: {one_line(capability)}",
        f"Operation: {one_line(operation)}",
        f"Output: {as_json(result.get('output', {}))}",
    ]


def begun_lines(flow: dict[str, Any]) -> list[str]:
    """Show the flow that `capability.auth.begin` gave."""
    return [
        f"Started capability auth flow (flow_id={text(flow, 'flow_id')})",
        f"Capability: {text(flow, 'capability')}",
        *_flow_lines(flow),
    ]


def pending_lines(result: dict[str, Any]) -> list[str]:
    """Show the answer of `capability.auth.list`."""
    flows = _objects(result, "flows")
    if not flows:
        return ["No pending capability auth flows."]
    lines = ["Pending capability auth flows:"]
    for flow in flows:
        hint = text(flow, "account_hint") or "none"
        lines.append(f"- {text(flow, 'flow_id')} ({text(flow, 'capability')}, account={hint})")
        lines += [f"  {line}" for line in _flow_lines(flow)]
    lines.append(f"Total: {len(flows)} flow(s)")
    return lines


def completed_line(result: dict[str, Any], flow_id: str, *, capability: bool = False) -> str:
    """Show that a flow has ended with a linked account."""
    parts = [f"flow_id={one_line(flow_id)}"]
    if capability:
        parts.append(f"capability={text(result, 'capability')}")
    parts.append(f"account_ref={text(result, 'account_ref')}")
    return f"Capability auth completed ({', '.join(parts)})"


def revoked_line(result: dict[str, Any], capability: str) -> str:
    """Show that an account is no longer linked."""
    upstream = _yes(result.get("provider_revoked"))
    return (
        f"Capability account unlinked (capability={one_line(capability)}, "
        f"account_ref={text(result, 'account_ref')}, provider_revoked={upstream})"
    )


def as_json(value: object) -> str:
    """Write a value as JSON in one line of ASCII, keys sorted."""
    return json.dumps(value, sort_keys=True)


def one_line(value: str) -> str:
    """Make a text from elsewhere safe to stand in a labelled line.

    A line break in somebody's account name must not look like a line of ours, and an escape
    sequence must not move a cursor.
    """
    return "".join(char if char.isprintable() else " " for char in value)


def text(holder: dict[str, Any], name: str) -> str:
    """Return a member as text; an absent one is empty."""
    value = holder.get(name)
    return "" if value is None else one_line(str(value))


def _flow_lines(flow: dict[str, Any]) -> list[str]:
    lines = [
        f"Auth URL: {text(flow, 'auth_url')}",
        f"Flow type: {text(flow, 'flow_type') or 'authorization_code'}",
    ]
    if flow.get("user_code"):
        lines.append(f"User code: {text(flow, 'user_code')}")
    if flow.get("poll_interval_seconds"):
        lines.append(f"Poll interval: {text(flow, 'poll_interval_seconds')}s")
    lines.append(f"Expires: {text(flow, 'expires_at')}")
    return lines


def _account(row: dict[str, Any]) -> str:
    email = text(row, "account_email")
    return f"{text(row, 'account_ref')} ({email})" if email else text(row, "account_ref")


def _shared(row: dict[str, Any]) -> str:
    listed = row.get("operations")
    names = listed if isinstance(listed, list) else []
    may = ", ".join(one_line(str(name)) for name in names)
    return f"  Shared by {text(row, 'shared_by')}: {text(row, 'account_ref')} (operations: {may})"


def _objects(holder: dict[str, Any], name: str) -> list[dict[str, Any]]:
    value = holder.get(name)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _yes(value: object) -> str:
    return "yes" if value is True else "no"
