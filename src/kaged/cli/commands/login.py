"""`kaged login` and `kaged logout`: this user at a daemon behind a URL."""

from __future__ import annotations

import contextlib
import os
from typing import Annotated, Any

import typer

from kaged.base import KagedError, SystemClock
from kaged.cli.context import URL_VARIABLE, locations
from kaged.cli.output import Output
from kaged.cli.runner import command

app = typer.Typer()
logouts = typer.Typer()

Url = Annotated[
    str | None,
    typer.Argument(help="The daemon's URL, such as https://kaged.example. Default: KAGED_URL."),
]
Invitation = Annotated[
    str | None, typer.Option("--invitation", help="The code of an invitation, or its link.")
]


@command(app, "login", view="Signed in to {found[url]} as {found[person]}.")
def login(output: Output, url: Url = None, invitation: Invitation = None) -> Any:
    """Sign in to a daemon behind a URL: open the page that is shown, and agree there."""
    from kaged.cli.client import DaemonClient
    from kaged.cli.device_flow import DeviceCode, sign_in_by_device
    from kaged.cli.logins import Logins
    from kaged.cli.remote import RemoteDaemon, accept_invitation

    where, clock, logins = _url(url), SystemClock(), Logins(locations())

    def show(code: DeviceCode) -> None:
        output.note(f"Open {code.url} and compare the code {code.user_code}.")

    if invitation is None:
        made = sign_in_by_device(where, show, clock)
    else:
        made = accept_invitation(where, invitation)
    with logins.locked():
        logins.put(where, made)
    with DaemonClient(locations().socket, remote=RemoteDaemon(where, logins, clock)) as client:
        try:
            who = client.get("/auth/whoami")
        except Exception:
            # The provider knows them and the daemon does not let them in: nothing to keep.
            with logins.locked():
                logins.put(where, None)
            raise
    return {"url": where, "person": who["operator_id"], "operator": who["operator"]}


@command(logouts, "logout", view="Signed out of {found[url]}.")
def logout(url: Url = None) -> Any:
    """Sign out of a daemon behind a URL: forget its tokens here and at the provider."""
    from kaged.cli.logins import Logins
    from kaged.cli.remote import ask_json

    where, logins = _url(url), Logins(locations())
    with logins.locked():
        known = logins.get(where)
        if known is None:
            raise KagedError(
                f"You are not signed in to {where}.",
                code="not_signed_in",
                fix=f"Run `kaged login {where}`.",
            )
        logins.put(where, None)
    revoked = False
    with contextlib.suppress(KagedError):  # a daemon that does not answer lets it count to its end
        bearer = {"Authorization": f"Bearer {known.access_token}"}
        ask_json("POST", f"{where}/api/v1/auth/logout", headers=bearer)
    token = known.refresh_token or known.access_token
    if known.revocation_endpoint is not None:
        try:
            form = {"token": token, "client_id": known.client_id}
            revoked = ask_json("POST", known.revocation_endpoint, form)[0] == 200
        except KagedError:
            revoked = False  # it is forgotten here whatever the provider does
    return {"url": where, "revoked": revoked}


def _url(given: str | None) -> str:
    from kaged.cli.remote import parse_daemon_url

    text = given or os.environ.get(URL_VARIABLE)
    if not text:
        raise KagedError(
            "No daemon is named.",
            code="url_invalid",
            fix=f"Name one: `kaged login https://host`, or set {URL_VARIABLE}.",
        )
    return parse_daemon_url(text)
