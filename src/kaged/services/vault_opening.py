"""`open_vault`: the vault with its key, or locked without it; the rest of the daemon starts anyway.

A key that is missing, unreadable or another one than the credentials were encrypted with locks
those credentials and nothing else. What is linked meanwhile is encrypted with a replacement key in
a file of its own, so that putting the old key back loses neither. Once the key is back, or nothing
needs it any more, the replacement becomes part of the vault's key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from kaged.base import Clock, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.config.providers import CapabilitiesSection
from kaged.config.settings import Settings
from kaged.services.vault import CredentialScope, Vault, VaultLock
from kaged.services.vault_key import (
    PUT_BACK,
    FileRing,
    KeyRing,
    RingStore,
    key_invalid,
    new_ring,
    ring_stores,
)
from kaged.store import Store
from kaged.store.service_call_rows import ServiceCallRows
from kaged.store.service_rows import ServiceRows
from kaged.store.vault_rows import VaultRows

SAMPLES_PER_KEY: Final = 4
"""How many records must fail before a key counts as another one: one may have been altered."""

_NO_KEY: Final = KeyRing("", {})

_log = get_logger("kaged.services")


@dataclass(frozen=True, slots=True)
class AccountMemory:
    """What of the accounts outlives the process."""

    rows: ServiceRows
    calls: ServiceCallRows
    vault: Vault


async def open_memory(
    settings: Settings,
    section: CapabilitiesSection,
    environ: Mapping[str, str],
    store: Store,
    clock: Clock,
) -> AccountMemory:
    """Open the vault where the operator keeps its key, beside what is stored in the open."""
    stores = ring_stores(section.vault_key, settings.vault_key, environ)
    replacement = FileRing(settings.vault_replacement_key)
    vault = await open_vault(VaultRows(store), stores, replacement, clock)
    return AccountMemory(ServiceRows(store), ServiceCallRows(store), vault)


async def open_vault(
    rows: VaultRows, stores: tuple[RingStore, ...], replacement: FileRing, clock: Clock
) -> Vault:
    """Open the vault; a first key is made for one that is empty.

    Whatever is wrong with its key is `Vault.problem` and no error.
    """
    samples = await rows.samples(SAMPLES_PER_KEY)
    found = await asyncio.to_thread(_find_keys, stores, replacement, empty=not samples)
    trial = Vault(rows, found.ring, found.store, clock)
    closed = frozenset(
        key_id for key_id, some in samples.items() if not any(trial.opens(one) for one in some)
    )
    if not closed and found.may_merge:
        ring = await asyncio.to_thread(_merge, found, replacement)
        return Vault(rows, ring, found.store, clock)
    problem = found.problem or _unfit(found)
    ring = await asyncio.to_thread(_replaced, found, replacement)
    locked = {CredentialScope(*one) for one in await rows.keys_sealed_with(closed)}
    _log.error("vault.locked", reason=problem.message, fix=problem.fix, credentials=len(locked))
    return Vault(rows, ring.without(closed), found.store, clock, VaultLock(problem, locked))


@dataclass(frozen=True, slots=True)
class _FoundKeys:
    """The vault's own ring and the replacement, as far as there are any, and what is wrong."""

    own: KeyRing | None
    replacement: KeyRing | None
    store: RingStore
    problem: KagedError | None

    @property
    def ring(self) -> KeyRing:
        """Everything that can be opened."""
        if self.own is None:
            return self.replacement or _NO_KEY
        return self.own.with_keys_of(self.replacement)

    @property
    def may_merge(self) -> bool:
        """Whether the keys may become one ring in the vault's own place.

        Not in place of a file that is there and cannot be read: it may be mended yet.
        """
        return self.problem is None and (self.own is not None or self.replacement is not None)


def _find_keys(stores: tuple[RingStore, ...], replacement: FileRing, *, empty: bool) -> _FoundKeys:
    own, store, problem = None, stores[-1], None
    for one in stores:
        try:
            own, store = one.load(), one
        except KagedError as error:
            problem, store = error, one
        if own is not None or problem is not None:
            break
    spare = None
    try:
        spare = replacement.load()
    except KagedError as error:
        problem = problem or error
    if own is None and spare is None and problem is None and empty:
        own, problem = _first_ring(store)
    return _FoundKeys(own, spare, store, problem)


def _unfit(found: _FoundKeys) -> KagedError:
    place = found.store.place
    if found.own is None:
        message = f"accounts are linked and the key of the vault is missing ({place})"
    else:
        message = f"the key of the vault ({place}) is not the one that accounts were linked with"
    return key_invalid(message, PUT_BACK)


def _first_ring(store: RingStore) -> tuple[KeyRing | None, KagedError | None]:
    ring = new_ring()
    try:
        store.save(ring)
    except KagedError as error:
        return None, error
    return ring, None


def _merge(found: _FoundKeys, replacement: FileRing) -> KeyRing:
    """Put the keys of the replacement into the vault's own place."""
    if found.replacement is not None:
        try:
            found.store.save(found.ring)
        except (KagedError, OSError) as error:  # systemd's cannot be written: both stay in use
            _log.warning("vault.replacement_kept", reason=str(error))
        else:
            replacement.remove()
            _log.info("vault.replacement_merged", place=found.store.place)
    return found.ring


def _replaced(found: _FoundKeys, replacement: FileRing) -> KeyRing:
    """Return a ring whose current key is the replacement's, which is made when there is none."""
    spare = found.replacement
    if spare is None:
        spare = new_ring()
        try:
            # A file that is there cannot be read: nothing is written over it.
            if replacement.is_there():
                return KeyRing("", found.ring.keys)
            replacement.save(spare)
        except (KagedError, OSError) as error:
            _log.error("vault.no_replacement", reason=str(error))
            return KeyRing("", found.ring.keys)
    return spare.with_keys_of(found.own)
