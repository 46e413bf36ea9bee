"""`KeptData`: what `uninstall --keep-data` leaves of a plugin, sealed to the files that made it.

It is under a name that no plugin can have until the operator agrees to the very same files again:
tables belong to `KeptData.owner`, the data folder and the record lie in folders of the host's own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.plugins.journal_files import read_json, write_json

FORMAT: Final = 1
OWNER_PREFIX: Final = "~"
"""How the names begin that own what is kept; no plugin's does."""

KEPT_ID: Final = re.compile(r"[0-9a-f]{16}")
SHOWN_DIGEST_CHARS: Final = 12
# The host's own keys, and the grants: those are given anew with the next consent, or not at all.
NOT_KEPT: Final = frozenset({"installed", "local", "enabled", "grants"})


@dataclass(frozen=True, slots=True)
class KeptData:
    """One plugin's tables, data folder and sections of local.toml, and the files they are for.

    With `lost_id` it stands for a record that cannot be read any more: what is left beside that
    record goes by this id, and whose it was is not known. It is never written as a record.
    """

    name: str
    version: str
    digest: str
    kept_at: str
    tables: tuple[str, ...] = ()
    folder: bool = False
    sections: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    lost_id: str = ""

    @property
    def id(self) -> str:
        """The same for the same files of the same name: there is at most one of each."""
        return self.lost_id or kept_id(self.name, self.digest)

    @property
    def owner(self) -> str:
        """Whose the tables are in the meantime; no plugin can have this name."""
        return f"{OWNER_PREFIX}{self.id}"

    @property
    def settings(self) -> tuple[str, ...]:
        """The names of the kept settings and secrets."""
        return tuple(sorted({key for section in self.sections.values() for key in section}))

    def words(self) -> tuple[str, ...]:
        """Return what is kept, in words; empty when nothing is."""
        found: list[str] = []
        if self.tables:
            found.append(f"tables: {', '.join(self.tables)}")
        if self.folder:
            found.append("data folder")
        if self.settings:
            found.append(f"settings: {', '.join(self.settings)}")
        return tuple(found)

    def as_json(self) -> JsonObject:
        """Return what may be shown: no value of a setting."""
        return {
            "name": self.name,
            "version": self.version,
            "digest": self.digest,
            "kept_at": self.kept_at,
            "tables": list(self.tables),
            "folder": self.folder,
            "settings": list(self.settings),
        }

    def as_record(self) -> JsonObject:
        """Return all of it, secrets included, for files that nobody else reads."""
        return cast("JsonObject", msgspec.to_builtins(self))

    @classmethod
    def from_record(cls, data: Any) -> KeptData:
        """Read it back. Raises ValueError when it is none."""
        try:
            found = msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise ValueError("this is no record of kept data") from error
        if found.lost_id and not KEPT_ID.fullmatch(found.lost_id):
            raise ValueError("this is no record of kept data")
        return found


def kept_id(name: str, digest: str) -> str:
    """Return by what the data of these files of a plugin goes."""
    return hashlib.sha256(f"{name}\n{digest}".encode()).hexdigest()[:16]


def kept_settings(section: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return those keys of a section of local.toml that are kept."""
    return {key: value for key, value in section.items() if key not in NOT_KEPT}


class KeptRecords:
    """The records of kept data, one private file each."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def all(self, name: str | None = None) -> tuple[KeptData, ...]:
        """Return what is kept, of all plugins or of one name; oldest first. Blocks."""
        found = [one for one in self._read() if name in {None, one.name}]
        return tuple(sorted(found, key=lambda one: (one.name, one.kept_at, one.version)))

    def write(self, kept: KeptData) -> None:
        """Keep a record, durably."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_json(self._path(kept), {"format": FORMAT, **kept.as_record()})

    def remove(self, kept: KeptData) -> None:
        """Remove a record; one that is not there is fine."""
        self._path(kept).unlink(missing_ok=True)

    def unreadable(self) -> tuple[Path, ...]:
        """Return the records that cannot be read; nobody is given what they are about. Blocks."""
        lost = [path for path in self._paths() if _record_in(path) is None]
        return tuple(sorted(path for path in lost if path.exists()))  # not given back meanwhile

    def _path(self, kept: KeptData) -> Path:
        return self._directory / f"{kept.id}.json"

    def _paths(self) -> Iterator[Path]:
        return (one for one in self._directory.glob("*.json") if KEPT_ID.fullmatch(one.stem))

    def _read(self) -> Iterator[KeptData]:
        for path in self._paths():
            found = _record_in(path)
            if found is not None:
                yield found


def _record_in(path: Path) -> KeptData | None:
    """Return the record in a file; None when it cannot be read, and it is nobody's then."""
    try:
        data = read_json(path)
        if isinstance(data, dict) and data.pop("format", None) == FORMAT:
            found = KeptData.from_record(data)
            return None if found.lost_id else found
    except (OSError, ValueError):
        pass
    return None
