"""`read_json`, `write_json`: the small private files of the plugin store, whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from kaged.base import JsonObject
from kaged.plugins.treecopy import sync_directory

MAX_BYTES: Final = 4 * 1024 * 1024


def read_json(path: Path) -> Any:
    """Read a small file of the store; None when there is none. Raises ValueError if it is broken.

    A file that was cut off by a crash cannot be: it is written beside and renamed.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"{path} is too large")
    return json.loads(data)


def write_json(path: Path, value: JsonObject) -> None:
    """Put a small file of the store in place, whole or not at all."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(temporary, flags, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(json.dumps(value, indent=1).encode("utf-8"))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)  # noqa: PTH105 - one name for all renames of the store
    sync_directory(path.parent)
