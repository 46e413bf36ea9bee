"""`Vault`: credentials, encrypted under their own key (user, capability, account).

Each record is sealed with AES-256-GCM, and the three parts of its key are what it is bound to: a
record that was altered, or copied over another one, does not open. The keys lie elsewhere
(`vault_key`).
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from kaged.base import Clock, JsonObject, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.services.contract import CredentialHandle
from kaged.services.errors import (
    CapabilityBackendUnavailable,
    CapabilityInvalidInput,
    VaultLocked,
    auth_required,
)
from kaged.services.known_secrets import secret_texts
from kaged.services.secret_search import NO_SECRETS, CallSecrets, SecretForms
from kaged.services.vault_key import KEY_ID_CHARS, KeyRing, RingStore
from kaged.store.service_rows import AccountRow
from kaged.store.vault_rows import VaultRow, VaultRows

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

VERSION: Final = 2  # 1 was the plain form of other hosts; it is read by nobody here
PAYLOAD_LIMIT_BYTES: Final = 256 * 1024
CACHE_LIMIT: Final = 1024
EARLIER_LIMIT: Final = 8
"""How many secrets are still looked for after another credential took their place."""
_NONCE_BYTES: Final = 12


class VaultError(CapabilityBackendUnavailable):
    """A record does not open: it was altered or moved."""

    retryable: ClassVar[bool] = False


class CredentialScope(NamedTuple):
    """Whose credential: all three parts, each from verified data.

    A named tuple and not a dataclass, because every call looks its credential up twice.
    """

    user_id: str
    capability_id: str
    account_ref: str


def scope_of(account: AccountRow) -> CredentialScope:
    """Return where the credential of an account is."""
    return CredentialScope(account.user_id, account.capability_id, account.account_ref)


@dataclass(frozen=True, slots=True)
class _Cached:
    payload: bytes | None
    known: SecretForms
    expires_at_ms: int | None


@dataclass(frozen=True, slots=True)
class VaultLock:
    """Why the vault's own key is not in use, and the credentials that do not open without it."""

    problem: KagedError
    scopes: set[CredentialScope]


