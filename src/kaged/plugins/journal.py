"""`StoreJournal`: what the store is in the middle of, so that a crash leaves old or new, not half.

An entry is written before the first visible step and removed after the last. Whoever finds one
carries it out again from the beginning; every step does nothing when it was done before.
"""

from __future__ import annotations

import re
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.plugins.journal_files import read_json, write_json
from kaged.plugins.kept import KeptData
from kaged.plugins.treecopy import sync_directory

FORMAT: Final = 1


class JournalOperation(StrEnum):
    """The changes that go through the journal."""

    INSTALL = "install"
    UPGRADE = "upgrade"
    UNINSTALL = "uninstall"
    FORGET = "forget"  # remove data that an uninstalled plugin left by `--keep-data`


@dataclass(frozen=True, slots=True)
class Pin:
    """What the operator agreed to: these files, these capabilities, these projects."""

    name: str
    version: str
    digest: str
    capabilities: tuple[str, ...]
    source: str = ""
    projects: tuple[str, ...] = ()
    approved_at: str = ""
    files: dict[str, str] = field(default_factory=dict[str, str])

    def as_json(self) -> JsonObject:
        """Return the fields as JSON."""
        return cast("JsonObject", msgspec.to_builtins(self))

    @classmethod
    def from_json(cls, data: Any) -> Pin:
        """Read the fields back. Raises ValueError when they are not a pin's."""
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise ValueError("this is no record of consent") from error


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One change: everything that is needed to carry it out, or to take it back."""

    operation: JournalOperation
    name: str
    token: str
    version: str
    local: bool
    pin: Pin | None
    event: str
    event_data: JsonObject
    sections: tuple[str, ...] = ()
    """The sections of local.toml that go with an uninstalled plugin."""
    kept: KeptData | None = None
    """What is kept of an uninstalled plugin, given back to an installed one, or removed."""


class StoreJournal:
    """The file that holds the entry; there is at most one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> JournalEntry | None:
        """Return the entry of an unfinished change, None when there is none.

        Raises:
            ValueError: there is a file, but no entry in it.
        """
        data = read_json(self._path)
        if data is None:
            return None
        try:
            if data["format"] != FORMAT:
                raise ValueError("the journal was written by another version of kaged")
            pin, kept = data["pin"], data.get("kept")
            if kept is not None and kept["name"] != data["name"]:
                raise ValueError("the journal names data of another plugin")
            return JournalEntry(
                operation=JournalOperation(data["operation"]),
                name=_one_name(data["name"]),
                token=_one_name(data["token"]),
                version=str(data["version"]),
                local=bool(data["local"]),
                pin=None if pin is None else Pin.from_json(pin),
                event=str(data["event"]),
                event_data=dict(data["event_data"]),
                sections=tuple(str(one) for one in data.get("sections", ())),
                kept=None if kept is None else KeptData.from_record(kept),
            )
        except (KeyError, TypeError) as error:
            raise ValueError("the journal cannot be read") from error

    def begin(self, entry: JournalEntry) -> None:
        """Write the entry, durably."""
        write_json(
            self._path,
            {
                "format": FORMAT,
                "operation": entry.operation.value,
                "name": entry.name,
                "token": entry.token,
                "version": entry.version,
                "local": entry.local,
                "pin": None if entry.pin is None else entry.pin.as_json(),
                "event": entry.event,
                "event_data": entry.event_data,
                "sections": list(entry.sections),
                "kept": None if entry.kept is None else entry.kept.as_record(),
            },
        )

    def finish(self) -> None:
        """Remove the entry, durably."""
        self._path.unlink(missing_ok=True)
        sync_directory(self._path.parent)


def _one_name(value: Any) -> str:
    """Take text that names one entry of a directory and cannot lead elsewhere."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", value):
        raise ValueError("the journal names something outside the store")
    return value
