"""The scoreboard: rows and curves of benchmarks, their peers, the table, the page and its plots."""

from __future__ import annotations

from scoreboard.curve import Curve, Point
from scoreboard.options import counts, quick
from scoreboard.peers import PeerMissing, PeerProcess, peer_environment, peer_program
from scoreboard.row import Row, Target, at_least, at_most, peer_missing, row
from scoreboard.table import show

__all__ = [
    "Curve",
    "PeerMissing",
    "PeerProcess",
    "Point",
    "Row",
    "Target",
    "at_least",
    "at_most",
    "counts",
    "peer_environment",
    "peer_missing",
    "peer_program",
    "quick",
    "row",
    "show",
]
