"""The vault: encrypted, bound to its key, renewed once, and unreadable without the ring."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from fakes.service_lab import ServiceLab
from kaged.base import JsonObject
from kaged.config.providers import VaultKeyPlace
from kaged.services.contract import InvokeCall
from kaged.services.errors import CapabilityError
from kaged.services.idempotency import Ticket
from kaged.services.secret_search import CallSecrets
from kaged.services.vault import CredentialScope, VaultError
from kaged.services.vault_key import FileRing, SystemdRing, new_ring, ring_stores
from kaged.services.vault_opening import open_vault
from kaged.store.service_call_rows import CallKey
from kaged.store.service_rows import FlowRow, StateKey
from raising import raises_code
from requirements import requirement

END = 4_000_000_000_000
ALICE = CredentialScope("alice", "gog.email", "acct")
BOB = CredentialScope("bob", "gog.email", "acct")


@requirement("SC-AMB-41")
async def test_records_are_encrypted_and_bound_to_their_key(lab: ServiceLab) -> None:
    for user in ("alice", "bob", "carol"):  # hers opens: the key is the right one
        await lab.link(user)
    secret = b"refresh-alice-code-alice-None"
    stored = [path for path in lab.root.rglob("*") if path.is_file()]
    assert stored
    for path in stored:
        assert secret not in path.read_bytes()
    assert (lab.root / "vault.key").stat().st_mode & 0o777 == 0o600

    async def change(statement: str) -> None:
        await lab.store.write(lambda conn: conn.execute(text(statement)))
        await lab.start_again()

    reads: list[Any] = []

    async def read(call: InvokeCall) -> JsonObject:
        assert call.credentials is not None
        reads.append(await call.credentials.get())
        return {"ok": True}

    lab.provider.on_invoke = read
    await change(
        "update service_vault set sealed = (select sealed from service_vault where user_id='alice')"
        " where user_id='bob'"
    )
    with pytest.raises(CapabilityError) as moved:
        await lab.invoke("whoami", "bob")
    assert moved.value.code in {"capability_backend_unavailable", "capability_auth_required"}
    assert (await lab.invoke("whoami", "alice"))["ok"]
    assert reads == [{"refresh_token": secret.decode()}]

    def flip(conn: Any) -> None:
        [sealed] = conn.execute(
            text("select sealed from service_vault where user_id='alice'")
        ).scalars()
        broken = sealed[:-1] + bytes([sealed[-1] ^ 1])
        conn.execute(
            text("update service_vault set sealed=:s where user_id='alice'"), {"s": broken}
        )

    await lab.store.write(flip)
    await lab.start_again()
    with pytest.raises(CapabilityError) as altered:
        await lab.invoke("whoami", "alice")
    assert altered.value.code == "capability_backend_unavailable"
    assert len(reads) == 1


async def test_a_plain_record_of_another_host_is_refused(lab: ServiceLab) -> None:
    """Somebody who can write the database cannot plant a credential of their own."""
    await lab.link()
    await lab.store.write(
        lambda conn: conn.execute(
            text("update service_vault set version=1, sealed=:s"),
            {"s": b'{"refresh_token": "planted"}'},
        )
    )
    vault = await lab.opened_vault()
    with pytest.raises(VaultError):
        await vault.get(CredentialScope("alice", "gog.email", "acct_default"))


async def test_a_credential_is_renewed_once_however_many_ask(lab: ServiceLab) -> None:
    await lab.vault.put(ALICE, {"access_token": "old", "n": 1})
    renewed: list[JsonObject] = []
    go = asyncio.Event()

    async def renew(stale: JsonObject) -> JsonObject:
        renewed.append(stale)
        await go.wait()
        return {"access_token": "new", "n": 2}

    handles = [lab.vault.handle(ALICE, CallSecrets()) for _ in range(5)]
    stale: JsonObject = {"access_token": "old", "n": 1}
    tasks = [lab.tasks.start(one.refresh(stale, renew), "renew") for one in handles]
    for _ in range(20):
        await asyncio.sleep(0)
    go.set()
    assert await asyncio.gather(*tasks) == [{"access_token": "new", "n": 2}] * 5
    assert len(renewed) == 1

    async def fail(stale: JsonObject) -> JsonObject:
        raise OSError("upstream")

    with pytest.raises(OSError, match="upstream"):
        await handles[0].refresh({"access_token": "new", "n": 2}, fail)
    assert await lab.vault.get(ALICE) == {"access_token": "new", "n": 2}
    await lab.vault.delete(ALICE)
    with raises_code("capability_auth_required", CapabilityError):  # revoked meanwhile
        await handles[0].refresh({"access_token": "new", "n": 2}, renew)


@requirement("SC-SEC-04")
@pytest.mark.parametrize("which", ["old", "new"])
async def test_a_credential_renewed_during_a_call_leaves_in_neither_form(
    lab: ServiceLab, which: str
) -> None:
    ref = await lab.link()
    tokens = {"old": "before-it-was-renewed-1", "new": "after-it-was-renewed-2"}
    scope = CredentialScope("alice", "gog.email", ref)
    await lab.vault.put(scope, {"access_token": tokens["old"]})

    async def renew(stale: JsonObject) -> JsonObject:
        return {"access_token": tokens["new"]}

    async def leak(call: InvokeCall) -> Any:
        assert call.credentials is not None
        stale = await call.credentials.get()
        assert stale is not None
        await call.credentials.refresh(stale, renew)
        return {"note": f"it is {tokens[which]}"}

    lab.provider.on_invoke = leak
    with raises_code("capability_invalid_output", CapabilityError):
        await lab.invoke("whoami")


async def test_keys_are_changed_without_losing_anything(lab: ServiceLab) -> None:
    await lab.vault.put(ALICE, {"refresh_token": "a"})
    await lab.vault.put(BOB, {"refresh_token": "b"})
    flow = await lab.call("auth.begin", capability="gog.email")
    before = (lab.root / "vault.key").read_text(encoding="utf-8")
    assert await lab.vault.rotate() == 2
    assert await lab.flows.reseal() == 1
    await lab.vault.drop_old_keys()
    after = (lab.root / "vault.key").read_text(encoding="utf-8")
    assert before != after
    vault = await lab.opened_vault()
    assert await vault.get(ALICE) == {"refresh_token": "a"}
    assert await vault.get(BOB) == {"refresh_token": "b"}
    assert (await lab.call("auth.complete", flow_id=flow["flow_id"], code="c"))["ok"]


async def test_a_credential_may_end_by_itself(lab: ServiceLab) -> None:
    await lab.vault.put(ALICE, {"refresh_token": "a"}, ttl_s=60)
    lab.clock.advance(59)
    assert await lab.vault.get(ALICE) is not None
    lab.clock.advance(2)
    assert await lab.vault.get(ALICE) is None
    assert await lab.vault_rows.keys() == ()


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vault.key"
    FileRing(path).save(new_ring())
    assert FileRing(path).load() is not None
    path.chmod(0o640)
    with raises_code("vault_key_invalid", match="only its owner"):
        FileRing(path).load()
    path.chmod(0o600)
    path.write_text("{}", encoding="utf-8")
    with raises_code("vault_key_invalid"):
        FileRing(path).load()
    link = tmp_path / "link.key"
    link.symlink_to(path)
    with raises_code("vault_key_invalid"):
        FileRing(link).load()


async def test_a_missing_key_is_made_only_for_an_empty_vault(
    empty_lab: ServiceLab, tmp_path: Path
) -> None:
    rows, spare = empty_lab.vault_rows, FileRing(tmp_path / "spare.key")
    store = FileRing(tmp_path / "other.key")
    first = await open_vault(rows, (store,), spare, empty_lab.clock)
    await first.put(ALICE, {"password": "w"})
    again = await open_vault(rows, (store,), spare, empty_lab.clock)
    assert await again.get(ALICE) == {"password": "w"}
    ring = store.load()
    assert ring is not None
    assert ring.keys[ring.current].hex() not in repr(ring)
    store.remove()
    locked = await open_vault(rows, (store,), spare, empty_lab.clock)
    assert locked.is_locked(ALICE)
    assert not store.is_there()


async def test_a_systemd_credential_comes_first_and_is_never_written(
    empty_lab: ServiceLab, tmp_path: Path
) -> None:
    ring = new_ring()
    folder = tmp_path / "credentials"
    folder.mkdir()
    (folder / "kaged-vault-key").write_text(ring.to_text(), encoding="utf-8")
    environ = {"CREDENTIALS_DIRECTORY": os.fspath(folder)}
    stores = ring_stores(VaultKeyPlace.AUTO, tmp_path / "auto.key", environ)
    spare = FileRing(tmp_path / "spare.key")
    vault = await open_vault(empty_lab.vault_rows, stores, spare, empty_lab.clock)
    await vault.put(ALICE, {"password": "w"})
    [row] = await empty_lab.vault_rows.samples(1)
    assert row == ring.current
    with raises_code("vault_key_invalid"):
        SystemdRing(folder).save(ring)
    assert not (tmp_path / "auto.key").exists()
    assert not spare.is_there()


@requirement("SC-ISO-11")
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=4, deadline=None
)
@given(st.data())
async def test_parts_of_a_key_never_run_into_each_other(lab: ServiceLab, data: Any) -> None:
    parts = st.text("ab:/. ", min_size=1, max_size=4)
    user_ids = parts.filter(lambda one: bool(one.strip()))
    tuples = st.tuples(user_ids, st.sampled_from(["x.y", "x.yz"]), parts)
    planted = [("a:b", "x.y", "c"), ("a", "x.y", "b:c")]
    pairs = data.draw(st.lists(tuples, min_size=2, max_size=2, unique=True)) or planted
    for one, two in ((pairs[0], pairs[1]), (planted[0], planted[1])):
        if one == two:
            continue
        await lab.vault.put(CredentialScope(*one), {"who": "one"})
        await lab.vault.put(CredentialScope(*two), {"who": "two"})
        state_one, state_two = (StateKey(who[0], who[1], "", who[2]) for who in (one, two))
        await lab.rows.put_state(state_one, {"who": "one"}, limit=1000)
        await lab.rows.put_state(state_two, {"who": "two"}, limit=1000)
        tickets = [
            await lab.calls.enter(CallKey(user, capability, "send", ref, "k"), "f", "cap_1")
            for user, capability, ref in (one, two)
        ]
        assert all(isinstance(ticket, Ticket) for ticket in tickets)
        for number, (user, capability, ref) in enumerate((one, two)):
            row = FlowRow(f"caf_{number}", user, capability, ref, "x", None, b"", 0, 0, END)
            assert await lab.rows.add_flow(row, 10)
        for number, (user, capability, ref) in enumerate((one, two)):
            mine = [
                flow.flow_id
                for flow in await lab.rows.pending_flows(user)
                if (flow.capability_id, flow.account_hint) == (capability, ref)
            ]
            assert mine == [f"caf_{number}"]
        for ref in (one, two):
            await lab.accounts.link(*ref, name=None, email=None, flow_id="caf_none")
        vault = await lab.opened_vault()
        assert await vault.get(CredentialScope(*one)) == {"who": "one"}
        assert await vault.get(CredentialScope(*two)) == {"who": "two"}
        assert await lab.rows.state(state_one) == {"who": "one"}
        await lab.vault.delete(CredentialScope(*one))
        assert await lab.rows.delete_state(state_one)
        assert await lab.accounts.unlink(*one)
        assert await lab.vault.get(CredentialScope(*two)) == {"who": "two"}
        assert await lab.rows.state(state_two) == {"who": "two"}
        assert two[2] in {row.account_ref for row in await lab.accounts.of(two[0], two[1])}
        await lab.vault.delete(CredentialScope(*two))
        await lab.rows.delete_state(state_two)
        await lab.accounts.unlink(*two)
        for ticket in tickets:
            assert isinstance(ticket, Ticket)
            await ticket.abandon()
        for number in range(2):
            await lab.rows.end_flow(f"caf_{number}")
