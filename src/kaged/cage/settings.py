"""`CageSettings`: what the composition root tells the spawner about this daemon."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kaged.cage.identity import IdentityMode


@dataclass(frozen=True, slots=True)
class CageSettings:
    """Where cages keep their cache, what they may never show, and what the operator chose.

    `protected` are the daemon's home, database, sockets, configuration and the plugins directory.
    `cache_dir` should be reachable by other users when the daemon is root, or every cage falls
    back to running as uid 0. `ask_systemd` lets systemd move this process into a scope of its own
    when its present group is not its to divide. `bwrap` and `search_path` override what is found.
    """

    cache_dir: Path
    protected: tuple[str, ...] = ()
    identity: IdentityMode = IdentityMode.AUTO
    allow_cgroups: bool = True
    ask_systemd: bool = False
    bwrap: str | None = None
    search_path: str | None = None
