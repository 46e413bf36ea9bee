"""Search by meaning, where the operator names a service for embeddings (`POST …/embeddings`).

A memory's vector lies beside its file and is made anew when a person has edited the text. Without
the service, or while it cannot be reached, memories are found by their words alone.
"""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any

from memory import Memory

from kaged.sdk.http_request import HttpUnreachable, http_request

FOLDER = ".vectors"
BATCH = 64
TEXT_CHARS = 8000
ALIKE = 0.35
"""Below this two texts have nothing to do with each other, whatever the model."""


class Embeddings:
    """The vectors of one folder of memories."""

    def __init__(self, folder: Path, url: str, model: str, token: str) -> None:
        self._folder = folder / FOLDER
        self._url, self._model, self._token = url.rstrip("/"), model, token

    def alike(self, query: str, memories: list[Memory]) -> dict[str, float]:
        """Return how alike to a text each memory is, by id, where it is at all.

        Raises HttpUnreachable.
        """
        known = {one.id: self._read(one) for one in memories}
        missing = [one for one in memories if not known[one.id]][: BATCH - 1]
        asked, *made = self._embed([query, *(one.content for one in missing)])
        for one, vector in zip(missing, made, strict=True):
            self._write(one, vector)
            known[one.id] = vector
        scores = {name: _cosine(asked, vector) for name, vector in known.items() if vector}
        return {name: score for name, score in scores.items() if score >= ALIKE}

    def _embed(self, texts: list[str]) -> list[list[float]]:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        body = {"model": self._model, "input": [one[:TEXT_CHARS] for one in texts]}
        answer = http_request("POST", f"{self._url}/embeddings", headers, body)
        said = answer.json()
        rows = said.get("data") if isinstance(said, dict) else None
        if answer.status != 200 or not isinstance(rows, list) or len(rows) != len(texts):
            raise HttpUnreachable(f"the service for embeddings answered {answer.status}")
        try:
            ordered = sorted(rows, key=lambda one: int(one["index"]))
            return [[float(number) for number in one["embedding"]] for one in ordered]
        except (KeyError, TypeError, ValueError):
            raise HttpUnreachable("the service for embeddings gave no vectors") from None

    def _read(self, memory: Memory) -> list[float]:
        try:
            kept: Any = json.loads((self._folder / f"{memory.id}.json").read_text("utf-8"))
            same = kept["of"] == self._mark(memory)
            return [float(one) for one in kept["vector"]] if same else []
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def _write(self, memory: Memory, vector: list[float]) -> None:
        if "/" in memory.id or memory.id.startswith("."):
            return  # an id that a person wrote by hand
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{memory.id}.json"
        draft = path.with_suffix(".tmp")
        text = json.dumps({"of": self._mark(memory), "vector": vector})
        draft.write_text(text, encoding="utf-8")
        draft.rename(path)

    def _mark(self, memory: Memory) -> str:
        return f"{self._model}:{zlib.crc32(memory.content.encode('utf-8', 'replace')):08x}"


def _cosine(one: list[float], other: list[float]) -> float:
    if len(one) != len(other):
        return 0.0
    sizes = math.hypot(*one) * math.hypot(*other)
    return sum(a * b for a, b in zip(one, other, strict=True)) / sizes if sizes else 0.0
