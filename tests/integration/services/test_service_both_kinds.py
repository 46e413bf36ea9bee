"""One suite over both kinds of providers: inside the daemon, and a bridge program."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.bridge_lab import BridgeLab
from fakes.service_lab import FakeProvider, ServiceLab, definition
from kaged.services.contract import AuthCompleteCall, CapabilityAuthCompleteResult, InvokeCall
from kaged.services.errors import CapabilityError
from raising import raises_code
from requirements import requirement

KINDS = ("first-party", "bridge")


class Both:
    """A lab in which `gog.email` is of one kind or the other."""

    def __init__(self, lab: BridgeLab, kind: str) -> None:
        self.lab = lab
        self.kind = kind

    async def add(self, namespace: str = "gog", *, sensitive: bool = False) -> None:
        if self.kind == "bridge":
            env = (("BRIDGE_SENSITIVE", "1"),) if sensitive else ()
            await self.lab.add("bridge_g1.py", namespace, env=env)
        else:
            sample = definition(f"{namespace}.email", sensitive=sensitive)
            await self.lab.register(FakeProvider(namespace, sample))


@pytest.fixture(params=KINDS)
async def both(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Both]:
    lab = BridgeLab(tmp_path)
    await lab.open()
    lab.start()
    yield Both(lab, request.param)
    await lab.close()


@requirement("SC-ISO-09", "SC-ISO-05", "SC-ISO-06", "SC-ISO-07", "SC-PROV-10")
async def test_users_never_see_each_other(both: Both) -> None:
    lab = both.lab
    await both.add()
    for user, hint in (("alice", "work"), ("alice", "home"), ("bob", "work")):
        await lab.link(user, hint)
    [row] = (await lab.call("list", "carol"))["capabilities"]
    assert (row["authenticated"], row["linked_accounts"]) == (False, [])
    rounds = 8  # two calls in each, all at the same time

    async def ask(user: str, ref: str) -> Any:
        return (await lab.invoke("whoami", user, account_ref=ref))["output"]

    asked = [("alice", "acct_home"), ("bob", "acct_work")] * rounds
    answers = await asyncio.gather(*(ask(*one) for one in asked))
    for (user, ref), answer in zip(asked, answers, strict=True):
        assert (answer["user"], answer["account"]) == (user, ref)
    with raises_code("capability_auth_required", CapabilityError):
        await lab.invoke("whoami", "bob", account_ref="acct_home")
    assert len(await lab.rows.all_accounts(user_id=None, limit=10, offset=0)) == 3
    # What is taken back is one account of one user, with its credential and no other's.
    before = await lab.vault_rows.keys()
    await lab.call("auth.revoke", "alice", capability="gog.email", account_ref="acct_home")
    gone = ("alice", "gog.email", "acct_home")
    assert set(await lab.vault_rows.keys()) == set(before) - {gone}
    for user in ("alice", "bob"):
        assert (await ask(user, "acct_work"))["user"] == user


@requirement("SC-ISO-04")
async def test_nothing_of_one_user_can_be_read_or_changed_by_another(lab: ServiceLab) -> None:
    ref = await lab.link("alice")
    flow = await lab.call("auth.begin", "alice", capability="gog.email", account_hint="more")
    await lab.invoke("send", "alice", idempotency_key="k")

    def dump(conn: Any) -> str:
        from sqlalchemy import text

        found: list[Any] = []
        for table in ("accounts", "flows", "vault", "calls", "state"):
            rows = conn.execute(text(f"select * from service_{table}"))
            found += [tuple(map(repr, row)) for row in rows]
        return json.dumps(found)

    before = await lab.store.read(dump)
    attempts: list[tuple[str, dict[str, Any]]] = [
        ("invoke", {"capability": "gog.email", "operation": "whoami", "account_ref": ref}),
        ("invoke", {"capability": "gog.email", "operation": "whoami", "user_id": "alice"}),
        ("auth.complete", {"flow_id": flow["flow_id"], "code": "c"}),
        ("auth.complete_callback", {"code": "c"}),
        ("auth.poll", {"flow_id": flow["flow_id"]}),
        ("auth.revoke", {"capability": "gog.email", "account_ref": ref}),
    ]
    for method, params in attempts:
        with pytest.raises(CapabilityError):
            await lab.call(method, "bob", **params)
    assert (await lab.call("auth.list", "bob"))["flows"] == []
    assert (await lab.call("list", "bob"))["capabilities"][0]["linked_accounts"] == []
    assert await lab.store.read(dump) == before


@requirement("SC-ISO-01")
async def test_credentials_lie_under_three_part_keys(lab: ServiceLab) -> None:
    await lab.link("alice", "work")
    await lab.link("bob", "work")
    assert set(await lab.vault_rows.keys()) == {
        ("alice", "gog.email", "acct_work"),
        ("bob", "gog.email", "acct_work"),
    }


@requirement("SC-ISO-02", "SC-ISO-03")
async def test_what_a_provider_remembers_is_bound_to_user_capability_and_chat(
    empty_lab: ServiceLab,
) -> None:
    lab = empty_lab
    provider = FakeProvider("gog", definition("gog.email"), definition("gog.calendar"))

    async def remember(call: InvokeCall) -> Any:
        chat = bool(call.input_data.get("chat"))
        if "put" in call.input_data:
            await call.state.put("note", {"text": call.input_data["put"]}, chat=chat)
        return {"found": await call.state.get("note", chat=chat)}

    provider.on_invoke = remember
    await lab.register(provider)

    async def found(user: str, chat_id: str, capability: str = "gog.email", **given: Any) -> Any:
        token = lab.token(user, chat_id=chat_id)
        answer = await lab.invoke("ping", token=token, capability=capability, given=given)
        return answer["output"]["found"]

    assert await found("alice", "1", put="mine") == {"text": "mine"}
    assert await found("alice", "2") == {"text": "mine"}
    assert await found("bob", "1") is None
    assert await found("alice", "1", "gog.calendar") is None
    assert await found("alice", "1", chat=True) is None
    assert await found("alice", "1", chat=True, put="here") == {"text": "here"}
    assert await found("alice", "2", chat=True) is None
    token = lab.token("alice", chat_id="2")
    forged = await lab.invoke("ping", token=token, given={"chat": True}, chat_id="1")
    assert forged["output"]["found"] is None
    assert await found("alice", "2") == {"text": "mine"}


@requirement("SC-ISO-08")
async def test_credentials_and_other_state_lie_apart(lab: ServiceLab) -> None:
    async def complete(call: AuthCompleteCall) -> CapabilityAuthCompleteResult:
        await call.credentials.put({"refresh_token": "MARKER-CREDENTIAL-01"})
        return CapabilityAuthCompleteResult("acct")

    lab.provider.on_complete = complete
    await lab.link()

    async def remember(call: InvokeCall) -> Any:
        await call.state.put("note", {"seen": 1})
        return {}

    lab.provider.on_invoke = remember
    await lab.invoke("ping")

    def dump(conn: Any) -> bytes:
        from sqlalchemy import text

        names = ("accounts", "flows", "calls", "state", "vault")
        tables = [*(f"service_{name}" for name in names), "inbox_requests"]
        return b"".join(
            repr(tuple(row)).encode()
            for table in tables
            for row in conn.execute(text(f"select * from {table}"))
        )

    assert b"MARKER-CREDENTIAL" not in await lab.store.read(dump)
    stored = [path for path in lab.root.rglob("*") if path.is_file()]
    assert all(b"MARKER-CREDENTIAL" not in path.read_bytes() for path in stored)
