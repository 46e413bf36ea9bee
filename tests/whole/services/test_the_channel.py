"""The one channel out of a cage: its frames, its numbers, its codes, and that there is no other."""

from __future__ import annotations

import base64
import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.services import (
    METHODS,
    Bridge,
    Desk,
    Person,
    capability,
    code_of,
    error_of,
    invoking,
    linking,
    operation,
    result_of,
    somebody,
    step,
)

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
PING = operation("ping", requires_auth=False)
FREE_MUTATION: dict[str, Any] = {"requires_auth": False, "mutating": True}


@pytest.fixture(scope="module")
def post(module_path: Path) -> Bridge:
    codes = ("capability_auth_flow_expired", "capability_internal_error")
    ops = [
        operation("echo"),
        PING,
        operation("send", **FREE_MUTATION),
        operation("asked", **FREE_MUTATION),
        operation("crash", **FREE_MUTATION),
        operation("gone", requires_auth=False),
        operation("leak", requires_auth=False),
        *(operation(code, requires_auth=False) for code in codes),
    ]
    plan = {
        "definitions": [
            capability("post.box", *ops),
            capability("post.private", PING, sensitive=True),
            capability("post.state", PING),
        ],
        "begin": {"expected_callback_state": "s-1"},
        "operations": {
            "crash": {"exit": 3},
            "gone": {"exit": 1},
            "leak": {"output": {"access_token": "x"}},
            **{code: {"error": {"code": code, "message": "so"}} for code in codes},
        },
    }
    return Bridge(module_path, "post", plan, confirm=["box.asked"], allow_stateless_code=True)


@pytest.fixture(scope="module")
def few(module_path: Path) -> Bridge:
    plan = {
        "definitions": [capability("few.box", PING)],
        "complete": {"error": {"code": "capability_auth_flow_denied", "message": "no"}},
    }
    return Bridge(module_path, "few", plan, quota_per_day=1)


@pytest.fixture(scope="module")
def desk(desks: Callable[..., Desk], post: Bridge, few: Bridge) -> Desk:
    return desks(post, few).open()


def raw(data: bytes) -> dict[str, Any]:
    return {"raw": base64.b64encode(data).decode()}


def request(**members: Any) -> dict[str, Any]:
    whole_one = {"jsonrpc": "2.0", "id": 1, "method": "capability.list", "params": {}, **members}
    kept = {key: value for key, value in whole_one.items() if value != "absent"}
    return raw(json.dumps(kept).encode())


def once(*answers: Any) -> str:
    """Return the code of the last of some answers; the ones before had to work."""
    for one in answers[:-1]:
        result_of(one)
    return code_of(answers[-1])


