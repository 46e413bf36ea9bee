"""`ScriptStore`: what a script keeps for later, private to it and to the project; one file each."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Final, cast

from kaged.base import JsonObject, JsonValue
from kaged.config.atomic import replace_file
from kaged.lua.errors import ScriptCallRefused

MAX_STORE_BYTES: Final = 2 * 1024 * 1024
MAX_KEY_CHARS: Final = 200


class ScriptStore:
    """The values of one script in one project, written whole or not at all."""

    def __init__(self, folder: Path, project_id: str, stem: str) -> None:
        name = hashlib.sha256(f"{project_id}\0{stem}".encode(errors="replace")).hexdigest()[:32]
        self._path = folder / f"{name}.json"
        self._lock = asyncio.Lock()
        self._values: JsonObject | None = None

    async def get(self, key: str) -> JsonValue:
        """Return a value, or None."""
        async with self._lock:
            return (await self._read()).get(key)

    async def keys(self) -> list[JsonValue]:
        """Return the names of all values, sorted."""
        async with self._lock:
            return [*sorted(await self._read())]

    async def set(self, key: str, value: JsonValue) -> None:
        """Keep a value. Raises ScriptCallRefused when it is too much."""
        async with self._lock:
            await self._write({**await self._read(), key[:MAX_KEY_CHARS]: value})

    async def delete(self, key: str) -> None:
        """Forget a value; nothing happens when there is none."""
        async with self._lock:
            values = await self._read()
            if key in values:
                await self._write({name: one for name, one in values.items() if name != key})

    async def _read(self) -> JsonObject:
        if self._values is None:
            self._values = await asyncio.to_thread(self._load)
        return self._values

    def _load(self) -> JsonObject:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise ScriptCallRefused(f"what was kept cannot be read: {error}") from error
        return cast("JsonObject", found) if isinstance(found, dict) else {}

    async def _write(self, values: JsonObject) -> None:
        text = json.dumps(values)
        if len(text) > MAX_STORE_BYTES:
            raise ScriptCallRefused(f"a script keeps at most {MAX_STORE_BYTES} bytes")
        await asyncio.to_thread(self._save, text)
        self._values = values

    def _save(self, text: str) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        before = self._path.stat() if self._path.exists() else None
        replace_file(self._path, text.encode(), before)
