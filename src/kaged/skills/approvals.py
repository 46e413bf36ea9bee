"""`SkillApprovals`: to which skills, exactly as they are, the operator has agreed; one file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final, cast

FORMAT: Final = 1
MAX_FILE_BYTES: Final = 8 * 1024 * 1024


class SkillApprovals:
    """Digests of agreed skills, by owner (`operator` or a project's id) and name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._agreed: dict[str, str] = {}

    def load(self) -> None:
        """Read the file; nothing is agreed to when there is none. Raises OSError, ValueError."""
        try:
            raw = self._path.read_bytes()[: MAX_FILE_BYTES + 1]
        except FileNotFoundError:
            return
        found: Any = json.loads(raw)
        kept = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        agreed: Any = kept.get("agreed")
        if kept.get("format") != FORMAT or not isinstance(agreed, dict):
            raise ValueError(f"{self._path} holds no approvals")
        self._agreed = {str(key): str(digest) for key, digest in agreed.items()}

    def digest_of(self, owner: str, name: str) -> str | None:
        """Return what was agreed to under this name; None when nothing was."""
        return self._agreed.get(f"{owner}/{name}")

    def agree(self, owner: str, name: str, digest: str) -> None:
        """Keep an agreement, in place of an earlier one. Blocks on the disk. Raises OSError."""
        agreed = {**self._agreed, f"{owner}/{name}": digest}
        self._write(agreed)
        self._agreed = agreed

    def _write(self, agreed: dict[str, str]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        text = json.dumps({"format": FORMAT, "agreed": agreed}, indent=1, sort_keys=True)
        beside = self._path.with_suffix(".new")
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.chmod(0o600)
        beside.replace(self._path)
