"""A child process with a conversation: `PeerProcess`, `Connection`, `RestartPolicy`, `StderrTail`.

Plugins, language servers, debug adapters, MCP servers, Lua workers and bridges are all peers; they
differ in framing and policy only.
"""

from kaged.peer.connection import Connection
from kaged.peer.errors import PeerGone, PeerStalled, PeerTimeout
from kaged.peer.owner import ConnectionLimits, Owner
from kaged.peer.process import PeerProcess
from kaged.peer.restart import Again, GiveUp, RestartPolicy
from kaged.peer.stderr import StderrTail

__all__ = [
    "Again",
    "Connection",
    "ConnectionLimits",
    "GiveUp",
    "Owner",
    "PeerGone",
    "PeerProcess",
    "PeerStalled",
    "PeerTimeout",
    "RestartPolicy",
    "StderrTail",
]
