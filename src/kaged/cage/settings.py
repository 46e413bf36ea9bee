"""`CageSettings`: what the composition root tells the spawner about this daemon."""

from __future__ import annotations

from pathlib import Path

from kaged.base.lazy_dataclass import dataclass
from kaged.cage.identity import IdentityMode


@dataclass(frozen=True, slots=True)
class CageSettings:
    """Where cages keep their cache, what they may never show, and what the operator chose.

    `protected` are the daemon's home, database, sockets, configuration and the plugins directory.
    `cache_dir` should be reachable by other users when the daemon is root, or every cage falls
    back to running as uid 0. `ask_systemd` lets systemd move this process into a scope of its own
    when its present group is not its to divide. With `require_limits` nothing starts where the
    limits are weaker than promised. `bwrap` and `search_path` override what is found.
    `allow_protected` are pairs of a project's folder and a path in it that the operator took out of
    the protected paths; `kept_in` is where goes what is taken back (the cache when it is None).
    """

    cache_dir: Path
    protected: tuple[str, ...] = ()
    identity: IdentityMode = IdentityMode.AUTO
    allow_cgroups: bool = True
    ask_systemd: bool = False
    require_limits: bool = False
    bwrap: str | None = None
    search_path: str | None = None
    allow_protected: tuple[tuple[str, str], ...] = ()
    refuse_reviewed: bool = False
    kept_in: Path | None = None
