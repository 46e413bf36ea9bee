"""Every stable code, each provoked once (the RPC error is made of it)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from fakes.capability_codes import CAPABILITY_CODES
from fakes.service_lab import FakeProvider, ServiceLab, definition
from kaged.base import JsonObject, KagedError
from kaged.serve.sandbox_rpc import SandboxRpc
from kaged.services.contract import (
    AuthBeginCall,
    AuthCompleteCall,
    CapabilityAuthBeginResult,
    CapabilityAuthCompleteResult,
    InvokeCall,
)
from kaged.services.errors import (
    CapabilityAuthFlowExpired,
    CapabilityError,
)
from kaged.services.limits import Rate, RateRules
from kaged.services.rpc import CapabilityRpc
from kaged.wire.length_prefixed import LengthPrefixFramer
from kaged.wire.tokens import TokenReason, TokenRejected
from requirements import requirement


class OverTheSocket:
    """Answers as the host's methods do, but over a real socket, as a cage hears it."""

    def __init__(self, methods: CapabilityRpc, path: Path) -> None:
        self._methods = methods
        self._path = path

    async def call(self, method: str, params: JsonObject) -> JsonObject:
        token = str(params["context_token"])
        rpc = SandboxRpc(
            self._methods, token, lambda _method, _token: TokenRejected(TokenReason.SIGNATURE)
        )

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await rpc.serve(reader, writer)
            finally:
                writer.close()

        server = await asyncio.start_unix_server(serve, self._path)
        reader, writer = await asyncio.open_unix_connection(self._path)
        try:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            writer.write(LengthPrefixFramer().encode(json.dumps(body).encode()))
            async with asyncio.timeout(30):
                size = int.from_bytes(await reader.readexactly(4), "big")
                answer = json.loads(await reader.readexactly(size))
        finally:
            writer.close()
            await writer.wait_closed()
            server.close()
            await server.wait_closed()
            self._path.unlink()
        error = answer.get("error")
        if error is None:
            return answer["result"]
        # Only the code is read, and only from the object: texts are for people.
        raise _Heard(error["data"]["code"], error["data"])


class _Heard(CapabilityError):
    def __init__(self, code: str, data: dict[str, Any]) -> None:
        super().__init__(
            "",
            code=code,
            **{name: one for name, one in data.items() if name not in {"code", "fix"}},
        )


@requirement("SC-RPC-10")
async def test_every_code_reaches_a_client_over_the_socket(lab: ServiceLab, tmp_path: Path) -> None:
    lab.rpc = cast("Any", OverTheSocket(lab.rpc, tmp_path / "rpc"))
    assert set(await provoke_all(lab)) == set(CAPABILITY_CODES)


@requirement("SC-AMB-02")
async def test_every_code_can_be_provoked(lab: ServiceLab) -> None:
    found = await provoke_all(lab)
    assert set(found) == set(CAPABILITY_CODES)
    assert "SECRET-DETAIL" not in str(found)
    assert found["capability_internal_error"] == "request failed"


@requirement("SC-AMB-06")
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("auth.begin", {"capability": "gog.email"}),
        ("auth.complete", {"flow_id": "caf_none", "code": "c"}),
        ("auth.complete_callback", {"code": "c"}),
        ("auth.poll", {"flow_id": "caf_none"}),
        ("auth.revoke", {"capability": "gog.email", "account_ref": "acct_one"}),
        ("invoke", {"capability": "gog.email", "operation": "whoami", "input": {}}),
    ],
)
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (ZeroDivisionError("SECRET-DETAIL"), ("capability_internal_error", "request failed")),
        (
            KagedError("SECRET-DETAIL in /x/kaged.db", code="store_unavailable", fix="SECRET"),
            ("capability_backend_unavailable", "the store cannot be used now"),
        ),
    ],
)
async def test_a_fault_of_the_host_is_told_in_the_hosts_own_few_words(
    lab: ServiceLab,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    params: dict[str, Any],
    fault: Exception,
    said: tuple[str, str],
) -> None:
    """What is not on record, `list` and `auth.list`, the channel words for itself."""

    async def broken(*_: Any, **__: Any) -> Any:
        raise fault

    for name in ("accounts", "flow", "pending_flows"):
        monkeypatch.setattr(lab.rows, name, broken)
    with pytest.raises(CapabilityError) as failed:
        await lab.call(method, **params)
    assert (failed.value.code, failed.value.message) == said
    assert "SECRET" not in json.dumps(failed.value.data)


