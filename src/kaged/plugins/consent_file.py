"""`ConsentFile`: the questions that wait for the operator, kept over a restart of the daemon."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

from kaged.base import JsonValue
from kaged.plugins.journal import read_json, write_json

FORMAT: Final = 1


class ConsentFile:
    """One small file in the plugin store; written whole or not at all. Blocks on the disk."""

    def __init__(self, store_directory: Path) -> None:
        self._path = store_directory / ".kaged" / "consents.json"

    def read(self) -> list[Any]:
        """Return what was kept, nothing when there is no file. Raises OSError and ValueError."""
        found = read_json(self._path)
        if found is None:
            return []
        kept = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        requests = kept.get("requests")
        if kept.get("format") != FORMAT or not isinstance(requests, list):
            raise ValueError(f"{self._path} holds no consent requests")
        return cast("list[Any]", requests)

    def write(self, requests: Sequence[JsonValue]) -> None:
        """Keep these. Raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        write_json(self._path, {"format": FORMAT, "requests": list(requests)})