class Vault:
    """Reads and writes credentials. Knows at any time which texts must not leave the host."""

    def __init__(
        self,
        rows: VaultRows,
        ring: KeyRing,
        ring_store: RingStore,
        clock: Clock,
        lock: VaultLock | None = None,
    ) -> None:
        self._rows = rows
        self._lock = lock
        self._ring = ring
        self._ring_store = ring_store
        self._clock = clock
        self._ciphers: dict[str, AESGCM] = {}
        # Opened once and kept: every output of a linked account is searched for its secrets.
        self._cache: OrderedDict[CredentialScope, _Cached] = OrderedDict()
        self._locks: WeakValueDictionary[CredentialScope, asyncio.Lock] = WeakValueDictionary()

    @property
    def problem(self) -> KagedError | None:
        """What is wrong with its key; None when nothing is."""
        return None if self._lock is None else self._lock.problem

    @property
    def locked_count(self) -> int:
        """How many credentials do not open because their key is gone."""
        return 0 if self._lock is None else len(self._lock.scopes)

    def is_locked(self, scope: CredentialScope) -> bool:
        """Return whether a credential does not open because its key is gone."""
        return self._lock is not None and scope in self._lock.scopes

    async def get(self, scope: CredentialScope) -> JsonObject | None:
        """Read a credential; None when there is none or it has expired.

        Raises:
            VaultLocked: there is one and its key is gone.
            VaultError: there is one and it does not open.
        """
        cached = await self._load(scope)
        return None if cached.payload is None else msgspec.json.decode(cached.payload)

    async def known(self, scope: CredentialScope) -> SecretForms:
        """Return the texts of a credential that must never be seen in an output."""
        cached = self._cache.get(scope)
        if cached is None:
            cached = await self._load(scope)
        return cached.known

    async def put(
        self, scope: CredentialScope, payload: JsonObject, ttl_s: int | None = None
    ) -> None:
        """Store a credential in place of what was there."""
        text = _encoded(payload)
        now = self._clock.now_ms()
        expires = None if ttl_s is None else now + ttl_s * 1000
        sealed = self.seal(_binding(scope), text)
        key_id = self._ring.current
        before = self._cache.get(scope)
        await self._rows.put(VaultRow(*scope, VERSION, key_id, sealed, now, now, expires))
        self._unlock(scope)
        # A token that was renewed early works for a while yet.
        earlier = () if before is None else before.known.texts[:EARLIER_LIMIT]
        self._remember(scope, text, expires, earlier)

    async def delete(self, scope: CredentialScope) -> bool:
        """Forget a credential; returns whether there was one."""
        self._cache.pop(scope, None)
        gone = await self._rows.delete(*scope)
        self._unlock(scope)
        return gone

    def handle(self, scope: CredentialScope, secrets: CallSecrets) -> CredentialHandle:
        """Return a handle that gives a provider access to this credential and no other.

        Whatever passes through it is among the `secrets` of the call from then on.
        """
        return _Handle(self, scope, secrets)

    def lock(self, scope: CredentialScope) -> asyncio.Lock:
        """Return the lock under which this credential is renewed."""
        found = self._locks.get(scope)
        if found is None:
            found = self._locks[scope] = asyncio.Lock()
        return found

    async def rotate(self) -> int:
        """Seal every record anew with a fresh key and forget the old ones; returns how many.

        A crash in between leaves records of both keys and a ring with both.

        Raises:
            VaultLocked: the key of some of them is gone, or is not kept in its own place.
        """
        if self._lock is not None:
            raise VaultLocked
        wider = self._ring.with_new()
        await asyncio.to_thread(self._ring_store.save, wider)
        self._ring = wider

        def renewed(row: VaultRow) -> VaultRow | None:
            scope = CredentialScope(row.user_id, row.capability_id, row.account_ref)
            text = self.unseal(_binding(scope), row.sealed)
            sealed = self.seal(_binding(scope), text)
            return replace(row, sealed=sealed, key_id=wider.current)

        return await self._rows.rewrite(renewed)

    async def drop_old_keys(self) -> None:
        """Forget the keys that nothing is sealed with any more; after `rotate`."""
        narrow = self._ring.only_current()
        await asyncio.to_thread(self._ring_store.save, narrow)
        self._ring = narrow
        self._ciphers = {}

    # ---- sealing, also for what is kept elsewhere (the state of flows)

    def seal(self, binding: tuple[str, ...], payload: bytes) -> bytes:
        """Encrypt bytes that only open again under the same binding.

        Raises:
            VaultLocked: there is no key, and no place for a new one.
        """
        key_id = self._ring.current
        if not key_id:
            raise VaultLocked
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._cipher(key_id).encrypt(nonce, payload, _aad(key_id, binding))
        return bytes([VERSION]) + key_id.encode("ascii") + nonce + sealed

    def unseal(self, binding: tuple[str, ...], sealed: bytes) -> bytes:
        """Decrypt what `seal` made.

        Raises:
            VaultLocked: the key is gone.
            VaultError: altered, or bound to something else.
        """
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - see _cipher

        start = 1 + KEY_ID_CHARS
        key_id = sealed[1:start].decode("ascii", errors="replace")
        if sealed[:1] != bytes([VERSION]):
            raise VaultError("a stored credential is of another version and is refused")
        if key_id not in self._ring.keys:
            raise VaultLocked
        nonce, rest = sealed[start : start + _NONCE_BYTES], sealed[start + _NONCE_BYTES :]
        try:
            return self._cipher(key_id).decrypt(nonce, rest, _aad(key_id, binding))
        except (InvalidTag, ValueError):
            raise VaultError("a stored credential was altered or moved and is refused") from None

    def opens(self, row: VaultRow) -> bool:
        """Return whether a record opens with these keys."""
        scope = CredentialScope(row.user_id, row.capability_id, row.account_ref)
        try:
            self.unseal(_binding(scope), row.sealed)
        except (VaultError, VaultLocked):
            return False
        return True

    def _cipher(self, key_id: str) -> AESGCM:
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            # The library takes long to load and many hosts never link an account.
            from cryptography.hazmat.primitives.ciphers.aead import (  # noqa: PLC0415 - see above
                AESGCM,
            )

            cipher = self._ciphers[key_id] = AESGCM(self._ring.keys[key_id])
        return cipher

    def _unlock(self, scope: CredentialScope) -> None:
        if self._lock is not None:
            self._lock.scopes.discard(scope)

    async def _load(self, scope: CredentialScope) -> _Cached:
        cached = self._cache.get(scope)
        if cached is not None:
            if cached.expires_at_ms is None or cached.expires_at_ms > self._clock.now_ms():
                self._cache.move_to_end(scope)
                return cached
            await self.delete(scope)
        row = await self._rows.get(*scope)
        if row is not None and (row.expires_at_ms or math.inf) <= self._clock.now_ms():
            await self.delete(scope)
            row = None
        text = None if row is None else self.unseal(_binding(scope), row.sealed)
        return self._remember(scope, text, None if row is None else row.expires_at_ms)

    def _remember(
        self,
        scope: CredentialScope,
        payload: bytes | None,
        expires_at_ms: int | None,
        earlier: tuple[str, ...] = (),
    ) -> _Cached:
        known = NO_SECRETS
        if payload is not None:
            known = SecretForms.of((*secret_texts(msgspec.json.decode(payload)), *earlier))
        cached = self._cache[scope] = _Cached(payload, known, expires_at_ms)
        self._cache.move_to_end(scope)
        while len(self._cache) > CACHE_LIMIT:
            self._cache.popitem(last=False)
        return cached


