"""`same_address`: whoever began a link gets no account of another person's address by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon
from whole.harness.people import FRONT_END, Guest, Person
from whole.harness.services import Bridge, capability, operation

CLAIMS = '[auth.front_end]\nclaims = { email = "X-Email" }\n'
Come = Callable[..., Guest]


def _plan(flow_type: str) -> dict[str, Any]:
    """Return a bridge whose accounts are of the address that the account's hint begins."""
    done = {"status": "complete", "account_ref": "acct_device"}
    device = {"flow_type": "device_code", "user_code": "ABCD-EFGH", "poll_interval_seconds": 1}
    return {
        "definitions": [capability(f"{flow_type}.box", operation("look"))],
        "begin": device if flow_type == "device" else {},
        "poll": {**done, "metadata": {"account_email": "Ann@x.example"}},
    }


@pytest.fixture(scope="module")
def daemon(module_path: Path) -> Iterator[Daemon]:
    """Yield a daemon with two providers that keep to the address, one with codes on a device."""
    bridges = [
        Bridge(module_path, one, _plan(one), same_address=True, allow_stateless_code=True)
        for one in ("code", "device")
    ]
    config = "".join((FRONT_END, CLAIMS, *(one.toml() for one in bridges)))
    made = Daemon(module_path / "h", config=config)
    made.start()
    yield made
    made.close()


@pytest.fixture
def come(daemon: Daemon) -> Iterator[Come]:
    made: list[Guest] = []

    def let_in(user: str, **said: str) -> Guest:
        made.append(Guest(daemon, Person(user), **said))
        return made[-1]

    yield let_in
    for one in made:
        one.close()


def _begin(guest: Guest, capability_id: str, hint: str | None = None) -> str:
    body = {"capability": capability_id, "account_hint": hint}
    return str(guest.post("/services/links", body)["flow_id"])


def _emails(daemon: Daemon, user: str) -> list[str]:
    found = daemon.get(f"/services/accounts?user_id={user}")["accounts"]
    return [str(one["account_email"]) for one in found]


DENIED = "capability_auth_flow_denied"


@whole("SC-AMB-42")
def test_who_agreed_on_another_device_gives_nobody_else_their_account(
    daemon: Daemon, come: Come
) -> None:
    # Bob began, and sent the code to Ann, who typed it in and agreed.
    bob = come("bob", X_Email="bob@x.example")
    flow = _begin(bob, "device.box")
    assert bob.refused("POST", f"/services/links/{flow}/poll")[1] == DENIED
    assert _emails(daemon, "bob") == []
    # The flow is over, and the same question again links nothing either.
    assert bob.refused("POST", f"/services/links/{flow}/poll")[1] == "capability_auth_flow_invalid"
    rows = [one["data"] for one in daemon.audit("capability_auth_poll")]
    assert (rows[0]["user_id"], rows[0]["error.code"]) == ("bob", DENIED)
    ann = come("ann", X_Email="ann@X.example")
    done = ann.post(f"/services/links/{_begin(ann, 'device.box')}/poll")
    assert (done["status"], done["account_email"]) == ("linked", "Ann@x.example")


@pytest.mark.parametrize(
    ("user", "said", "hint", "linked"),
    [
        ("cy@x.example", {}, "cy", True),  # an id that is an address
        ("dee", {"X_Email": "dee@x.example"}, "dee", True),
        ("dee@y.example", {}, "dee", False),
        ("eve", {"X_Email": "eve@x.example"}, "ann", False),
        ("fay", {}, "fay", False),  # of whom no address is known
        ("@gil:x.example", {}, "gil", False),  # an id of Matrix is none
    ],
)
def test_an_account_is_kept_when_its_address_is_the_persons(
    daemon: Daemon, come: Come, user: str, said: dict[str, str], hint: str, linked: bool
) -> None:
    guest = come(user, **said)
    flow = _begin(guest, "code.box", hint)
    done = guest.ask("POST", f"/services/links/{flow}/complete", {"code": "agreed"})
    assert done.is_success is linked, done.text
    assert _emails(daemon, user.replace("@", "%40")) == ([f"{hint}@x.example"] if linked else [])
    if not linked:
        assert done.json()["error"]["code"] == DENIED


def test_the_operator_links_what_they_like_and_is_nobody_a_front_end_names(
    daemon: Daemon, come: Come
) -> None:
    flow = daemon.post("/services/links", {"capability": "code.box", "account_hint": "shop"})
    path = f"/services/links/{flow['flow_id']}/complete"
    assert daemon.post(path, {"code": "agreed"})["account_email"] == "shop@x.example"
    # A name in a chat that happens to be the operator's opens none of their accounts.
    namesake = come("operator")
    for asked in ("/services/accounts", "/auth/whoami", "/inbox"):
        assert namesake.refused("GET", asked) == (403, "access_denied")
