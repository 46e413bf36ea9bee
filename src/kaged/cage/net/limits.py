"""`GateLimits`: how much one cage may ask of the gate."""

from __future__ import annotations

from kaged.base.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class GateLimits:
    """Every bound of the gate in one value, so that tests can make them small.

    `connections` counts all open connections of one cage, those still in a proxy handshake
    included; `handshakes` and `lookups` bound the two kinds of waiting that cost the daemon most.
    """

    connections: int = 256
    handshakes: int = 64
    lookups: int = 8
    total_connections: int = 4096
    header_bytes: int = 8192
    handshake_s: float = 10.0
    resolve_s: float = 10.0
    connect_s: float = 15.0
    half_closed_s: float = 120.0
    names: int = 8192
    denials_per_window: int = 64
    denial_window_s: float = 10.0


# Sizes that no test needs to change.
RELAY_CHUNK_BYTES = 256 * 1024
LISTEN_BACKLOG = 256
ACCEPT_BATCH = 32
DNS_BATCH = 32
MAX_LISTENERS = 512
MAX_GRANTED_NAMES = 4096
MAX_CANDIDATES = 8
