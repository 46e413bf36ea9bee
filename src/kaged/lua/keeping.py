"""`ScriptStore`: what a script keeps for later, private to it and to the project; one file each.

The script's worker holds the values while it runs and sends what changed when a handler ends, so
that a hundred thousand changes are one write. Here a value is the JSON text that the worker made.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from itertools import islice
from pathlib import Path
from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.config.atomic import replace_file
from kaged.lua.errors import ScriptCallRefused

MAX_STORE_BYTES: Final = 2 * 1024 * 1024
MAX_NAME_BYTES: Final = 200
AT_ONCE: Final = 2000
"""How many values one message carries, in either direction."""


class ScriptStore:
    """The values of one script in one project, written whole or not at all."""

    def __init__(self, folder: Path, project_id: str, stem: str) -> None:
        name = hashlib.sha256(f"{project_id}\0{stem}".encode(errors="replace")).hexdigest()[:32]
        self._path = folder / f"{name}.json"
        self._lock = asyncio.Lock()
        self._values: dict[str, str] | None = None

    async def load(self, start: int) -> JsonObject:
        """Return some values from a place on, and whether there are more."""
        async with self._lock:
            values = await self._read()
            some = dict(islice(values.items(), start, start + AT_ONCE))
            return {"values": {**some}, "more": start + AT_ONCE < len(values)}

    async def change(self, new: JsonObject, gone: list[JsonValue], *, more: bool) -> None:
        """Take some changes; with `more` to come, they are not written yet.

        Raises:
            ScriptCallRefused: they are no texts by short names, or too much.
        """
        if not all(_is_name(name) and isinstance(text, str) for name, text in new.items()):
            raise ScriptCallRefused("kage.store: values must be texts by short names")
        async with self._lock:
            values = await self._read()
            for name in gone:
                values.pop(str(name), None)
            values.update({name: text for name, text in new.items() if isinstance(text, str)})
            if sum(map(len, values)) + sum(map(len, values.values())) > MAX_STORE_BYTES:
                self._values = None  # what is on the disk counts again
                raise ScriptCallRefused(f"a script keeps at most {MAX_STORE_BYTES} bytes")
            if not more:
                await asyncio.to_thread(self._save, dict(values))

    async def _read(self) -> dict[str, str]:
        if self._values is None:
            self._values = await asyncio.to_thread(self._load)
        return self._values

    def _load(self) -> dict[str, str]:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise ScriptCallRefused(f"what was kept cannot be read: {error}") from error
        if not isinstance(found, dict):
            return {}
        return {str(name): text for name, text in found.items() if isinstance(text, str)}

    def _save(self, values: dict[str, str]) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        before = self._path.stat() if self._path.exists() else None
        # Value by value: one call for all of them would keep the interpreter for itself.
        rows = [f"{json.dumps(name)}:{json.dumps(text)}" for name, text in values.items()]
        replace_file(self._path, ("{" + ",\n".join(rows) + "}\n").encode(), before)


def _is_name(name: str) -> bool:
    return len(name.encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES
