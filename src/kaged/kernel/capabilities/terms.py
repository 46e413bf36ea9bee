"""The terms of a manifest capability list, as values: what can be asked for, and its one spelling.

`covers` compares two single terms; `kaged.kernel.capabilities.sets` compares whole lists, where a
narrower `read:fs` inside a wider `write:fs` takes something away.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.net import NetTarget
from kaged.kernel.paths import AbsPath, within
from kaged.kernel.policy import FsMode


class PathBase(StrEnum):
    """What a path in a capability starts from."""

    HOST = "host"
    CONFIG = "config"
    PROJECT = "project"


class StorageAccess(StrEnum):
    """What a plugin may do with its own tables in the host's storage; write includes read."""

    READ = "read"
    WRITE = "write"


class EventsAccess(StrEnum):
    """What a plugin may do with the events between plugins; neither includes the other."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"


@dataclass(frozen=True, slots=True)
class CapabilityPath:
    """A path in a capability: absolute on the host, or below `config:` or `project:`."""

    base: PathBase
    path: AbsPath

    @property
    def text(self) -> str:
        """The path as it is written: `/x`, `config:/x` or `project:/x`."""
        return self.path if self.base is PathBase.HOST else f"{self.base}:{self.path}"

    def contains(self, other: CapabilityPath) -> bool:
        """Return whether `other` is this path or lies below it; the three bases never meet."""
        return self.base is other.base and within(other.path, self.path)


@dataclass(frozen=True, slots=True)
class FsCapability:
    """`read:fs:<path>` or `write:fs:<path>`."""

    mode: FsMode
    place: CapabilityPath

    @property
    def text(self) -> str:
        """The capability in its normalised spelling."""
        return f"{'write' if self.mode is FsMode.RW else 'read'}:fs:{self.place.text}"


@dataclass(frozen=True, slots=True)
class ExecCapability:
    """`exec:<binary>:<path>`: one program by name, and the directory it works in."""

    binary: str
    place: CapabilityPath

    @property
    def text(self) -> str:
        """The capability in its normalised spelling."""
        return f"exec:{self.binary}:{self.place.text}"


@dataclass(frozen=True, slots=True)
class NetCapability:
    """`net:<host>:<port>`, `net:<host>:*` or `net:*`."""

    target: NetTarget

    @property
    def text(self) -> str:
        """The capability in its normalised spelling."""
        return f"net:{self.target.text}"


@dataclass(frozen=True, slots=True)
class NoNetCapability:
    """`net:[]`: says that no network is wanted."""

    @property
    def text(self) -> str:
        """The capability in its normalised spelling."""
        return "net:[]"


@dataclass(frozen=True, slots=True)
class StorageCapability:
    """`kaged:storage:read` or `kaged:storage:write`."""

    access: StorageAccess

    @property
    def text(self) -> str:
        """The capability in its normalised spelling."""
        return f"kaged:storage:{self.access}"


@dataclass(frozen=True, slots=True)
class EventsCapability:
    """`kaged:events:publish` or `kaged:events:subscribe`."""

    access: EventsAccess

    @property
    def text(self) -> str:
        """The capability in its normalised spelling."""
        return f"kaged:events:{self.access}"


ManifestCapability: TypeAlias = (
    FsCapability
    | ExecCapability
    | NetCapability
    | NoNetCapability
    | StorageCapability
    | EventsCapability
)


def covers(one: ManifestCapability, other: ManifestCapability) -> bool:
    """Return whether the term `one` alone gives at least what the term `other` alone gives."""
    match one, other:
        case _, NoNetCapability():
            return True
        case FsCapability(), FsCapability():
            enough = one.mode is FsMode.RW or other.mode is FsMode.RO
            return enough and one.place.contains(other.place)
        case ExecCapability(), ExecCapability():
            return one.binary == other.binary and one.place.contains(other.place)
        case NetCapability(), NetCapability():
            return one.target.covers(other.target)
        case StorageCapability(), StorageCapability():
            return one.access is StorageAccess.WRITE or other.access is StorageAccess.READ
        case EventsCapability(), EventsCapability():
            return one == other
        case _:
            return False