def provoked(desk: Desk) -> dict[str, str]:
    """Provoke every condition that has a code; return the codes as they came, by condition."""
    ann, group = somebody(), somebody("group")
    found: dict[str, str] = {}

    def ask(condition: str, person: Person, *steps: dict[str, Any]) -> None:
        found[condition] = once(*desk.asks(person, *steps))

    complete = {"flow_id": {"$": [0, "flow_id"]}}
    begin = step("auth.begin", capability="post.state")
    url = "https://x.example/"
    ask("invalid_input", ann, invoking("box", "ping"))
    ask("not_found", ann, invoking("post.nothing", "ping"))
    ask("access_denied", group, invoking("post.private", "ping"))
    ask("auth_required", ann, invoking("post.box"))
    several = [*linking("post.box", "a"), *linking("post.box", "b", 2)]
    ask("account_ambiguous", somebody(), *several, invoking("post.box"))
    ask("auth_flow_invalid", ann, step("auth.complete", flow_id="caf_0", code="x"))
    ask("auth_flow_expired", ann, invoking("post.box", "capability_auth_flow_expired"))
    denied = step("auth.begin", capability="few.box")
    ask("auth_flow_denied", ann, denied, step("auth.complete", **complete, code="x"))
    two = [step("auth.begin", capability="post.box", account_hint=hint) for hint in "ab"]
    ask("auth_flow_ambiguous", somebody(), *two, step("auth.complete_callback", code="x"))
    bad = {
        "auth_callback_invalid": {"callback_url": "nowhere"},
        "auth_code_missing": {"callback_url": f"{url}?state=s-1"},
        "auth_code_conflict": {"callback_url": f"{url}?code=a&state=s-1", "code": "b"},
        "auth_state_mismatch": {"callback_url": f"{url}?code=a&state=s-2"},
    }
    for condition, given in bad.items():
        ask(condition, somebody(), begin, step("auth.complete", **complete, **given))
    ask("invalid_output", ann, invoking("post.box", "leak"))
    ask("backend_unavailable", ann, invoking("post.box", "gone"))
    asked = invoking("post.box", "asked", input={"n": 1})
    ask("mutation_not_confirmed", ann, asked)
    plan = {"mutation_plan_id": "plan_of_something_else"}
    ask("mutation_plan_mismatch", ann, invoking("post.box", "asked", input={"n": 1}, **plan))
    ask("rate_limited", ann, invoking("few.box", "ping"), invoking("few.box", "ping"))
    sends = [invoking("post.box", "send", input={"n": n}, idempotency_key="k") for n in (1, 2)]
    ask("idempotency_conflict", ann, *sends)
    crash = invoking("post.box", "crash", idempotency_key="c")
    desk.asks(ann, crash)
    ask("outcome_unknown", ann, crash)
    ask("internal_error", ann, invoking("post.box", "capability_internal_error"))
    return found


@whole("SC-RPC-10", "SC-AMB-02", "SC-AMB-06")
def test_every_code_that_is_documented_comes_over_the_channel(desk: Desk) -> None:
    found = provoked(desk)
    assert found == {condition: f"capability_{condition}" for condition in found}
    text = (REFERENCE / "service-capabilities.md").read_text(encoding="utf-8")
    table = text.partition("## Errors")[2].partition("## Limits")[0]
    documented = set(re.findall(r"`(capability_\w+)`", table))
    # That of a daemon without its key is provoked in `test_lost_vault_key.py`.
    assert documented - {"capability_vault_locked"} == set(found.values())


@whole("SC-AMB-06", "SC-AMB-33")
@pytest.mark.parametrize(
    ("sent", "number"),
    [
        (raw(b"{not json"), -32700),
        (raw(b"\xff\xfe"), -32700),
        (raw(b"[]"), -32600),
        (raw(b'[{"jsonrpc": "2.0", "id": 1, "method": "capability.list"}]'), -32600),
        (raw(b'"text"'), -32600),
        (request(jsonrpc="1.0"), -32600),
        (request(jsonrpc="absent"), -32600),
        (request(id="absent"), -32600),
        (request(id=None), -32600),
        (request(method="absent"), -32600),
        (request(method=7), -32600),
        (request(params=[1]), -32600),
        (request(method="capability.nothing"), -32601),
        (request(method="vault.read"), -32601),
        (request(), -32602),
    ],
)
def test_what_is_no_request_is_told_so_by_a_number(
    desk: Desk, sent: dict[str, Any], number: int
) -> None:
    answer, after = desk.asks(somebody(), sent, step("list"))
    assert answer["jsonrpc"] == "2.0"
    assert error_of(answer)["code"] == number
    assert "result" not in answer
    assert result_of(after)["capabilities"]  # the connection goes on


@whole("SC-AMB-33")
def test_a_frame_that_is_too_long_ends_its_connection_and_no_other(desk: Desk) -> None:
    too_long = {"length": 10 * 1024 * 1024 + 1}
    first, second = desk.talk(somebody(), [too_long, step("list")], [step("list"), step("list")])
    assert first[0]["error"]["code"] == -32600
    assert first[1] is None
    assert all("result" in one for one in second)
    # Nor is it worth guessing tokens.
    guesses = [{**step("list"), "token": "a.b.c"}] * 11
    [answers] = desk.talk(somebody(), [*guesses, step("list")])
    assert [one is None for one in answers] == [False] * 10 + [True] * 2


