"""Why a conversation with a peer gave no answer."""

from __future__ import annotations

from kaged.base import KagedError


class PeerGone(KagedError):
    """The process ended, or its streams closed, before the answer came."""

    code = "peer_gone"


class PeerTimeout(KagedError):
    """No answer within the time the caller gave."""

    code = "peer_timeout"


class PeerStalled(KagedError):
    """The peer does not read what we write; nothing more is queued for it."""

    code = "peer_stalled"
