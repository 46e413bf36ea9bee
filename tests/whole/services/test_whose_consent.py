"""Who consents is who began: a link that is sent on gives nobody somebody else's account."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from whole.harness.account_servers import Api
from whole.harness.oauth import CLIENT_SECRET, OAuthServer
from whole.harness.services import Bridge, Desk, Person, provider_toml, result_of, somebody, step

PAGED, WEB = "keyed.api", "web.api"
TOKENS = {"token-of-ann": "ann", "token-of-bob": "bob"}
INVALID = "capability_auth_flow_invalid"
DESCRIPTION = """\
description = "A service"
[operations.me]
description = "Say hello."
path = "/me"
"""


class Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        return

    def do_GET(self) -> None:
        who = TOKENS.get(self.headers.get("authorization", "").removeprefix("Bearer "))
        data = json.dumps({"you": who}).encode()
        self.send_response(200 if who else 401)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(timeout=30)


@pytest.fixture(scope="module")
def oauth(module_path: Path) -> Iterator[OAuthServer]:
    with contextlib.closing(OAuthServer(module_path)) as made:
        yield made


@pytest.fixture(scope="module")
def desk(
    desks: Callable[..., Desk], module_path: Path, service: str, oauth: OAuthServer
) -> Iterator[Desk]:
    keyed = {
        "description": "api.toml",
        "base_url": service,
        "auth": "token",
        "check_path": "/me",
    }
    secret = {"OAUTH_CLIENT_SECRET": CLIENT_SECRET}
    with contextlib.closing(Api(oauth)) as api:
        web = {"description": "api.toml", "base_url": api.url, "oauth": oauth.settings()}
        more = provider_toml("keyed", type="rest", settings=keyed)
        more += provider_toml("web", type="rest", env=secret, settings=web)
        made = desks(Bridge(module_path, "post"), more=more)
        made.daemon.write("api.toml", DESCRIPTION)
        yield made.open()


def _begin(desk: Desk, person: Person, id_: str) -> dict[str, Any]:
    return desk.ask(person, "auth.begin", capability=id_)


def _typed(flow: dict[str, Any], token: str) -> str:
    """Enter a token on the page, as whoever opens the link; returns the code that it shows."""
    form = {"email": "x@example.org", "password": token}
    got = httpx.post(flow["auth_url"], data=form, trust_env=False, timeout=60)
    found = re.search(r"<code>([^<]+)</code>", got.text)
    assert found is not None, got.text
    return found[1]


def test_the_page_says_for_whom_and_as_what_also_after_a_restart(desk: Desk) -> None:
    ann, bob = somebody(), somebody()
    flows = {person.user: _begin(desk, person, PAGED) for person in (ann, bob)}
    for _ in range(2):
        for user, flow in flows.items():
            said = httpx.get(flow["auth_url"], trust_env=False, timeout=60).text
            assert f"as <b>{PAGED}</b> for <b>{user}</b>" in said, said
            others = {one for one in flows if one != user}
            assert not any(one in said for one in others)
        desk.reopen(kill=True)
        assert _begin(desk, ann, PAGED) == flows[ann.user]
        assert _begin(desk, bob, PAGED) == flows[bob.user]


def test_a_link_that_is_sent_on_gives_the_sender_nothing_and_the_receiver_nothing(
    desk: Desk,
) -> None:
    """Ann begins and sends Bob the link; Bob enters what is his, and holds the code."""
    ann, bob = somebody(), somebody()
    flow = _begin(desk, ann, PAGED)
    code = _typed(flow, "token-of-bob")
    # Bob gives the code to his own assistant, whatever flow he names: it links nothing.
    his = _begin(desk, bob, PAGED)
    for number in (flow["flow_id"], his["flow_id"]):
        refusal = desk.refusal(bob, "auth.complete", flow_id=number, code=code)
        assert refusal["data"]["code"] == INVALID
    assert desk.refusal(bob, "auth.complete_callback", code=code)["data"]["code"] == INVALID
    # Ann has not seen it, and guesses until the flow is over.
    for n in range(5):
        refusal = desk.refusal(ann, "auth.complete", flow_id=flow["flow_id"], code=f"guess-{n}")
        assert refusal["data"]["code"] == INVALID
    assert (
        desk.refusal(ann, "auth.complete", flow_id=flow["flow_id"], code=code)["data"]["code"]
        == INVALID
    )
    assert desk.accounts(ann.user) == desk.accounts(bob.user) == []


def test_what_somebody_else_began_is_not_finished_for_oneself(
    desk: Desk, oauth: OAuthServer
) -> None:
    """The other way round, and at an authorization server: the address is no good elsewhere."""
    ann, bob = somebody(), somebody()
    flow, hers = _begin(desk, bob, WEB), _begin(desk, ann, WEB)
    back = oauth.visit(flow["auth_url"], "bob")
    for number in (flow["flow_id"], hers["flow_id"]):
        answer = desk.refusal(ann, "auth.complete", flow_id=number, callback_url=back)
        assert answer["data"]["code"] in {INVALID, "capability_auth_state_mismatch"}
    refusal = desk.refusal(ann, "auth.complete_callback", callback_url=back)
    assert refusal["data"]["code"] in {INVALID, "capability_auth_state_mismatch"}
    assert desk.accounts(ann.user) == []
    # Whoever began has it.
    done = desk.asks(bob, step("auth.complete", flow_id=flow["flow_id"], callback_url=back))
    assert result_of(done[0])["ok"] is True
    assert len(desk.accounts(bob.user)) == 1
