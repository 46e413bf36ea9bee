"""`RewritePlan`: the edits of a call, file by file, and how they become new contents."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.toolbox.ast.engine import AstSettings
from kaged.toolbox.ast.sources import Sources
from kaged.workspace import PlannedWrite, Workspace
from kaged.workspace.errors import FileChangedSinceRead


class Edit(NamedTuple):
    """One replacement; offsets in bytes of the original file, lines and columns from 1."""

    byte_start: int
    byte_end: int
    start_line: int
    start_column: int
    end_line: int
    end_column: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class FilePlan:
    """What is to be done to one file, and the hash of the content it was worked out for."""

    index: int
    sha256: str
    edits: tuple[Edit, ...]


class RewritePlan:
    """Collects edits up to the limits; called from the threads that scan, one at a time."""

    def __init__(
        self,
        settings: AstSettings,
        sources: Sources,
        *,
        max_replacements: int | None,
        max_files: int | None,
    ) -> None:
        self._settings = settings
        self._sources = sources
        self._replacements = min(max_replacements or settings.max_changes, settings.max_changes)
        self._files = max_files
        self._hashes: dict[int, str] = {}
        self._found: dict[int, tuple[Edit, ...]] = {}
        self._broken: dict[int, str] = {}
        self._edits = 0
        self.examined = 0

    def read(self, index: int) -> bytes | None:
        """Read a file for the engine; one that cannot be read is noted, an outside one is not."""
        if not self._sources.readable(index):
            return None
        self.examined += 1
        data = self._sources.read(index, self._settings.file_bytes)
        if isinstance(data, str):
            self._broken[index] = data
            return None
        self._hashes[index] = hashlib.sha256(data).hexdigest()
        return data

    def take(self, index: int, result: JsonObject) -> bool:
        """Take the engine's edits of a file; False when the limits are passed."""
        if "broken" in result:
            self._broken[index] = str(result["broken"])
            return True
        edits = cast("list[list[Any]]", result["edits"])
        if edits:
            self._found[index] = tuple(map(Edit._make, edits))
            self._edits += len(edits)
        else:
            del self._hashes[index]
        return self._edits <= self._replacements and (
            self._files is None or len(self._found) <= self._files
        )

    def files(self) -> tuple[list[FilePlan], bool]:
        """Return what is to be done, in the order of paths, and whether the limits cut it."""
        plans: list[FilePlan] = []
        left = self._replacements
        for index in sorted(self._found):
            edits = self._found[index]
            if left == 0 or (self._files is not None and len(plans) == self._files):
                return plans, True
            plans.append(FilePlan(index, self._hashes[index], edits[:left]))
            if len(edits) > left:
                return plans, True
            left -= len(edits)
        return plans, False

    def parse_errors(self) -> list[JsonValue]:
        """Return the files that were left alone, and why."""
        return [
            {"path": self._sources.name(index), "reason": self._broken[index]}
            for index in sorted(self._broken)
        ]


def change_of(path: str, edit: Edit) -> JsonObject:
    """Return an edit as it is returned."""
    places = edit._asdict()
    return {"path": path, "before": places.pop("before"), "after": places.pop("after"), **places}


def new_contents(
    plans: list[FilePlan], sources: Sources, workspace: Workspace
) -> Iterator[PlannedWrite]:
    """Yield the new contents one at a time, each made of the file as it is now. Blocks.

    Raises FileChangedSinceRead when a file is not the one that the edits were worked out for.
    """
    for plan in plans:
        path = sources.project_path(plan.index)
        content = workspace.read_bytes(path)
        if content.sha256 != plan.sha256:
            raise FileChangedSinceRead(path.relative)
        yield PlannedWrite(path, apply_edits(content.data, plan.edits), plan.sha256)


def apply_edits(data: bytes, edits: tuple[Edit, ...]) -> bytes:
    """Put the replacements in; edits are in ascending order and do not overlap."""
    pieces: list[bytes] = []
    done = 0
    for edit in edits:
        pieces += (data[done : edit.byte_start], edit.after.encode())
        done = edit.byte_end
    pieces.append(data[done:])
    return b"".join(pieces)
