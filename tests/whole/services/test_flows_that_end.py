"""Flows that cannot be completed any more: a new one begins, and one can be given up."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from requirements.marker import whole
from whole.harness.daemon import exactly
from whole.harness.services import (
    Bridge,
    Desk,
    Person,
    code_of,
    invoking,
    provider_toml,
    result_of,
    somebody,
    step,
)

API = "keyed.api"
INVALID = "capability_auth_flow_invalid"
RIGHT = "the-right-token-0815"
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
        good = self.headers.get("authorization") == f"Bearer {RIGHT}"
        data = json.dumps({"hello": "you"}).encode()
        self.send_response(200 if good else 401)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture(scope="module")
def api() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(timeout=30)


@pytest.fixture(scope="module")
def desk(desks: Callable[..., Desk], module_path: Path, api: str) -> Desk:
    more = provider_toml(
        "keyed",
        type="rest",
        settings={
            "description": "api.toml",
            "base_url": api,
            "auth": "token",
            "check_path": "/me",
        },
    )
    made = desks(Bridge(module_path, "post"), more=more)
    made.daemon.write("api.toml", DESCRIPTION)
    return made.open()


def begin(desk: Desk, person: Person, id_: str = API, **more: Any) -> dict[str, Any]:
    return desk.ask(person, "auth.begin", capability=id_, **more)


def typed(flow: dict[str, Any], word: str) -> httpx.Response:
    """Type a token into the page of a flow."""
    form = {"email": "ann", "password": word}
    return httpx.post(flow["auth_url"], data=form, trust_env=False, timeout=60)


def page(flow: dict[str, Any]) -> int:
    return httpx.get(flow["auth_url"], trust_env=False, timeout=60).status_code


def finish(desk: Desk, person: Person, flow: dict[str, Any], word: str = RIGHT) -> None:
    """Link the account with a page, and use it."""
    code = re.search(r"<code>([^<]+)</code>", typed(flow, word).text)
    assert code is not None
    done = desk.asks(
        person,
        step("auth.complete", flow_id=flow["flow_id"], code=code[1]),
        invoking(API, "me"),
    )
    assert result_of(done[0])["ok"] is True
    assert result_of(done[1])["output"]["data"] == {"hello": "you"}


@whole("SC-AMB-34")
def test_after_five_wrong_passwords_a_new_flow_begins(desk: Desk) -> None:
    ann = somebody()
    dead: list[str] = []
    for _ in range(2):  # the second one ends in the same way
        flow = begin(desk, ann)
        assert begin(desk, ann) == flow  # pending: the same one again
        assert flow["flow_id"] not in dead
        assert [typed(flow, f"wrong-{n}").status_code for n in range(5)] == [401] * 4 + [403]
        assert page(flow) == 404
        dead.append(flow["flow_id"])
    flow = begin(desk, ann)
    assert flow["flow_id"] not in dead
    shown = [one["flow_id"] for one in desk.ask(ann, "auth.list")["flows"]]
    assert shown == [flow["flow_id"]]
    finish(desk, ann, flow)


@whole("SC-AMB-40")
@pytest.mark.parametrize("kill", [False, True])
def test_a_page_survives_a_restart_at_its_address(desk: Desk, kill: bool) -> None:
    ann, bob = somebody(), somebody()
    flow, other = begin(desk, ann), begin(desk, bob, account_hint="work")
    for _ in range(2):  # and the one after it
        desk.reopen(kill=kill)
        assert begin(desk, ann) == flow
        assert page(flow) == 200
        assert page(other) == 200
    # What was typed before a restart is typed again.
    assert "<code>" in typed(flow, RIGHT).text
    desk.reopen(kill=kill)
    desk.ask(ann, "list")  # the providers are registered by then
    finish(desk, ann, flow)
    assert begin(desk, bob, account_hint="work") == other
    code = re.search(r"<code>([^<]+)</code>", typed(other, RIGHT).text)
    assert code is not None
    done = desk.ask(bob, "auth.complete", flow_id=other["flow_id"], code=code[1])
    assert done["account_ref"] == "acct_work"


@whole("SC-AMB-34", "SC-AUTH-05")
@pytest.mark.parametrize("id_", [API, "post.box"])
def test_a_flow_that_is_given_up_is_gone_and_a_new_one_begins(desk: Desk, id_: str) -> None:
    ann, bob = somebody(), somebody()
    flow = begin(desk, ann, id_)
    stays = begin(desk, ann, id_, account_hint="other")
    foreign = desk.refusal(bob, "auth.cancel", flow_id=flow["flow_id"])
    assert foreign["data"]["code"] == INVALID
    code, out, _ = desk.ash(ann, "auth", "cancel", "--flow-id", flow["flow_id"])
    assert (code, out) == (0, f"Auth flow canceled (flow_id={flow['flow_id']})\n")
    again = desk.asks(
        ann,
        step("auth.cancel", flow_id=flow["flow_id"]),
        step("auth.complete", flow_id=flow["flow_id"], code="agreed"),
        step("auth.list"),
    )
    assert [code_of(one) for one in again[:2]] == [INVALID] * 2
    assert [one["flow_id"] for one in result_of(again[2])["flows"]] == [stays["flow_id"]]
    rows = exactly(2, lambda: desk.audit(ann, "capability_auth_cancel"))
    assert [one["outcome"] for one in rows] == ["ok", "denied"]
    assert rows[0]["capability.id"] == id_
    fresh = begin(desk, ann, id_)
    assert fresh["flow_id"] != flow["flow_id"]
    if id_ == API:
        assert (page(flow), page(stays)) == (404, 200)
        finish(desk, ann, fresh)
