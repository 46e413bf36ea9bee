"""`ScriptFolder`: which scripts there are, in the order in which they are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kaged.base.lazy_dataclass import dataclass
from kaged.lua.limits import MAX_SCRIPTS, MAX_SOURCE_BYTES
from kaged.lua.values import from_bytes

SUFFIX: Final = ".lua"


@dataclass(frozen=True, slots=True)
class ScriptFile:
    """One script as it lies on disk. `stem` is its name, for grants and everything else."""

    stem: str
    path: str
    source: str


@dataclass(frozen=True, slots=True)
class FoundScripts:
    """What a look into the folders gave: scripts to load, files that cannot be, others."""

    scripts: tuple[ScriptFile, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    skipped: tuple[str, ...] = ()


def read_folders(folders: Sequence[Path], enabled: Sequence[str] = ()) -> FoundScripts:
    """Read every `*.lua` directly in these folders, in order of the file names.

    An empty `enabled` means all. A second file of the same name is refused: two would share a
    grant.
    """
    files = [path for folder in folders for path in _files(folder)]
    scripts: dict[str, ScriptFile] = {}
    failed: list[tuple[str, str]] = []
    skipped: list[str] = []
    for path in sorted(files, key=lambda one: one.name):
        stem = path.name.removesuffix(SUFFIX)
        if enabled and stem not in enabled:
            skipped.append(stem)
        elif stem in scripts:
            failed.append((str(path), f"{scripts[stem].path} has the same name and came first"))
        elif not stem or stem.startswith("@"):
            failed.append((str(path), "names that begin with @ are reserved"))
        elif len(scripts) >= MAX_SCRIPTS:
            failed.append((str(path), f"no more than {MAX_SCRIPTS} scripts are loaded"))
        else:
            read = _read(path, stem)
            if isinstance(read, str):
                failed.append((str(path), read))
            else:
                scripts[stem] = read
    return FoundScripts(tuple(scripts.values()), tuple(failed), tuple(skipped))


def _files(folder: Path) -> list[Path]:
    try:
        return [one for one in folder.iterdir() if one.name.endswith(SUFFIX) and one.is_file()]
    except OSError:
        return []  # no folder is an empty one


def _read(path: Path, stem: str) -> ScriptFile | str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SOURCE_BYTES + 1)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if len(data) > MAX_SOURCE_BYTES:
        return f"has more than {MAX_SOURCE_BYTES} bytes"
    return ScriptFile(stem, str(path), from_bytes(data))
