"""`kaged.sdk.bridge`: what bridges written with it believe, and what they answer."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from kaged.base import ManualClock
from kaged.sdk.bridge import Bridge, BridgeCall, BridgeError
from kaged.wire.token_keys import SECRET_VARIABLE, TokenKey
from kaged.wire.tokens import RoutingClaims, bridge_audience, mint_token
from requirements import requirement

HOST = TokenKey(b"h" * 32)
KEY = HOST.for_bridge("post")


class Talk:
    """A bridge with one operation, and what its handlers were asked."""

    def __init__(self, clock: ManualClock, **options: Any) -> None:
        self.clock = clock
        self.calls: list[BridgeCall] = []
        self.bridge = Bridge(clock=clock, **options)
        box = self.bridge.capability("post.box", "Letters.", sensitive=True)
        self.handle: Callable[[BridgeCall], dict[str, Any]] = lambda call: {"for": call.user_id}

        @box.operation("list", "List.", input_schema={"type": "object"})
        def list_(call: BridgeCall) -> dict[str, Any]:
            self.calls.append(call)
            return self.handle(call)

        @box.auth_complete
        def complete(call: BridgeCall) -> dict[str, Any]:
            self.calls.append(call)
            return {"account_ref": f"acct_{call.code}"}

    def token(self, key: TokenKey = KEY, user: str = "ann", **options: Any) -> str:
        options.setdefault("audience", bridge_audience("post"))
        routing = RoutingClaims(chat_type="private")
        return mint_token(key, user, clock=self.clock, routing=routing, **options)

    def ask(self, method: str, **params: Any) -> Any:
        (answer,) = self.send(request(method, **params))
        return answer

    def send(self, *requests: bytes) -> list[Any]:
        out = io.BytesIO()
        assert self.bridge.run(io.BytesIO(b"\n".join(requests)), out) == 0
        return [json.loads(line) for line in out.getvalue().splitlines()]


def request(method: str, **params: Any) -> bytes:
    envelope = {"version": 1, "id": "r1", "namespace": "post", "method": method, "params": params}
    return json.dumps(envelope).encode()


@pytest.fixture
def talk(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Talk:
    monkeypatch.setenv(SECRET_VARIABLE, KEY.export_text())
    return Talk(clock)


def invoke(talk: Talk, token: Any) -> Any:
    return talk.ask(
        "invoke",
        capability_id="post.box",
        operation="list",
        input_data={"n": 1},
        account_ref="acct_1",
        idempotency_key="k",
        context_token=token,
    )


@requirement("SC-BRG-15")
def test_a_handler_is_called_for_checked_tokens_only(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = talk.token()
    head, body, signature = good.split(".")
    bad = [
        "",
        None,
        7,
        good[:-1],
        f"{head}.{body}.",
        f"{head}.{body[:-4]}AAAA.{signature}",
        talk.token(HOST),
        talk.token(TokenKey(b"x" * 32)),
        talk.token(audience="bridge:other"),
        talk.token(audience="rpc"),
    ]
    for token in bad:
        answer = invoke(talk, token)
        assert answer["error"]["code"] == "capability_access_denied", token
        assert "result" not in answer
    talk.clock.advance(400)
    assert "error" in invoke(talk, good)
    monkeypatch.delenv(SECRET_VARIABLE)
    assert "error" in invoke(talk, talk.token())
    assert talk.calls == []


def test_a_call_carries_what_the_host_vouches_for(talk: Talk) -> None:
    answer = invoke(talk, talk.token())
    assert answer == {"version": 1, "id": "r1", "result": {"output": {"for": "ann"}}}
    (call,) = talk.calls
    assert (call.user_id, call.chat_type, call.account_ref) == ("ann", "private", "acct_1")
    assert (dict(call.input), call.idempotency_key, call.operation) == ({"n": 1}, "k", "list")


@pytest.mark.parametrize("name", ["code", "authorization_code"])
def test_the_code_is_found_under_both_generations_names(talk: Talk, name: str) -> None:
    given = {"capability_id": "post.box", "context_token": talk.token(), name: "abc"}
    assert talk.ask("auth_complete", **given)["result"] == {"account_ref": "acct_abc"}


def test_definitions_need_no_token(talk: Talk, clock: ManualClock) -> None:
    result = talk.ask("definitions")["result"]
    assert result["definitions"][0]["id"] == "post.box"
    assert result["definitions"][0]["operations"][0]["name"] == "list"
    assert "features" not in result
    persistent = Talk(clock, persistent=True)
    assert persistent.ask("definitions")["result"]["features"] == ["persistent"]


def test_what_a_handler_trips_over_stays_on_stderr(
    talk: Talk, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(call: BridgeCall) -> dict[str, Any]:
        raise RuntimeError("the password is hunter2")

    talk.handle = fails
    answer = invoke(talk, talk.token())
    assert answer["error"]["code"] == "capability_backend_unavailable"
    assert "hunter2" not in json.dumps(answer)
    assert "hunter2" in capsys.readouterr().err
    talk.handle = lambda _: {"bad": float("nan")}
    assert invoke(talk, talk.token())["error"]["code"] == "capability_backend_unavailable"

    def refuses(call: BridgeCall) -> dict[str, Any]:
        raise BridgeError("capability_quota_gone", "tomorrow")

    talk.handle = refuses
    assert invoke(talk, talk.token())["error"]["code"] == "capability_quota_gone"


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("wreck", {}),
        ("invoke", {"capability_id": "post.other", "operation": "list"}),
        ("invoke", {"capability_id": "post.box", "operation": "wreck"}),
        ("auth_poll", {"capability_id": "post.box"}),
    ],
)
def test_what_is_not_there_is_invalid_input(
    talk: Talk, method: str, params: dict[str, Any]
) -> None:
    answer = talk.ask(method, **params, context_token=talk.token())
    assert answer["error"]["code"] == "capability_invalid_input"


def test_several_requests_on_one_pipe_are_answered_in_order(talk: Talk) -> None:
    answers = talk.send(request("definitions"), request("wreck"), request("definitions"))
    assert ["result" in one for one in answers] == [True, False, True]


def test_without_an_envelope_there_is_no_answer(talk: Talk) -> None:
    out = io.BytesIO()
    assert talk.bridge.run(io.BytesIO(b"hello"), out) == 2
    assert out.getvalue() == b""
