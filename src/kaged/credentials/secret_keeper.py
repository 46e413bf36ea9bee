"""`SecretKeeper`: where values of credentials are sealed; the vault of the services provides it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kaged.base import KagedError

if TYPE_CHECKING:
    from kaged.config.credentials_section import OAuthClient


class KeeperLocked(KagedError):
    """The vault's key is gone, so that what it sealed does not open."""

    code = "credential_vault_locked"


class TokenRefused(KagedError):
    """The authorization server gave no access token."""

    code = "credential_token_refused"


class SecretKeeper(Protocol):
    """Seals one text per credential, each bound to its name."""

    async def get(self, name: str) -> str | None:
        """Return what was put under a name; None when nothing was. Raises KeeperLocked."""
        ...

    async def put(self, name: str, value: str) -> None:
        """Seal a value in place of what was there. Raises KeeperLocked."""
        ...

    async def delete(self, name: str) -> bool:
        """Forget a value; return whether there was one."""
        ...

    async def access_token(
        self, name: str, client: OAuthClient, secret: str | None
    ) -> tuple[str, str] | None:
        """Return an access token that works for a while yet, and the refresh token behind it.

        None when no refresh token was put under the name. Raises KeeperLocked, and TokenRefused
        when the server gives none.
        """
        ...
