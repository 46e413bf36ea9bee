"""ash-sb as it is installed, against a host that records what it hears."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.rpc_server import ASH_SB, TOKEN, RecordingRpc, capability_error, run_ash
from kaged.sandbox import channel
from kaged.sandbox.main import main
from requirements import requirement

FLOW = {
    "flow_id": "caf_1",
    "capability": "gog.email",
    "account_hint": "work",
    "auth_url": "https://accounts.example/o?x=1",
    "expires_at": "2026-02-24T20:10:00Z",
    "flow_type": "device_code",
    "user_code": "ABCD-EFGH",
    "poll_interval_seconds": 5,
}
ANSWERS: dict[str, dict[str, Any]] = {
    "capability.list": {
        "capabilities": [
            {
                "id": "gog.calendar",
                "description": "Calendar",
                "available": False,
                "authenticated": False,
                "linked_accounts": [],
                "operations": ["list"],
            },
            {
                "id": "gog.email",
                "description": "Email",
                "available": True,
                "authenticated": True,
                "linked_accounts": [
                    {"account_ref": "acct_work", "account_email": "ann@example.org"},
                    {"account_ref": "acct_home", "account_email": None},
                ],
                "operations": ["list", "send"],
            },
        ]
    },
    "capability.invoke": {"ok": True, "output": {"z": "ä", "a": [1]}, "request_id": "cap_1"},
    "capability.auth.begin": FLOW,
    "capability.auth.list": {
        "flows": [
            FLOW,
            {
                "flow_id": "caf_2",
                "capability": "gog.calendar",
                "account_hint": None,
                "auth_url": "https://accounts.example/2",
                "expires_at": "2026-02-24T20:11:00Z",
                "flow_type": "authorization_code",
            },
        ]
    },
    "capability.auth.complete": {"ok": True, "account_ref": "acct_work"},
    "capability.auth.complete_callback": {
        "ok": True,
        "account_ref": "acct_work",
        "flow_id": "caf_1",
        "capability": "gog.email",
        "account_hint": "work",
    },
    "capability.auth.poll": {"status": "pending", "retry_after_seconds": 7},
    "capability.auth.cancel": {"ok": True, "flow_id": "caf_1"},
    "capability.auth.revoke": {"ok": True, "account_ref": "acct_work", "provider_revoked": True},
}
GOLDEN = {
    "capability list": (
        "Capabilities:\n"
        "- gog.calendar: Calendar\n"
        "  Available: no\n"
        "  Authenticated: no\n"
        "  Operations: list\n"
        "- gog.email: Email\n"
        "  Available: yes\n"
        "  Authenticated: yes\n"
        "  Accounts: acct_work (ann@example.org), acct_home\n"
        "  Operations: list, send\n"
        "Total: 2 capability(ies)\n"
    ),
    "capability invoke -c gog.email -o send": (
        "Capability invocation succeeded (request_id=cap_1)\n"
        "Capability: gog.email\n"
        "Operation: send\n"
        'Output: {"a": [1], "z": "\\u00e4"}\n'
    ),
    "capability auth begin -c gog.email": (
        "Started capability auth flow (flow_id=caf_1)\n"
        "Capability: gog.email\n"
        "Auth URL: https://accounts.example/o?x=1\n"
        "Flow type: device_code\n"
        "User code: ABCD-EFGH\n"
        "Poll interval: 5s\n"
        "Expires: 2026-02-24T20:10:00Z\n"
    ),
    "capability auth list": (
        "Pending capability auth flows:\n"
        "- caf_1 (gog.email, account=work)\n"
        "  Auth URL: https://accounts.example/o?x=1\n"
        "  Flow type: device_code\n"
        "  User code: ABCD-EFGH\n"
        "  Poll interval: 5s\n"
        "  Expires: 2026-02-24T20:10:00Z\n"
        "- caf_2 (gog.calendar, account=none)\n"
        "  Auth URL: https://accounts.example/2\n"
        "  Flow type: authorization_code\n"
        "  Expires: 2026-02-24T20:11:00Z\n"
        "Total: 2 flow(s)\n"
    ),
    "capability auth complete --flow-id caf_1 --code abc": (
        "Capability auth completed (flow_id=caf_1, account_ref=acct_work)\n"
    ),
    "capability auth complete-callback --code abc": (
        "Capability auth completed (flow_id=caf_1, capability=gog.email, account_ref=acct_work)\n"
    ),
    "capability auth poll --flow-id caf_1": ("Auth flow pending (flow_id=caf_1, retry_after=7s)\n"),
    "capability auth cancel --flow-id caf_1": "Auth flow canceled (flow_id=caf_1)\n",
    "capability auth revoke -c gog.email --account acct_work": (
        "Capability account unlinked (capability=gog.email, account_ref=acct_work, "
        "provider_revoked=yes)\n"
    ),
}


@pytest.fixture
def host() -> Iterator[RecordingRpc]:
    with RecordingRpc(lambda method, _: ANSWERS[method]) as server:
        yield server


@pytest.fixture(params=["loopback", "unix"])
def either_host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RecordingRpc]:
    path = tmp_path / "rpc.sock" if request.param == "unix" else None
    with RecordingRpc(lambda method, _: ANSWERS[method], path) as server:
        yield server


@requirement("SC-CLI-01", "SC-CLI-09", "SC-TOK-09")
def test_list_asks_once_with_the_token_and_prints_every_id(either_host: RecordingRpc) -> None:
    done = run_ash("capability", "list", environ=either_host.environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == GOLDEN["capability list"]
    assert either_host.methods == ["capability.list"]
    assert either_host.requests[0]["params"] == {
        "include_unavailable": False,
        "context_token": TOKEN,
    }


@requirement("SC-CLI-02", "SC-CLI-09")
def test_invoke_sends_what_the_flags_say(host: RecordingRpc) -> None:
    base = ("capability", "invoke", "--capability", "gog.email", "--operation", "list")
    with_input = run_ash(
        *base,
        *("--input-json", '{"folder": "inbox", "limit": 20}', "--idempotency-key", "k"),
        environ=host.environ,
    )
    without = run_ash(*base, environ=host.environ)
    assert (with_input.returncode, without.returncode) == (0, 0)
    assert host.params(0) == {
        "capability": "gog.email",
        "operation": "list",
        "input": {"folder": "inbox", "limit": 20},
        "idempotency_key": "k",
    }
    assert host.params(1)["input"] == {}
    for lacking in (("--capability", "gog.email"), ("--operation", "list")):
        done = run_ash("capability", "invoke", *lacking, environ=host.environ)
        assert (done.returncode, done.stdout) == (2, "")
        assert "Missing option" in done.stderr
    assert len(host.requests) == 2


@requirement("SC-CLI-03", "SC-CLI-09")
def test_auth_begin_sends_the_hint_only_when_there_is_one(host: RecordingRpc) -> None:
    begin = ("capability", "auth", "begin", "--capability", "gog.email")
    assert run_ash(*begin, environ=host.environ).returncode == 0
    assert run_ash(*begin, "--account", "work", environ=host.environ).returncode == 0
    assert host.methods == ["capability.auth.begin"] * 2
    assert host.params(0) == {"capability": "gog.email"}
    assert host.params(1) == {"capability": "gog.email", "account_hint": "work"}


@requirement("SC-CLI-04", "SC-CLI-09")
def test_auth_complete_sends_a_url_a_code_or_both_and_nothing_without(host: RecordingRpc) -> None:
    complete = ("capability", "auth", "complete", "--flow-id", "caf_1")
    url = ("--callback-url", "https://localhost/callback?code=abc")
    code = ("--code", "abc")
    for answer in (url, code, (*url, *code)):
        assert run_ash(*complete, *answer, environ=host.environ).returncode == 0
    assert [host.params(at) for at in range(3)] == [
        {"flow_id": "caf_1", "callback_url": url[1]},
        {"flow_id": "caf_1", "code": "abc"},
        {"flow_id": "caf_1", "callback_url": url[1], "code": "abc"},
    ]
    done = run_ash(*complete, environ=host.environ)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Error: one of --callback-url and --code is needed\n"
    assert len(host.requests) == 3


@requirement("SC-CLI-05")
@pytest.mark.parametrize("words", GOLDEN)
def test_every_command_needs_the_token_and_sends_it(
    words: str,
    host: RecordingRpc,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in host.environ.items():
        monkeypatch.setenv(name, value)
    assert main(words.split()) == 0
    assert host.requests[0]["params"]["context_token"] == TOKEN
    capsys.readouterr()
    for blank in (None, "", "  "):
        if blank is None:
            monkeypatch.delenv("ASH_CONTEXT_TOKEN")
        else:
            monkeypatch.setenv("ASH_CONTEXT_TOKEN", blank)
        assert main(words.split()) == 1
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith("Error: ASH_CONTEXT_TOKEN is not set")
    assert host.connections == 1


@requirement("SC-AMB-27")
@pytest.mark.parametrize("words", GOLDEN)
def test_what_each_command_prints(
    words: str,
    host: RecordingRpc,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in host.environ.items():
        monkeypatch.setenv(name, value)
    assert main(words.split()) == 0
    assert capsys.readouterr() == (GOLDEN[words], "")
    assert main([*words.split(), "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == ANSWERS[host.methods[-1]]
    assert (shown.out.count("\n"), shown.err) == (1, "")
    with RecordingRpc(lambda *_: capability_error("capability_not_found", "no x.y")) as refusing:
        for name, value in refusing.environ.items():
            monkeypatch.setenv(name, value)
        assert main(words.split()) == 1
        assert capsys.readouterr() == ("", "Error: capability_not_found: no x.y\n")
        assert main([*words.split(), "--json"]) == 1
        shown = capsys.readouterr()
        error = {"code": "capability_not_found", "message": "capability_not_found: no x.y"}
        assert shown.out == ""
        assert json.loads(shown.err) == {"error": error}


def test_empty_lists_say_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = {"capability.list": {"capabilities": []}, "capability.auth.list": {"flows": []}}
    with RecordingRpc(lambda method, _: empty[method]) as host:
        for name, value in host.environ.items():
            monkeypatch.setenv(name, value)
        assert main(["capability", "list"]) == 0
        assert main(["capability", "auth", "list"]) == 0
    shown = capsys.readouterr().out
    assert shown == "No capabilities available.\nNo pending capability auth flows.\n"


@requirement("SC-CLI-06")
def test_credential_variables_change_nothing(host: RecordingRpc) -> None:
    secrets = dict.fromkeys(
        ("GOOGLE_ACCESS_TOKEN", "GOG_TOKEN", "GOGCLI_SECRET", "IMAP_PASSWORD"),
        "stolen-secret-value",
    )
    words = ("capability", "invoke", "-c", "gog.email", "-o", "x", "--idempotency-key", "k")
    plain = run_ash(*words, environ=host.environ)
    seasoned = run_ash(*words, environ=host.environ | secrets)
    assert (plain.stdout, plain.returncode) == (seasoned.stdout, seasoned.returncode)
    assert host.requests[0] == host.requests[1]


@requirement("SC-CLI-08")
@pytest.mark.parametrize("text", ["[1]", "5", "{", '"x"', "null", '{"a": NaN}'])
def test_input_that_is_no_object_is_refused_before_any_request(
    text: str, host: RecordingRpc
) -> None:
    base = ("capability", "invoke", "-c", "a.b", "-o", "x", "--input-json")
    done = run_ash(*base, text, environ=host.environ)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: --input-json")
    assert host.connections == 0
    assert run_ash(*base, "", environ=host.environ).returncode == 0
    assert host.params()["input"] == {}


@requirement("SC-AMB-01")
def test_the_token_has_the_contracts_name_and_no_other(host: RecordingRpc) -> None:
    assert ASH_SB.is_file()
    address = {name: value for name, value in host.environ.items() if "TOKEN" not in name}
    others = ("KAGED_CONTEXT_TOKEN", "CONTEXT_TOKEN", "ASH_TOKEN", "ash_context_token")
    renamed = run_ash("capability", "list", environ=address | dict.fromkeys(others, TOKEN))
    assert (renamed.returncode, renamed.stdout) == (1, "")
    assert "ASH_CONTEXT_TOKEN is not set" in renamed.stderr
    assert host.connections == 0
    assert run_ash("capability", "list", environ=host.environ).returncode == 0


def test_input_is_read_from_standard_input(host: RecordingRpc) -> None:
    words = ("capability", "invoke", "-c", "a.b", "-o", "x", "--input-json", "-")
    assert run_ash(*words, environ=host.environ, stdin='{"a": 1}').returncode == 0
    assert host.params()["input"] == {"a": 1}


def test_a_bare_group_shows_help_and_exits_2() -> None:
    for words in ((), ("capability",), ("capability", "auth")):
        done = run_ash(*words, environ={})
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("Usage: ash-sb")
    asked = run_ash("capability", "invoke", "--help", environ={})
    assert (asked.returncode, asked.stderr) == (0, "")
    assert "--input-json" in asked.stdout


def test_a_host_that_comes_late_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[dict[str, Any] | None] = [None, None, {"capabilities": []}]
    slept: list[float] = []
    with RecordingRpc(lambda *_: answers.pop(0)) as host:
        ask = channel.HostChannel(host.environ, slept.append)
        assert ask.call("capability.list", {}) == {"capabilities": []}
    assert slept == [0.5, 0.5]
    assert host.connections == 3


def test_an_unreachable_host_is_tried_four_times() -> None:
    slept: list[float] = []
    ask = channel.HostChannel(
        {"ASH_CONTEXT_TOKEN": "t", "ASH_RPC_SOCKET": "/nowhere"}, slept.append
    )
    with pytest.raises(channel.CommandFailure, match="cannot be reached"):
        ask.call("capability.auth.begin", {})
    assert slept == [0.5] * 3


@pytest.mark.parametrize(
    ("method", "params", "times"),
    [
        ("capability.list", {}, 4),
        ("capability.auth.list", {}, 4),
        ("capability.invoke", {"idempotency_key": "k"}, 4),
        ("capability.invoke", {}, 1),
        ("capability.auth.begin", {}, 1),
        ("capability.auth.complete", {}, 1),
        ("capability.auth.revoke", {}, 1),
    ],
)
def test_only_what_is_safe_is_sent_again_after_it_was_written(
    method: str, params: dict[str, Any], times: int
) -> None:
    with RecordingRpc(lambda *_: None) as host:
        ask = channel.HostChannel(host.environ, lambda _: None)
        with pytest.raises(channel.CommandFailure):
            ask.call(method, params)
    assert host.connections == times


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00\x00\x00\x02[]",
        b"\x00\x00\x00\x01{",
        b'\x00\x00\x00\x08{"id":2}',
        b'\x00\x00\x00\x08{"id":1}',
        b"\xff\xff\xff\xff",
    ],
)
def test_an_answer_that_makes_no_sense_is_an_error(answer: bytes) -> None:
    with RecordingRpc(lambda *_: answer) as host:
        ask = channel.HostChannel(host.environ, lambda _: None)
        with pytest.raises(channel.CommandFailure) as caught:
            ask.call("capability.auth.begin", {})
    assert caught.value.code == "invalid_answer"


def test_a_hosts_text_cannot_forge_lines_of_ours() -> None:
    text = "no\nCapability auth completed (flow_id=x)\x1b[2J"
    with RecordingRpc(lambda *_: capability_error("capability_x", text)) as host:
        done = run_ash("capability", "list", environ=host.environ)
    assert done.stderr == "Error: capability_x: no Capability auth completed (flow_id=x) [2J\n"
