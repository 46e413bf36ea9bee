"""A daemon that lost the key of its vault: it starts, says so, and accounts can be linked anew."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from requirements.marker import whole
from whole.harness.services import (
    Bridge,
    Desk,
    Person,
    error_of,
    invoking,
    linking,
    provider_toml,
    result_of,
    somebody,
    step,
)

API = "keyed.api"
LOCKED = "capability_vault_locked"
WORD = "a-token-that-works-0815"
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
        good = self.headers.get("authorization") == f"Bearer {WORD}"
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


@pytest.fixture
def desk(own_desk: Callable[..., Desk], tmp_path: Path, api: str) -> Desk:
    settings = {
        "description": "api.toml",
        "base_url": api,
        "auth": "token",
        "check_path": "/me",
    }
    made = own_desk(
        Bridge(tmp_path, "post"), more=provider_toml("keyed", type="rest", settings=settings)
    )
    made.daemon.write("api.toml", DESCRIPTION)
    return made.open()


def link(desk: Desk, person: Person, hint: str = "work") -> None:
    flow = desk.ask(person, "auth.begin", capability=API, account_hint=hint)
    form = {"email": "ann", "password": WORD}
    page = httpx.post(flow["auth_url"], data=form, trust_env=False, timeout=60)
    code = re.search(r"<code>([^<]+)</code>", page.text)
    assert code is not None
    assert desk.ask(person, "auth.complete", flow_id=flow["flow_id"], code=code[1])["ok"] is True


def says(desk: Desk, person: Person) -> str:
    """Return what a call with somebody's account comes to."""
    [answer] = desk.asks(person, invoking(API, "me"))
    if "error" in answer:
        error = error_of(answer)
        assert "link the account again" in error["message"], error
        return str(error["data"]["code"])
    assert result_of(answer)["output"]["data"] == {"hello": "you"}
    return "ok"


def told(desk: Desk) -> dict[str, Any]:
    """Return how a daemon tells about its vault, in each of the places."""
    doctor = desk.daemon.cli("doctor", "--json", code=None).json
    [row] = [one for one in doctor["rows"] if one["id"] == "services.vault"]
    warnings = [one for one in desk.daemon.get("/status")["warnings"] if "key of the vault" in one]
    return {"doctor": row["status"], "status": len(warnings), "fix": bool(row["fix"])}


def statuses(desk: Desk, person: Person) -> dict[str, str]:
    listed = desk.daemon.cli("account", "list", "--user", person.user, "--json").json
    return {one["account_ref"]: one["status"] for one in listed}


@whole("SC-AMB-41")
def test_without_its_key_a_daemon_serves_everything_else_and_the_key_brings_all_back(
    desk: Desk,
) -> None:
    ann, bob, eve = somebody(), somebody(), somebody()
    for person in (ann, bob, eve):
        link(desk, person)
    desk.asks(ann, *linking("post.box"))
    key = desk.daemon.home / "vault.key"
    kept = key.read_bytes()
    key.unlink()
    for _ in range(2):  # the second start says the same
        desk.reopen()
        assert [says(desk, one) for one in (ann, bob)] == [LOCKED, LOCKED]
        assert told(desk) == {"doctor": "fail", "status": 1, "fix": True}
        assert statuses(desk, ann) == {"acct_work": "locked", "acct_default": "active"}
        assert "vault.locked" in desk.daemon.log()
    # Everything else works: another provider's accounts, and the rest of the daemon.
    assert desk.invoke(ann, "post.box")["account"] == "acct_default"
    assert desk.daemon.get("/projects")["items"]
    refused = desk.daemon.error("POST", "/services/vault/rotate", {})
    assert (refused["status"], refused["code"]) == (503, LOCKED)
    # Bob links his account again, Eve's is taken back, Ann waits.
    link(desk, bob)
    assert [says(desk, one) for one in (ann, bob)] == [LOCKED, "ok"]
    desk.daemon.cli("account", "revoke", eve.user, API, "acct_work")
    assert statuses(desk, eve) == {}
    desk.reopen()
    assert [says(desk, one) for one in (ann, bob)] == [LOCKED, "ok"]
    # The key is back: nothing of what was linked before or meanwhile is lost.
    key.write_bytes(kept)
    key.chmod(0o600)
    for _ in range(2):
        desk.reopen()
        assert [says(desk, one) for one in (ann, bob)] == ["ok", "ok"]
        assert told(desk) == {"doctor": "ok", "status": 0, "fix": False}
        assert statuses(desk, ann) == {"acct_work": "active", "acct_default": "active"}
    code = desk.refusal(eve, "invoke", capability=API, operation="me")["data"]["code"]
    assert code == "capability_auth_required"


@whole("SC-AMB-41")
@pytest.mark.parametrize("how", ["garbage", "another", "unreadable"])
def test_a_key_that_does_not_fit_is_left_as_it_is_and_said(desk: Desk, how: str) -> None:
    ann, bob = somebody(), somebody()
    link(desk, ann)
    flow = desk.ask(bob, "auth.begin", capability=API)
    key = desk.daemon.home / "vault.key"
    kept = key.read_bytes()
    if how == "garbage":
        key.write_bytes(b"nonsense")
    elif how == "another":
        name = "0" * 16
        key.write_text(json.dumps({"version": 1, "current": name, "keys": {name: "5a" * 32}}))
    else:
        key.chmod(0)
    desk.reopen()
    assert says(desk, ann) == LOCKED
    assert told(desk) == {"doctor": "fail", "status": 1, "fix": True}
    begun = [step("auth.list"), step("auth.begin", capability=API)]
    listed, fresh = (result_of(one) for one in desk.asks(bob, *begun))
    assert listed["flows"] == []
    assert fresh["flow_id"] != flow["flow_id"]
    key.chmod(0o600)
    assert (key.read_bytes() == kept) is (how == "unreadable")
    key.write_bytes(kept)
    desk.reopen()
    assert says(desk, ann) == "ok"
    link(desk, bob)
    assert says(desk, bob) == "ok"


def test_a_replacement_key_that_others_can_read_keeps_the_daemon_from_starting(desk: Desk) -> None:
    link(desk, somebody())
    (desk.daemon.home / "vault.key").unlink()
    desk.reopen()
    desk.daemon.get("/projects")
    spare = desk.daemon.home / "vault.replacement.key"
    desk.stop()
    spare.chmod(0o644)
    assert "chmod 600" in str(desk.daemon.start(expect=False))
    spare.chmod(0o600)
    desk.open()
    assert told(desk)["doctor"] == "fail"


def test_an_account_works_again_from_a_backup_on_an_empty_machine(
    desk: Desk, tmp_path: Path
) -> None:
    ann = somebody()
    link(desk, ann)
    file = tmp_path / "copy.tar.gz"
    desk.daemon.cli("backup", str(file))
    desk.stop()
    shutil.rmtree(desk.daemon.home)
    desk.daemon.home.mkdir(mode=0o700)
    desk.daemon.cli("restore", str(file))
    desk.open()
    assert says(desk, ann) == "ok"
    assert told(desk)["doctor"] == "ok"
