"""People sign in with browsers at a real provider, and are themselves: no more and nobody else."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from whole.harness.daemon import PATIENCE_S, Daemon, wait_for
from whole.harness.model import ModelServer, say
from whole.harness.openid import Browser, OpenIdServer, codes
from whole.harness.project import Project
from whole.harness.talk import fresh


def test_a_person_signs_in_and_is_that_person_with_roles_and_teams(
    daemon: Daemon, browser: Callable[[], Browser]
) -> None:
    ann = browser()
    assert ann.refused("GET", "/api/v1/auth/whoami") == (401, "unauthenticated")
    page = ann.sign_in("ann", "?return_to=/api/v1/auth/whoami")
    assert page.status_code == 200
    assert 'url=/api/v1/auth/whoami"' in page.text
    assert ann.get("/auth/whoami") == {
        "operator_id": "ann",
        "via": "sign_in",
        "operator": False,
        "roles": ["cook"],
        "teams": ["house"],
        "leads": [],
    }
    said = daemon.audit("access.signed_in")[-1]["data"]
    assert (said["caller"], said["operator"]) == ("ann", False)


def test_the_cookie_is_for_this_browser_only(browser: Callable[[], Browser]) -> None:
    ann = browser()
    flow = ann.ask("GET", "/api/v1/auth/login").headers["set-cookie"].lower()
    assert {"httponly", "samesite=lax"} <= set(flow.split("; "))
    page = ann.sign_in("ann")
    set_session = [one for one in page.headers.get_list("set-cookie") if "kaged_session=" in one]
    assert len(set_session) == 1
    attributes = set_session[0].lower()
    assert {"httponly", "samesite=strict", "max-age=43200"} <= set(attributes.split("; "))
    assert "domain" not in attributes


def test_two_people_see_only_their_own_sessions(
    project: Project, person: Callable[[str], Browser]
) -> None:
    ann, bob, olga = person("ann"), person("bob"), person("olga")
    sessions = f"/projects/{project.id}/sessions"
    mine = ann.post(sessions, {"title": "Ann's soup"})["id"]
    theirs = bob.post(sessions, {"title": "Bob's bread"})["id"]
    assert [one["id"] for one in ann.get(sessions)["items"]] == [mine]
    assert [one["id"] for one in bob.get(sessions)["items"]] == [theirs]
    assert bob.refused("GET", f"/api/v1{sessions}/{mine}")[0] == 404
    assert ann.refused("DELETE", f"/api/v1{sessions}/{theirs}")[0] == 404
    assert {mine, theirs} <= {one["id"] for one in olga.get(sessions)["items"]}
    # The second browser of the same person shows the same.
    assert [one["id"] for one in person("ann").get(sessions)["items"]] == [mine]


def test_what_is_the_operators_is_closed_to_people_and_open_to_whom_the_file_names(
    person: Callable[[str], Browser],
) -> None:
    ann, olga = person("ann"), person("olga")
    for path in ("/audit", "/plugins", "/status", "/doctor"):
        assert ann.refused("GET", f"/api/v1{path}") == (403, "operator_only")
        olga.get(path)
    assert olga.get("/auth/whoami")["operator"] is True
    assert olga.get("/auth/whoami")["operator_id"] == "olga"


def test_whom_the_operator_does_not_name_stays_out(
    daemon: Daemon, browser: Callable[[], Browser]
) -> None:
    eve = browser()
    got = eve.sign_in("eve")
    assert (got.status_code, codes([got])) == (403, ["sign_in_not_allowed"])
    assert eve.refused("GET", "/api/v1/auth/whoami") == (401, "unauthenticated")
    # Whoever is called as the operator is still not the operator, and gets none of their accounts.
    named = browser().sign_in("operator")
    assert (named.status_code, codes([named])) == (403, ["sign_in_not_allowed"])
    assert "eve" not in {row["data"]["caller"] for row in daemon.audit("access.signed_in")}


def test_signing_out_ends_this_browser_and_no_other(
    daemon: Daemon, provider: OpenIdServer, person: Callable[[str], Browser]
) -> None:
    first, second = person("ann"), person("ann")
    stolen = dict(first.daemon.cookies)
    got = first.ask("POST", "/api/v1/auth/logout")
    assert got.status_code == 303
    assert got.headers["location"].startswith(f"{provider.url}/session/end?client_id=")
    again = httpx.get(f"{first.url}/api/v1/auth/whoami", cookies=stolen, timeout=PATIENCE_S)
    assert codes([again]) == ["unauthenticated"]
    assert second.get("/auth/whoami")["operator_id"] == "ann"
    assert second.ask("DELETE", "/api/v1/auth/session").status_code == 204
    assert second.refused("GET", "/api/v1/auth/whoami") == (401, "unauthenticated")
    rows = daemon.audit("access.signed_out")
    assert [row["data"]["reason"] for row in rows[-2:]] == ["asked", "asked"]


def test_a_session_outlives_the_daemon_and_ends_with_a_new_token(
    daemon: Daemon, person: Callable[[str], Browser]
) -> None:
    ann = person("ann")
    cookies, host = dict(ann.daemon.cookies), ann.url.partition("//")[2]
    daemon.restart()

    def ask(named: str) -> httpx.Response:
        where = f"{daemon.url}/api/v1/auth/whoami"
        return httpx.get(where, cookies=cookies, headers={"Host": named}, timeout=PATIENCE_S)

    assert ask(host).json()["operator_id"] == "ann"
    # Programs at other ports of this machine get the browser's cookie too, and cannot use it.
    assert codes([ask("127.0.0.1:1"), ask("localhost")]) == ["unauthenticated"] * 2
    daemon.cli("daemon", "token", "--rotate")
    assert codes([ask(host)]) == ["unauthenticated"]
    assert daemon.audit("access.signed_out")[-1]["data"]["reason"] == "token_rotated"


def test_the_provider_ends_the_sessions_of_one_person_everywhere(
    daemon: Daemon, provider: OpenIdServer, person: Callable[[str], Browser]
) -> None:
    provider.tell(daemon)
    ann, elsewhere, bob = person("ann"), person("ann"), person("bob")
    ann.sign_out_everywhere()
    # The provider names the session that ended there: this browser's, not the other's.
    assert ann.refused("GET", "/api/v1/auth/whoami") == (401, "unauthenticated")
    assert elsewhere.get("/auth/whoami")["operator_id"] == "ann"
    assert bob.get("/auth/whoami")["operator_id"] == "bob"
    said = daemon.audit("access.signed_out")[-1]["data"]
    assert (said["reason"], said["sessions"]) == ("provider", 1)


def _read_on(stream: ClientConnection) -> None:
    while True:
        stream.recv(PATIENCE_S)


def test_a_stream_ends_with_the_session_that_opened_it(
    daemon: Daemon, person: Callable[[str], Browser]
) -> None:
    ann, bob = person("ann"), person("bob")

    def listen(who: Browser) -> ClientConnection:
        cookies = "; ".join(f"{name}={value}" for name, value in who.daemon.cookies.items())
        headers = {"Cookie": cookies, "Origin": who.url}
        where = who.url.replace("http", "ws", 1) + "/api/v1/events"
        return connect(where, additional_headers=headers, proxy=None)

    with listen(ann) as hers, listen(bob) as his:
        assert json.loads(hers.recv(PATIENCE_S))["type"] == "hello"
        assert json.loads(his.recv(PATIENCE_S))["type"] == "hello"
        assert ann.ask("POST", "/api/v1/auth/logout").status_code == 303
        with pytest.raises(ConnectionClosed) as closed:
            _read_on(hers)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
        assert his.ping().wait(PATIENCE_S)


def test_whoever_does_not_agree_is_not_signed_in(browser: Callable[[], Browser]) -> None:
    bob = browser()
    got = bob.come_back(bob.follow(bob.begin(), "nobody", agrees=False))
    assert (got.status_code, codes([got])) == (400, ["sign_in_refused"])
    assert bob.refused("GET", "/api/v1/auth/whoami") == (401, "unauthenticated")


def test_a_session_of_a_person_runs_an_agent_for_them(
    project: Project, person: Callable[[str], Browser], model: ModelServer
) -> None:
    ann, word = person("ann"), fresh("soup")
    model.play(word, say(f"{word} is ready."))
    place = f"/projects/{project.id}/sessions"
    place += f"/{ann.post(place, {'title': 'Soup'})['id']}"
    ann.post(f"{place}/message", {"text": f"{word} please"})
    wait_for(lambda: f"{word} is ready." in str(ann.get(f"{place}/entries")), "the answer")
    assert person("bob").refused("GET", f"/api/v1{place}/entries") == (404, "session_not_found")
