"""`SignInFlow`: one browser on its way to the provider and back, sealed into that browser's cookie.

The daemon keeps nothing for a flow, so that nobody can use up its memory by beginning many, and no
browser can go on with what another began. The key lives as long as the process.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from kaged.base import Clock
from kaged.base.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from joserfc.jwk import OctKey

FLOW_LIFETIME_S: Final = 600
MAX_COOKIE_CHARS: Final = 4096
MAX_USED: Final = 4096

_HEADER: Final = {"alg": "dir", "enc": "A256GCM"}
_RANDOM_BYTES: Final = 32
_VERIFIER_BYTES: Final = 48  # 64 characters; the standard allows 43 to 128


@dataclass(frozen=True, slots=True)
class SignInFlow:
    """What has to come back, and what only the browser's cookie knows."""

    state: str
    nonce: str
    verifier: str
    return_to: str
    host: str
    redirect_uri: str
    expires_at_ms: int

    @classmethod
    def new(cls, clock: Clock, return_to: str, host: str, redirect_uri: str) -> SignInFlow:
        """Begin one."""
        return cls(
            secrets.token_urlsafe(_RANDOM_BYTES),
            secrets.token_urlsafe(_RANDOM_BYTES),
            secrets.token_urlsafe(_VERIFIER_BYTES),
            return_to,
            host,
            redirect_uri,
            clock.now_ms() + FLOW_LIFETIME_S * 1000,
        )


class FlowSealer:
    """Seals flows, and opens each of them once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._made: OctKey | None = None
        self._used: OrderedDict[str, None] = OrderedDict()

    def seal(self, flow: SignInFlow) -> str:
        """Return the cookie's value."""
        import msgspec  # noqa: PLC0415 - heavy, and rarely needed
        from joserfc import jwe  # noqa: PLC0415 - as above

        return jwe.encrypt_compact(_HEADER, msgspec.json.encode(asdict(flow)), self._key())

    def open(self, cookie: str | None, state: str, host: str) -> SignInFlow | None:
        """Return the flow that this browser began, of this state, on this host.

        None for what is anybody else's, is over, or was opened before.
        """
        import msgspec  # noqa: PLC0415 - heavy, and rarely needed
        from joserfc import jwe  # noqa: PLC0415 - as above
        from joserfc.errors import JoseError  # noqa: PLC0415 - as above

        if cookie is None or len(cookie) > MAX_COOKIE_CHARS:
            return None
        try:
            plain = jwe.decrypt_compact(cookie, self._key(), algorithms=list(_HEADER.values()))
            flow = msgspec.json.decode(plain.plaintext or b"", type=SignInFlow)
        except (JoseError, ValueError, TypeError, msgspec.DecodeError):
            return None
        same = secrets.compare_digest(flow.state.encode(), state.encode("utf-8", "replace"))
        if not same or flow.host != host or self._clock.now_ms() >= flow.expires_at_ms:
            return None
        if flow.state in self._used:
            return None
        self._used[flow.state] = None
        if len(self._used) > MAX_USED:
            self._used.popitem(last=False)
        return flow

    def _key(self) -> OctKey:
        from joserfc.jwk import OctKey  # noqa: PLC0415 - heavy, and rarely needed

        if self._made is None:
            self._made = OctKey.generate_key(256)
        return self._made
