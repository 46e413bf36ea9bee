"""Who a cage runs as, outside: the daemon's own user, a user apart, or uid 0 as a fallback."""

from __future__ import annotations

import os
import posixpath
import stat
from enum import StrEnum
from pathlib import Path

from kaged.base.lazy_dataclass import dataclass
from kaged.cage.facts import HostFacts
from kaged.cage.grants import OpenGrant
from kaged.kernel.policy import FsMode

# Beyond every range that distributions, containers and systemd give out.
UID_BASE = 1_879_100_000
UID_COUNT = 60_000


class IdentityKind(StrEnum):
    """The three rows of "who the cage runs as"."""

    DAEMON_USER = "daemon-user"
    SEPARATE_USER = "separate-user"
    ROOT_SHOWN_AS_USER = "root-shown-as-user"


class IdentityMode(StrEnum):
    """What the operator wants a root daemon to do."""

    AUTO = "auto"
    SEPARATE = "separate"
    ROOT = "root"


@dataclass(frozen=True, slots=True)
class Identity:
    """The real uid and gid of a cage's processes, and why these."""

    kind: IdentityKind
    uid: int
    gid: int
    why: str = ""

    @property
    def switches(self) -> bool:
        """Whether bwrap must be started as another user than the daemon."""
        return self.kind is IdentityKind.SEPARATE_USER


def choose_identity(
    facts: HostFacts,
    mode: IdentityMode,
    grants: tuple[OpenGrant, ...],
    sources: tuple[str, ...],
    slot: int,
    writable: tuple[str, ...] = (),
) -> Identity:
    """Choose who a cage runs as. `slot` is a free number.

    `sources` are host paths it shows beside its grants, `writable` those that it may change.

    A daemon of an ordinary user has no choice. A root daemon gives each cage a plain uid of its own
    when that user can reach everything the cage shows; a cage with writable grants runs as their
    owner. Otherwise it stays uid 0 for the kernel, shown as 1000 inside.
    """
    if not facts.is_root:
        return Identity(IdentityKind.DAEMON_USER, facts.uid, facts.gid)
    if mode is IdentityMode.ROOT:
        return _root("the operator chose it")
    if facts.setpriv is None:
        return _root("setpriv is not installed")
    uid, gid, why = _candidate(grants, slot, writable)
    if uid == 0:
        return _root(why)
    for path in {*sources, *writable, *(grant.path for grant in grants)}:
        blocked = _blocked(path, uid, gid)
        if blocked is not None:
            return _root(f"uid {uid} cannot reach {blocked}")
    return Identity(IdentityKind.SEPARATE_USER, uid, gid)


def can_reach(identity: Identity, path: str) -> bool:
    """Return whether a cage's user gets as far as a path, whatever it may do with it there."""
    folder = posixpath.dirname(path)
    return not identity.switches or _blocked(folder, identity.uid, identity.gid, 0o1) is None


def _candidate(
    grants: tuple[OpenGrant, ...], slot: int, writable: tuple[str, ...]
) -> tuple[int, int, str]:
    owners: dict[str, tuple[int, int]] = {
        grant.path: (grant.owner_uid, grant.owner_gid)
        for grant in grants
        if grant.mode is FsMode.RW
    }
    for path in writable:
        entry = Path(path).stat()
        owners[path] = (entry.st_uid, entry.st_gid)
    if not owners:
        uid = UID_BASE + slot % UID_COUNT
        return uid, uid, ""
    if len({uid for uid, _ in owners.values()}) > 1:
        return 0, 0, "its writable paths have different owners"
    uid, gid = next(iter(owners.values()))
    return uid, gid, f"{next(iter(owners))} is writable and belongs to root"


def _blocked(path: str, uid: int, gid: int, wanted: int | None = None) -> str | None:
    """Return the first part of a path that a user may not enter or read."""
    end = 0
    while end != len(path):
        end = path.find("/", end + 1)
        end = len(path) if end < 0 else end
        walked = path[:end]
        try:
            entry = os.stat(walked)  # noqa: PTH116 - a dozen of these precede each start
        except (OSError, ValueError):  # not there, or no path at all: what compiles it says so
            return walked
        needed = _wanted(entry, last=end == len(path)) if wanted is None else wanted
        if not _permits(entry, uid, gid, needed):
            return walked
    return None


def _wanted(entry: os.stat_result, *, last: bool) -> int:
    if not stat.S_ISDIR(entry.st_mode):
        return 0o4
    return 0o5 if last else 0o1


def _permits(entry: os.stat_result, uid: int, gid: int, wanted: int) -> bool:
    mode = stat.S_IMODE(entry.st_mode)
    if entry.st_uid == uid:
        mode >>= 6
    elif entry.st_gid == gid:
        mode >>= 3
    return mode & wanted == wanted


def _root(why: str) -> Identity:
    return Identity(IdentityKind.ROOT_SHOWN_AS_USER, 0, 0, why)