@whole("SC-AMB-33")
def test_the_channel_is_on_the_cages_own_loopback_and_only_where_it_was_granted(
    desk: Desk,
) -> None:
    said = desk.run(somebody(), 'echo "$ASH_RPC_HOST $ASH_RPC_PORT"; ls /opt/ash 2>&1')["stdout"]
    host, port = said.split()[:2]
    assert host == "127.0.0.1"
    with pytest.raises(OSError), socket.create_connection((host, int(port)), timeout=5):  # noqa: PT011 - refused in whatever words
        pass
    # Another agent of the same project, without the grant, has neither channel nor program.
    outsider = {
        "model": "default",
        "system_prompt": "x",
        "cage": {"fs": [{"mode": "rw", "path": "."}], "capabilities": ["shell"]},
        "tools": {"shell.*": {"enabled": True}},
    }
    desk.project.describe(
        cage={"fs": [{"mode": "rw", "path": "."}], "capabilities": ["shell", "services"]},
        tools={"shell.*": {"enabled": True}},
        subagents={"outsider": outsider},
    )
    desk.project.reload()
    program = f"import socket; print(socket.socket().connect_ex(('127.0.0.1', {port})))"
    connect = f'python3 -c "{program}"; command -v ash-sb; env'
    granted = desk.run(somebody(), connect)["stdout"]
    assert granted.splitlines()[0] == "0"
    alone = desk.run(somebody(), connect, "primary.subagents.outsider")["stdout"]
    assert alone.splitlines()[0] not in {"0", ""}
    assert "ash-sb" not in alone
    assert "ASH_" not in alone


@whole("SC-AMB-33", "SC-SEC-03", "SC-SEC-02")
def test_neither_http_nor_a_tool_offers_what_the_channel_does(desk: Desk) -> None:
    before = len(desk.daemon.audit("capability_invoke"))
    body = {"capability": "post.box", "operation": "ping", "method": "capability.invoke"}
    for method in METHODS:
        for path in (f"/{method}", f"/services/{method}", f"/services/rpc/{method}"):
            assert desk.daemon.error("POST", path, body)["status"] in {404, 405}, path
    assert len(desk.daemon.audit("capability_invoke")) == before
    # The routes about accounts are these, and none of them gives a credential or runs anything.
    text = (REFERENCE / "http-api.md").read_text(encoding="utf-8")
    routes = set(re.findall(r"`(\w+ /api/v1/services[^`]*)`", text))
    assert routes == {
        "GET /api/v1/services/providers",
        "POST /api/v1/services/providers/{namespace}/refresh",
        "GET /api/v1/services/accounts",
        "POST /api/v1/services/accounts/check",
        "POST /api/v1/services/accounts/revoke",
        "POST /api/v1/services/links",
        "POST /api/v1/services/links/{flow_id}/complete",
        "POST /api/v1/services/links/{flow_id}/poll",
        "GET /api/v1/services/shares",
        "POST /api/v1/services/shares",
        "DELETE /api/v1/services/shares/{share_id}",
        "DELETE /api/v1/services/links/{flow_id}",
        "GET /api/v1/services/approvals",
        "POST /api/v1/services/approvals/{plan_id}",
        "POST /api/v1/services/vault/rotate",
    }
    tools = desk.project.get("/tools")
    names = {one["name"] for one in tools["tools"]}
    assert "shell.bash" in names
    for name in names:
        assert not name.startswith(("post", "few", "capability", "vault", "account", "services"))
    for tool in ("capability.invoke", "post.box", "post.box.ping", "services.invoke"):
        assert desk.project.fail(tool, capability="post.box")["code"] != "internal_error"
    # The one way that there is: a command in a cage.
    done = desk.run(somebody(), "ash-sb capability invoke -c post.box -o ping --json")
    assert json.loads(done["stdout"])["ok"] is True