async def provoke_all(lab: ServiceLab) -> dict[str, str]:  # noqa: PLR0915 - one per code
    """Bring about the condition of every code; returns what was said for each."""
    found: dict[str, str] = {}

    async def provoke(call: Awaitable[Any]) -> None:
        with pytest.raises(CapabilityError) as failed:
            await call
        found[failed.value.code] = failed.value.message
        assert str(failed.value.data["request_id"]).startswith("cap_")

    def answering(value: Any) -> Callable[[InvokeCall], Awaitable[Any]]:
        async def answer(call: InvokeCall) -> Any:
            if isinstance(value, Exception):
                raise value
            return value

        return answer

    async def begin(call: AuthBeginCall) -> CapabilityAuthBeginResult:
        return CapabilityAuthBeginResult(
            "https://login.example/", expected_callback_state="s", uses_pkce=True
        )

    lab.provider.on_begin = begin
    private_only = definition("acme.email", sensitive=True)
    await lab.register(FakeProvider("acme", private_only), confirm=("email.send",))
    await provoke(lab.invoke("ping", capability="email"))
    await provoke(lab.invoke("ping", capability="gog.nope"))
    group = lab.token("alice", "group")
    await provoke(lab.invoke("ping", capability="acme.email", token=group))
    await provoke(lab.invoke("whoami"))
    await provoke(lab.call("auth.complete", flow_id="caf_none", code="c"))

    flow = (await lab.call("auth.begin", capability="gog.email", account_hint="a"))["flow_id"]
    await lab.call("auth.begin", capability="gog.email", account_hint="b")
    await provoke(lab.call("auth.complete_callback", code="c"))
    await provoke(lab.call("auth.complete", flow_id=flow, callback_url="nonsense"))
    await provoke(lab.call("auth.complete", flow_id=flow))
    both: dict[str, Any] = {"code": "x", "callback_url": "https://h/?code=y&state=s"}
    await provoke(lab.call("auth.complete", flow_id=flow, **both))
    wrong = "https://h/?code=y&state=t"
    await provoke(lab.call("auth.complete", flow_id=flow, callback_url=wrong))
    third = (await lab.call("auth.begin", capability="gog.email", account_hint="c"))["flow_id"]
    denied = "https://h/?error=access_denied"
    await provoke(lab.call("auth.complete", flow_id=third, callback_url=denied))
    fourth = (await lab.call("auth.begin", capability="gog.email", account_hint="d"))["flow_id"]

    async def expired(call: AuthCompleteCall) -> CapabilityAuthCompleteResult:
        raise CapabilityAuthFlowExpired("too late")

    lab.provider.on_complete = expired
    await provoke(lab.call("auth.complete", flow_id=fourth, code="c"))
    lab.provider.on_complete = None

    await lab.link(hint="one")
    await lab.link(hint="two")
    await provoke(lab.invoke("whoami"))
    chosen: dict[str, Any] = {"account_ref": "acct_one"}
    lab.provider.on_invoke = answering({"access_token": "x"})
    await provoke(lab.invoke("whoami", **chosen))
    lab.provider.on_invoke = answering(OSError("down"))
    await provoke(lab.invoke("send", idempotency_key="k", **chosen))
    await provoke(lab.invoke("send", idempotency_key="k", **chosen))
    await provoke(lab.invoke("send", idempotency_key="k", given={"x": 1}, **chosen))
    lab.provider.on_invoke = None

    await lab.link(capability="acme.email")
    await provoke(lab.invoke("send", capability="acme.email"))
    plan: dict[str, Any] = {"mutation_plan_id": "plan_of_somebody"}
    await provoke(lab.invoke("send", capability="acme.email", **plan))
    lab.limits.set_rules("gog", RateRules(invoke=Rate(1, 1)))
    await lab.invoke("ping")
    await provoke(lab.invoke("ping"))

    broken = lab.accounts.choose

    async def fault(*args: Any, **rest: Any) -> Any:
        raise ZeroDivisionError("a fault of ours: SECRET-DETAIL")

    lab.accounts.choose = fault
    await provoke(lab.invoke("ping", capability="acme.email"))
    lab.accounts.choose = broken

    return found
