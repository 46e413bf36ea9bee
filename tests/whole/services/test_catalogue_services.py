"""Services of the catalogue, by name, against servers that ask for what the real ones ask for."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from whole.harness.people import Guest
from whole.harness.services import Bridge, Desk, provider_toml, somebody

SECRET = "k3y-0815-of-a-person"
BASIC = base64.b64encode(f"ann@example.org:{SECRET}".encode()).decode()
CHECKS: dict[str, Callable[[Any, dict[str, list[str]]], bool]] = {
    "github": lambda headers, _: (
        headers.get("authorization") == f"Bearer {SECRET}"
        and headers.get("x-github-api-version") == "2022-11-28"
    ),
    "gitlab": lambda headers, _: headers.get("private-token") == SECRET,
    "jira": lambda headers, _: headers.get("authorization") == f"Basic {BASIC}",
    "openweather": lambda _, query: query.get("appid") == [SECRET],
    "pagerduty": lambda headers, _: (
        headers.get("authorization") == f"Token token={SECRET}"
        and headers.get("accept") == "application/vnd.pagerduty+json;version=2"
    ),
    "own": lambda headers, _: headers.get("x-own-key") == f"Key {SECRET}",
}
FIRST = {
    "github": ("list_issues", {"owner": "a", "repo": "b"}, "/repos/a/b/issues"),
    "gitlab": ("list_issues", {"id": "7"}, "/projects/7/issues"),
    "jira": ("search", {"jql": "project = X"}, "/rest/api/3/search/jql"),
    "openweather": ("current", {"q": "Oslo"}, "/weather"),
    "pagerduty": ("list_incidents", {}, "/incidents"),
    "own": ("me", {}, "/me"),
}
OWN = """\
description = "A service of one's own"
[operations.me]
description = "Say hello."
path = "/me"
"""


class Handler(BaseHTTPRequestHandler):
    """Each service below its own path; whoever shows the wrong thing, or more, is refused."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        return

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        name, _, path = url.path.lstrip("/").partition("/")
        query = parse_qs(url.query)
        good = CHECKS[name](self.headers, query)
        asked = {key: values for key, values in query.items() if key != "appid"}
        said = {"path": f"/{path}", "query": asked} if good else {"message": f"not {self.path}"}
        data = json.dumps(said).encode()
        self.send_response(200 if good else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture(scope="module")
def desk(desks: Callable[..., Desk], module_path: Path) -> Iterator[Desk]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    more = ""
    for name in CHECKS:
        settings: dict[str, Any] = {"service": name, "base_url": f"{url}/{name}"}
        if name == "own":
            settings |= {
                "description": "own.toml",
                "auth": "header",
                "auth_header": "X-Own-Key",
                "auth_prefix": "Key ",
                "check_path": "/me",
            }
            del settings["service"]
        more += provider_toml(name, type="rest", settings=settings)
    made = desks(Bridge(module_path, "post"), more=more)
    made.daemon.write("own.toml", OWN)
    yield made.open()
    server.shutdown()
    server.server_close()
    thread.join(timeout=30)


def link(guest: Guest, name: str, word: str) -> Any:
    flow = guest.post("/services/links", {"capability": f"{name}.api", "account_hint": "work"})
    fields = {"email": "ann@example.org", "username": "", "password": word}
    path = f"/services/links/{flow['flow_id']}/complete"
    return guest.ask("POST", path, {"fields": fields})


@pytest.mark.parametrize("name", CHECKS)
def test_a_service_is_linked_and_used_as_it_asks_for_it(desk: Desk, name: str) -> None:
    person = somebody()
    guest = Guest(desk.daemon, person)
    try:
        refused = link(guest, name, "another-word-17")
        assert (refused.status_code, refused.json()["error"]["code"]) == (
            409,
            "capability_auth_required",
        )
        assert "another-word-17" not in refused.text
        assert link(guest, name, SECRET).json()["account_ref"] == "acct_work"
        checked = guest.post("/services/accounts/check")["accounts"]
        assert [(one["status"], one["checked"]) for one in checked] == [("active", True)]
    finally:
        guest.close()
    operation, given, path = FIRST[name]
    done = desk.invoke(person, f"{name}.api", operation, input=given)
    assert done["data"]["path"] == path
    query = {key: [value] for key, value in given.items() if key in {"jql", "q"}}
    assert done["data"]["query"] == query
    assert SECRET not in str(done)


def test_a_name_that_is_not_in_the_catalogue_is_said_by_doctor(
    own_desk: Callable[..., Desk], tmp_path: Path
) -> None:
    more = provider_toml("x", type="rest", settings={"service": "nothing-such"})
    desk = own_desk(Bridge(tmp_path, "post"), more=more).open()
    [row] = [one for one in desk.daemon.get("/doctor")["rows"] if one["id"] == "services.x"]
    assert row["status"] == "fail"
    assert "github" in row["cause"]
