"""A vault whose key is lost: locked, linked anew under another key, healed with the old one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from fakes.service_lab import ServiceLab
from kaged.services.errors import CapabilityError, VaultLocked
from kaged.services.vault import CredentialScope
from kaged.services.vault_key import FileRing, KeyRing, SystemdRing, new_ring
from kaged.services.vault_opening import open_vault
from kaged.store.vault_rows import VaultRows
from raising import raises_code

ALICE = CredentialScope("alice", "gog.email", "acct")
BOB = CredentialScope("bob", "gog.email", "acct")


async def reopened(lab: ServiceLab) -> ServiceLab:
    """End the host and start another one on the same folder."""
    await lab.close()
    again = ServiceLab(lab.root, lab.clock)
    await again.open()
    await again.register()
    return again


def gone(key: Path) -> None:
    key.unlink()


def garbage(key: Path) -> None:
    key.write_text("nonsense", encoding="utf-8")


def another(key: Path) -> None:
    FileRing(key).save(new_ring())


def same_name(key: Path) -> None:
    ring = FileRing(key).load()
    assert ring is not None
    FileRing(key).save(KeyRing(ring.current, {ring.current: b"x" * 32}))


LOSSES = (gone, garbage, another, same_name)


@pytest.mark.parametrize("lose", LOSSES)
async def test_a_lost_key_locks_what_it_opened_and_nothing_else(
    lab: ServiceLab, lose: Callable[[Path], None]
) -> None:
    key, spare = lab.root / "vault.key", lab.root / "vault.replacement.key"
    await lab.vault.put(ALICE, {"refresh_token": "a-1"})
    await lab.vault.put(BOB, {"refresh_token": "b-1"})
    kept = key.read_bytes()
    lose(key)
    left = key.read_bytes() if key.exists() else None
    again = await reopened(lab)
    for _ in range(2):  # the second start says the same
        vault = again.vault
        assert vault.problem is not None
        assert vault.problem.code == "vault_key_invalid"
        assert vault.problem.fix is not None
        assert vault.locked_count == 2
        with raises_code("capability_vault_locked", VaultLocked):
            await vault.get(ALICE)
        with raises_code("capability_vault_locked", VaultLocked):
            await vault.rotate()
        assert spare.stat().st_mode & 0o777 == 0o600
        again = await reopened(again)
    # Bob links anew, Alice waits for the key.
    await again.vault.put(BOB, {"refresh_token": "b-2"})
    assert again.vault.is_locked(ALICE)
    assert not again.vault.is_locked(BOB)
    again = await reopened(again)
    assert await again.vault.get(BOB) == {"refresh_token": "b-2"}
    assert again.vault.locked_count == 1
    assert (key.read_bytes() if key.exists() else None) == left  # nothing was written over it
    key.write_bytes(kept)
    key.chmod(0o600)
    for _ in range(2):
        again = await reopened(again)
        assert again.vault.problem is None
        assert await again.vault.get(ALICE) == {"refresh_token": "a-1"}
        assert await again.vault.get(BOB) == {"refresh_token": "b-2"}
        assert not spare.exists()
    await again.vault.rotate()
    assert await again.vault.get(ALICE) == {"refresh_token": "a-1"}
    await again.close()
    await lab.open()


async def test_a_key_that_nothing_needs_any_more_is_not_missed(lab: ServiceLab) -> None:
    await lab.vault.put(ALICE, {"refresh_token": "a-1"})
    await lab.vault.put(BOB, {"refresh_token": "b-1"})
    key = lab.root / "vault.key"
    gone(key)
    again = await reopened(lab)
    await again.vault.put(ALICE, {"refresh_token": "a-2"})
    assert await again.vault.delete(BOB)
    assert again.vault.locked_count == 0
    again = await reopened(again)
    assert again.vault.problem is None
    assert key.exists()
    assert not (lab.root / "vault.replacement.key").exists()
    assert await again.vault.get(ALICE) == {"refresh_token": "a-2"}
    await again.close()
    await lab.open()


async def test_one_altered_record_does_not_lock_the_others(lab: ServiceLab) -> None:
    for number in range(3):
        await lab.vault.put(CredentialScope(f"u{number}", "gog.email", "a"), {"password": "w"})

    longer = "update service_vault set sealed=cast(sealed || x'00' as blob) where user_id='u0'"
    await lab.store.write(lambda conn: conn.execute(text(longer)))
    again = await reopened(lab)
    assert again.vault.problem is None
    assert await again.vault.get(CredentialScope("u1", "gog.email", "a")) == {"password": "w"}
    with raises_code("capability_backend_unavailable", CapabilityError):
        await again.vault.get(CredentialScope("u0", "gog.email", "a"))
    await again.close()
    await lab.open()


async def test_flows_of_a_lost_key_are_begun_anew(lab: ServiceLab) -> None:
    await lab.link("bob")
    first = await lab.call("auth.begin", capability="gog.email")
    gone(lab.root / "vault.key")
    again = await reopened(lab)
    assert (await again.call("auth.list"))["flows"] == []
    with raises_code("capability_auth_flow_invalid", CapabilityError):
        await again.call("auth.complete", flow_id=first["flow_id"], code="c")
    second = await again.call("auth.begin", capability="gog.email")
    assert second["flow_id"] != first["flow_id"]
    assert (await again.call("auth.complete", flow_id=second["flow_id"], code="c"))["ok"]
    await again.close()
    await lab.open()


async def test_a_replacement_that_cannot_be_read_is_left_alone(lab: ServiceLab) -> None:
    await lab.vault.put(ALICE, {"refresh_token": "a-1"})
    gone(lab.root / "vault.key")
    spare = lab.root / "vault.replacement.key"
    spare.write_text("nonsense", encoding="utf-8")
    spare.chmod(0o600)
    again = await reopened(lab)
    with raises_code("capability_vault_locked", VaultLocked):
        await again.vault.put(BOB, {"refresh_token": "b"})
    assert spare.read_text(encoding="utf-8") == "nonsense"
    await again.close()
    await lab.open()


async def test_a_key_of_systemd_is_used_beside_the_replacement(lab: ServiceLab) -> None:
    """Systemd's key cannot be written: the replacement stays a file, and both open theirs."""
    rows, spare = VaultRows(lab.store), FileRing(lab.root / "vault.replacement.key")
    key = FileRing(lab.root / "vault.key")
    await lab.vault.put(ALICE, {"refresh_token": "a-1"})
    folder = lab.root / "credentials"
    folder.mkdir()
    stores = (SystemdRing(folder),)
    lost = await open_vault(rows, stores, spare, lab.clock)
    assert lost.locked_count == 1
    await lost.put(BOB, {"refresh_token": "b-1"})
    ring = key.load()
    assert ring is not None
    (folder / "kaged-vault-key").write_text(ring.to_text(), encoding="utf-8")
    found = await open_vault(rows, stores, spare, lab.clock)
    assert found.problem is None
    assert await found.get(ALICE) == {"refresh_token": "a-1"}
    assert await found.get(BOB) == {"refresh_token": "b-1"}
    assert spare.is_there()
