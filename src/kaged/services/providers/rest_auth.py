"""How an HTTP API is shown whose call it is: `RestCredentials` puts a credential into a request."""

from __future__ import annotations

import base64
import re
from enum import StrEnum
from typing import Final

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.services.errors import CapabilityInvalidInput

_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_PREFIX: Final = re.compile(r"[!-~][ -~]{0,63}|")
_QUERY: Final = re.compile(r"[A-Za-z0-9_.~-]{1,64}")
# What the connection itself needs, or what would speak for another site.
_NOT_HEADERS: Final = frozenset(
    {"host", "content-length", "content-type", "connection", "transfer-encoding", "cookie", "te",
     "upgrade", "trailer", "expect", "idempotency-key"}
)  # fmt: skip


class RestAuth(StrEnum):
    """How the API knows whose call it is."""

    OAUTH = "oauth"
    TOKEN = "token"  # noqa: S105 - the word for a kind of access, not a secret
    HEADER = "header"
    QUERY = "query"
    BASIC = "basic"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class RestCredentials:
    """Where a credential goes: a bearer token, a header, a query parameter, or Basic.

    `header` and `prefix` are those of `RestAuth.HEADER`, `query` is that of `RestAuth.QUERY`.
    """

    auth: RestAuth
    header: str | None = None
    prefix: str = ""
    query: str | None = None

    def __post_init__(self) -> None:
        if (self.auth is RestAuth.HEADER) != (self.header is not None):
            raise CapabilityInvalidInput('auth = "header" needs auth_header, and only that does')
        if (self.auth is RestAuth.QUERY) != (self.query is not None):
            raise CapabilityInvalidInput('auth = "query" needs auth_query, and only that does')
        if self.header is not None:
            require_header(self.header)
        if self.prefix and self.auth is not RestAuth.HEADER:
            raise CapabilityInvalidInput('auth_prefix is for auth = "header" only')
        if _PREFIX.fullmatch(self.prefix) is None:
            raise CapabilityInvalidInput("auth_prefix is a short printable text")
        if self.query is not None and _QUERY.fullmatch(self.query) is None:
            raise CapabilityInvalidInput("auth_query is not the name of a parameter")

    def parts(self, held: JsonObject) -> tuple[dict[str, str], list[tuple[str, str]]]:
        """Return the headers and the query parameters that a credential becomes."""
        secret = str(held.get("access_token" if self.auth is RestAuth.OAUTH else "password"))
        match self.auth:
            case RestAuth.NONE:
                return {}, []
            case RestAuth.OAUTH | RestAuth.TOKEN:
                return {"Authorization": f"Bearer {secret}"}, []
            case RestAuth.HEADER:
                return {str(self.header): f"{self.prefix}{secret}"}, []
            case RestAuth.QUERY:
                return {}, [(str(self.query), secret)]
            case RestAuth.BASIC:
                pair = f"{held.get('username')}:{secret}".encode()
                return {"Authorization": f"Basic {base64.b64encode(pair).decode('ascii')}"}, []


BEARER_OF_OAUTH: Final = RestCredentials(RestAuth.OAUTH)


def require_header(name: str) -> str:
    """Return the name of a header that a provider may set. Raises CapabilityInvalidInput."""
    if _HEADER.fullmatch(name) is None or name.lower() in _NOT_HEADERS:
        raise CapabilityInvalidInput(f"not a header that can be set: {name[:64]!r}")
    return name
