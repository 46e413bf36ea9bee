"""`kaged account link`: link an account at a terminal. Passwords are typed without an echo."""

from __future__ import annotations

import getpass
import sys
import time
import webbrowser
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from kaged.base import KagedError
from kaged.cli.commands.account import accounts
from kaged.cli.exits import Exit
from kaged.cli.output import Output
from kaged.cli.runner import DaemonClient, daemon_command

LONGEST_PAUSE_S: Final = 60
TRIES: Final = 3
_TYPED_WRONG: Final = frozenset({"capability_auth_required", "capability_invalid_input"})


@daemon_command(accounts, "link", view=None)
def link(
    client: DaemonClient,
    output: Output,
    provider: Annotated[
        str, typer.Argument(help="The provider's namespace, or a capability such as imap.email.")
    ],
    account: Annotated[
        str | None, typer.Option("--account", help="A name for the account, such as work.")
    ] = None,
    browser: Annotated[
        bool, typer.Option("--open", help="Open the page in your browser as well.")
    ] = False,
    page: Annotated[
        bool, typer.Option("--page", help="Type a password into the page instead of here.")
    ] = False,
) -> None:
    """Link an account of yours. Ctrl-C gives it up; nothing is linked then."""
    capability = _capability(client, provider)
    flow = client.post("/services/links", {"capability": capability, "account_hint": account})
    path = f"/services/links/{quote(flow['flow_id'], safe='')}"
    output.note(f"Page: {flow['auth_url']}")
    if flow["user_code"] is not None:
        output.note(f"Code to enter there: {flow['user_code']}")
    output.note(f"Valid until {flow['expires_at']}. Ctrl-C gives up.")
    if browser:
        webbrowser.open(flow["auth_url"])
    try:
        done = _finish(client, output, path, flow, on_page=page)
    except (KeyboardInterrupt, EOFError):
        client.delete(path)
        output.note("Canceled; nothing was linked.")
        raise typer.Exit(Exit.INTERRUPTED) from None
    output.result({"capability": capability, **done})
    shown = done["account_email"] or done["account_name"]
    named = f"{done['account_ref']} ({shown})" if shown else done["account_ref"]
    output.line(f"Linked {named} with {capability}.")


def _finish(
    client: DaemonClient, output: Output, path: str, flow: dict[str, Any], *, on_page: bool
) -> Any:
    if flow["flow_type"] == "device_code":
        return _wait(client, output, path)
    if flow["fields"] and not on_page:
        return _fill_in(client, output, path, flow["fields"])
    asked = "The address you were sent to, or the code that the page shows"
    given = _typed(asked, secret=False)
    output.note("Linking …")
    return client.post(f"{path}/complete", {"code": given})


def _fill_in(client: DaemonClient, output: Output, path: str, fields: list[dict[str, Any]]) -> Any:
    """Let the person type the fields in; at a terminal again when the service refuses them."""
    from kaged.cli.client import DaemonRefused

    tries = TRIES if sys.stdin.isatty() else 1
    while True:
        values = {one["name"]: _typed(one["label"], secret=one["secret"]) for one in fields}
        output.note("Testing what you typed …")
        tries -= 1
        try:
            return client.post(f"{path}/complete", {"fields": values})
        except DaemonRefused as error:
            if not tries or error.code not in _TYPED_WRONG:
                raise
            output.note(f"{error.message} Try again.")


def _wait(client: DaemonClient, output: Output, path: str) -> Any:
    """Ask until the person has agreed elsewhere, as often as is allowed."""
    while True:
        found = client.post(f"{path}/poll")
        if found["status"] != "pending":
            return found
        pause_s = min(max(1, found["retry_after_seconds"] or 1), LONGEST_PAUSE_S)
        output.note(f"Waiting for you to agree; asking again in {pause_s} s …")
        time.sleep(pause_s)


def _typed(label: str, *, secret: bool) -> str:
    """Read one line: from a terminal without an echo if it is secret, or from a pipe."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")
    if secret:
        return getpass.getpass(f"{label}: ", stream=sys.stderr)
    sys.stderr.write(f"{label}: ")
    sys.stderr.flush()
    return input()


def _capability(client: DaemonClient, wanted: str) -> str:
    if "." in wanted:
        return wanted
    for provider in client.get("/services/providers")["providers"]:
        if provider["namespace"] == wanted:
            offered = [one["id"] for one in provider["capabilities"]]
            if len(offered) == 1:
                return str(offered[0])
            raise KagedError(
                f"{wanted} offers {len(offered)} capabilities.",
                code="service_provider_unknown",
                fix=f"Name one of them: {', '.join(offered) or 'none is available now'}.",
            )
    raise KagedError(
        "There is no such provider.",
        code="service_provider_unknown",
        fix="`kaged capability list` shows the providers.",
    )