class _Handle:
    """One credential in the hands of a provider."""

    __slots__ = ("_scope", "_secrets", "_vault")

    def __init__(self, vault: Vault, scope: CredentialScope, secrets: CallSecrets) -> None:
        self._vault = vault
        self._scope = scope
        self._secrets = secrets

    async def get(self) -> JsonObject | None:
        held = await self._vault.get(self._scope)
        self._secrets.add(await self._vault.known(self._scope))
        return held

    async def put(self, payload: JsonObject) -> None:
        self._secrets.learn_credential(payload)
        await self._vault.put(self._scope, payload)

    async def delete(self) -> bool:
        return await self._vault.delete(self._scope)

    async def refresh(
        self, stale: JsonObject, renew: Callable[[JsonObject], Awaitable[JsonObject]]
    ) -> JsonObject:
        async with self._vault.lock(self._scope):
            current = await self._vault.get(self._scope)
            if current is None:  # revoked meanwhile; renewing would bring it back
                raise auth_required("the account is not linked any more")
            if current != stale:  # somebody was faster; a rotating token must not be used twice
                self._secrets.learn_credential(current)
                return current
            fresh = await renew(stale)
            self._secrets.learn_credential(fresh)  # before it is stored: that may fail
            await self._vault.put(self._scope, fresh)
            return fresh


class StagedCredential:
    """What a provider stores while its account has no name yet; kept in memory until linked.

    It is among the `secrets` of the call from then on.
    """

    __slots__ = ("_secrets", "payload")

    def __init__(self, secrets: CallSecrets) -> None:
        self.payload: JsonObject | None = None
        self._secrets = secrets

    async def get(self) -> JsonObject | None:
        """Return what was put."""
        return self.payload

    async def put(self, payload: JsonObject) -> None:
        """Keep it until the account is linked."""
        self._secrets.learn_credential(payload)
        _encoded(payload)
        self.payload = payload

    async def delete(self) -> bool:
        """Forget it."""
        had, self.payload = self.payload is not None, None
        return had

    async def refresh(
        self, stale: JsonObject, renew: Callable[[JsonObject], Awaitable[JsonObject]]
    ) -> JsonObject:
        """Replace it."""
        await self.put(await renew(stale))
        assert self.payload is not None
        return self.payload


def _encoded(payload: JsonObject) -> bytes:
    text = msgspec.json.encode(payload)
    if len(text) > PAYLOAD_LIMIT_BYTES:
        raise CapabilityInvalidInput("the credential is too large for the vault")
    return text


def _binding(scope: CredentialScope) -> tuple[str, ...]:
    return ("credential", *scope)


def _aad(key_id: str, binding: tuple[str, ...]) -> bytes:
    # A JSON array keeps the parts apart whatever characters they hold (SC-ISO-11).
    return json.dumps(["kaged vault", VERSION, key_id, *binding]).encode()
