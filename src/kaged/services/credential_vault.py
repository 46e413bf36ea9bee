"""`VaultSecrets`: values of credentials at the gate, in the vault that accounts are in.

One sealing, one key, one rotation. Their scope names nobody: no person's id begins with a slash,
so no account of anybody can be looked up as one of these, nor the other way round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from kaged.base import JsonObject
from kaged.config.credentials_section import OAuthClient
from kaged.credentials.secret_keeper import KeeperLocked, TokenRefused
from kaged.services.contract import CredentialHandle
from kaged.services.errors import CapabilityError, VaultLocked
from kaged.services.secret_search import CallSecrets
from kaged.services.vault import CredentialScope, Vault

OWNER: Final = "/credentials"
KIND: Final = "kaged.credential"


class RenewingClient(Protocol):
    """A client of an OAuth server that renews what a handle holds."""

    async def credential(self, credentials: CredentialHandle) -> JsonObject:
        """Return a credential whose access token works for a while yet. Raises CapabilityError."""
        ...


TokenClient: TypeAlias = Callable[[OAuthClient, str | None], RenewingClient]
"""Makes the client of a credential, with the client's secret."""


class VaultSecrets:
    """A `SecretKeeper` over the vault."""

    def __init__(self, vault: Vault, token_client: TokenClient) -> None:
        self._vault = vault
        self._token_client = token_client

    async def get(self, name: str) -> str | None:
        """Return what was put under a name; None when nothing was."""
        try:
            held = await self._vault.get(_scope(name))
        except VaultLocked as error:
            raise _locked(name, error) from error
        value = None if held is None else held.get("secret")
        return value if isinstance(value, str) else None

    async def put(self, name: str, value: str) -> None:
        """Seal a value; as a refresh token it is good for one renewal and what that gives."""
        payload = {"secret": value, "refresh_token": value, "access_token": "", "expires_at_ms": 0}
        try:
            await self._vault.put(_scope(name), dict(payload))
        except VaultLocked as error:
            raise _locked(name, error) from error

    async def delete(self, name: str) -> bool:
        """Forget a value; return whether there was one."""
        return await self._vault.delete(_scope(name))

    async def access_token(
        self, name: str, client: OAuthClient, secret: str | None
    ) -> tuple[str, str] | None:
        """Return an access token, renewed if it ends soon, and the refresh token behind it."""
        if await self.get(name) is None:
            return None
        handle = self._vault.handle(_scope(name), CallSecrets())
        try:
            held = await self._token_client(client, secret).credential(handle)
        except VaultLocked as error:
            raise _locked(name, error) from error
        except CapabilityError as error:
            raise TokenRefused(
                f"The credential {name} got no access token: {error.message}.",
                fix=f"`kaged credential set {name}` sets another refresh token.",
            ) from error
        return str(held["access_token"]), str(held.get("refresh_token", ""))


def _scope(name: str) -> CredentialScope:
    return CredentialScope(OWNER, KIND, name)


def _locked(name: str, error: VaultLocked) -> KeeperLocked:
    return KeeperLocked(
        f"The credential {name} does not open: {error.message}.",
        fix=f"Put the vault's key back from a backup, or `kaged credential set {name}` again.",
    )
