"""Linking an account at a terminal: `kaged account link`, and the same over HTTP."""

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
from whole.harness.daemon import exactly
from whole.harness.oauth import CLIENT_SECRET, OAuthServer
from whole.harness.people import Guest
from whole.harness.prompts import CTRL_C, at_prompts
from whole.harness.services import OPERATOR, Bridge, Desk, capability, provider_toml, somebody

API = "keyed.api"
RIGHT = "the-right-token-0815"
DESCRIPTION = """\
description = "A service"
[operations.me]
description = "Say hello."
path = "/me"
"""
INVALID = "capability_auth_flow_invalid"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        return

    def do_GET(self) -> None:
        good = self.headers.get("authorization") == f"Bearer {RIGHT}"
        data = json.dumps({"hello": "you"}).encode()
        self.send_response(200 if good else 401)
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
    more = "[capabilities]\nrequire_skill = true\n"  # a person needs no skill
    more += provider_toml("keyed", type="rest", settings=keyed)
    secret = {"OAUTH_CLIENT_SECRET": CLIENT_SECRET}
    with contextlib.closing(Api(oauth)) as api:
        for name, extra in (("web", {}), ("phone", {"device_url": f"{oauth.url}/device/auth"})):
            settings = {
                "description": "api.toml",
                "base_url": api.url,
                "oauth": oauth.settings(**extra),
            }
            more += provider_toml(name, type="rest", env=secret, settings=settings)
        made = desks(Bridge(module_path, "post"), more=more)
        made.daemon.write("api.toml", DESCRIPTION)
        yield made.open()


def accounts(desk: Desk, capability: str = API) -> dict[str, str | None]:
    listed = desk.daemon.cli("account", "list", "--json").json
    return {
        one["account_ref"]: one["account_email"]
        for one in listed
        if one["capability"] == capability
    }


def page_of(screen: str) -> str:
    found = re.search(r"Page: (\S+)", screen)
    assert found is not None, screen
    return found[1]


def test_a_password_is_typed_without_an_echo_and_again_when_it_was_wrong(desk: Desk) -> None:
    answers = []
    for word in ("not-the-right-one", RIGHT):
        answers += [
            ("Address: ", "ann@example.org\n"),
            ("User name, if it is another: ", "\n"),
            ("Password: ", f"{word}\n"),
        ]
    code, screen = at_prompts(
        desk.daemon, "account", "link", "keyed", "--account", "home", answers=answers
    )
    assert code == 0, screen
    assert "Linked acct_home (ann@example.org) with keyed.api." in screen
    assert "does not accept" in screen
    assert RIGHT not in screen
    assert "not-the-right-one" not in screen
    assert accounts(desk)["acct_home"] == "ann@example.org"
    assert httpx.get(page_of(screen), trust_env=False, timeout=60).status_code == 404
    assert RIGHT not in desk.daemon.log()


def test_ctrl_c_gives_the_flow_up(desk: Desk) -> None:
    before = len(desk.daemon.audit("capability_auth_cancel"))
    pages: list[str] = []

    def look(screen: str) -> None:
        pages.append(page_of(screen))
        assert httpx.get(pages[0], trust_env=False, timeout=60).status_code == 200

    answers = [("Ctrl-C gives up.", look), ("Password: ", CTRL_C)]
    answers[1:1] = [("Address: ", "x\n"), ("another: ", "\n")]
    words = ("account", "link", API, "--account", "never")
    code, screen = at_prompts(desk.daemon, *words, answers=answers)
    assert (code, "Canceled" in screen) == (130, True), screen
    assert httpx.get(pages[0], trust_env=False, timeout=60).status_code == 404
    exactly(before + 1, lambda: desk.daemon.audit("capability_auth_cancel"))
    assert "acct_never" not in accounts(desk)


def test_lines_of_a_pipe_are_answers_and_what_is_wrong_links_nothing(desk: Desk) -> None:
    words = ("account", "link", "keyed", "--account", "piped", "--json")
    wrong = desk.daemon.cli(*words, stdin="bob@example.org\n\nwrong-word-1\n", code=None)
    assert wrong.code != 0
    assert "capability_auth_required" in wrong.err
    assert "wrong-word-1" not in wrong.err
    assert "acct_piped" not in accounts(desk)
    done = desk.daemon.cli(*words, stdin=f"bob@example.org\n\n{RIGHT}\n").json
    assert (done["account_ref"], done["account_email"]) == ("acct_piped", "bob@example.org")
    ended = desk.daemon.cli("account", "link", "keyed", stdin="", code=130)
    assert "nothing was linked" in ended.err
    unknown = desk.daemon.cli("account", "link", "nobody", stdin="", code=None)
    assert "no such provider" in unknown.err


def test_a_code_of_the_page_or_of_a_browser_completes_it_too(
    desk: Desk, oauth: OAuthServer
) -> None:
    codes: list[str] = []

    def fill_in(screen: str) -> None:
        form = {"email": "eve@example.org", "password": RIGHT}
        shown = httpx.post(page_of(screen), data=form, trust_env=False, timeout=60)
        codes.extend(re.findall(r"<code>([^<]+)</code>", shown.text))

    # The page is filled in while the command waits; then the code that it shows is typed.
    words = ("account", "link", "keyed", "--account", "paged", "--page")
    answers = [("Ctrl-C gives up.", fill_in), ("the page shows: ", lambda _: f"{codes[0]}\n")]
    code, screen = at_prompts(desk.daemon, *words, answers=answers)
    assert code == 0, screen
    assert accounts(desk)["acct_paged"] == "eve@example.org"
    # With a browser: the address that the person was sent to.
    flow = desk.daemon.post("/services/links", {"capability": "web.api", "account_hint": "web"})
    back = oauth.visit(flow["auth_url"], "ann")
    done = desk.daemon.cli("account", "link", "web", "--account", "web", stdin=f"{back}\n")
    assert "Linked acct_web" in done.out
    assert "acct_web" in accounts(desk, "web.api")


def test_a_device_is_waited_for_with_words(desk: Desk, oauth: OAuthServer) -> None:
    def agree(screen: str) -> None:
        oauth.visit(page_of(screen), "ann")

    code, screen = at_prompts(
        desk.daemon, "account", "link", "phone", answers=[("asking again in", agree)]
    )
    assert code == 0, screen
    assert "Code to enter there: " in screen
    assert "Linked acct_" in screen
    assert accounts(desk, "phone.api")


def test_flows_belong_to_whoever_began_and_no_agent_sees_the_fields(desk: Desk) -> None:
    ann, bob = Guest(desk.daemon, somebody()), Guest(desk.daemon, somebody())
    try:
        flow = ann.post("/services/links", {"capability": API})
        path = f"/services/links/{flow['flow_id']}"
        assert [one["name"] for one in flow["fields"]] == ["email", "username", "password"]
        fields = {"email": "x", "username": "", "password": RIGHT}
        for method, where, body in (
            ("POST", f"{path}/complete", {"fields": fields}),
            ("POST", f"{path}/complete", {"code": "x"}),
            ("POST", f"{path}/poll", None),
            ("DELETE", path, None),
        ):
            assert bob.refused(method, where, body) == (404, INVALID)
        wrong = {"fields": {**fields, "more": "x"}}
        assert ann.refused("POST", f"{path}/complete", wrong)[1] == "capability_invalid_input"
        done = ann.post(f"{path}/complete", {"fields": fields})
        assert (done["status"], done["account_ref"]) == ("linked", "acct_default")
        assert ann.refused("POST", f"{path}/complete", {"fields": fields}) == (404, INVALID)
        [mine] = ann.get("/services/accounts")["accounts"]
        assert mine["account_ref"] == "acct_default"
        assert bob.get("/services/accounts")["accounts"] == []
        # In a group nobody links what is for private chats.
        group = Guest(desk.daemon, somebody().in_chat("group"))
        refused = group.refused("POST", "/services/links", {"capability": API})
        assert refused == (403, "capability_access_denied")
        group.close()
    finally:
        ann.close()
        bob.close()
    # With `require_skill` an agent gets no flow at all, whoever it acts for.
    error = desk.refusal(OPERATOR, "auth.begin", capability=API)
    assert error["data"]["code"] == "capability_access_denied"


def test_links_wait_for_providers_of_a_daemon_that_has_only_just_started(
    own_desk: Callable[..., Desk], tmp_path: Path
) -> None:
    """The provider before it in name order takes its time; each start begins anew."""
    first = Bridge(tmp_path, "first", {"definitions": [capability("first.box")], "ponder": 2})
    desk = own_desk(first, Bridge(tmp_path, "later"))
    ann, code = somebody(), {"code": "4711"}
    desk.daemon.start()
    with contextlib.closing(Guest(desk.daemon, ann)) as guest:
        flow = guest.post("/services/links", {"capability": "later.box"})["flow_id"]
        unknown = ("POST", "/services/links", {"capability": "nobody.knows"})
        assert guest.refused(*unknown)[1] == "capability_not_found"
    desk.stop(kill=True)
    desk.daemon.start()
    with contextlib.closing(Guest(desk.daemon, ann)) as guest:
        assert guest.post(f"/services/links/{flow}/complete", code)["status"] == "linked"
    [account] = desk.accounts(ann.user)
    assert account["capability"] == "later.box"
