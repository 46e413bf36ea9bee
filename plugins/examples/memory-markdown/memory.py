"""Memories as Markdown files with front matter: one file each, readable and editable by people."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FORGOTTEN = ".forgotten"
FILE_LIMIT_BYTES = 256 * 1024
_WORD = re.compile(r"\w+")
_KEY = re.compile(r"^([A-Za-z_][\w-]*):[ \t]*(.*)$")


@dataclass(frozen=True)
class Memory:
    """One thing worth remembering."""

    id: str
    content: str
    created: str
    tags: tuple[str, ...] = ()
    context: str = ""
    extra: dict[str, str] = field(default_factory=dict)

    def to_markdown(self) -> str:
        """Write the file's text."""
        head = {"id": self.id, "created": self.created, "tags": f"[{', '.join(self.tags)}]"}
        if self.context:
            head["context"] = " ".join(self.context.split())
        head |= self.extra
        lines = "\n".join(f"{key}: {value}" for key, value in head.items())
        return f"---\n{lines}\n---\n\n{self.content.rstrip()}\n"


def parse_markdown(name: str, text: str) -> Memory:
    """Read a file's text; forgiving, because people edit these files by hand.

    Without front matter the whole text is the memory and the file name its id.
    """
    head: dict[str, str] = {}
    body = text
    if text.startswith("---\n"):
        front, closed, rest = text[4:].partition("\n---")
        if closed:
            body = rest.lstrip("-").lstrip("\n")
            for line in front.splitlines():
                match = _KEY.match(line)
                if match:
                    head[match[1]] = match[2].strip()
    tags = [tag.strip(" \"'") for tag in head.pop("tags", "").strip("[]").split(",")]
    return Memory(
        id=head.pop("id", name),
        content=body.strip(),
        created=head.pop("created", ""),
        tags=tuple(tag for tag in tags if tag),
        context=head.pop("context", ""),
        extra=head,
    )


class MarkdownStore:
    """A folder of memories. Reads what is there each time; people may change it in between."""

    def __init__(self, folder: Path) -> None:
        self.folder = self._folder = folder

    def add(
        self, content: str, tags: tuple[str, ...], context: str, extra: dict[str, str]
    ) -> Memory:
        """Keep a new memory; the file is whole or not there at all."""
        from datetime import UTC, datetime  # noqa: PLC0415 - not needed while waiting

        now = datetime.now(UTC)
        memory = Memory(
            id=f"{now:%Y%m%d-%H%M%S}-{os.urandom(3).hex()}",
            content=content,
            created=now.isoformat(timespec="seconds").replace("+00:00", "Z"),
            tags=tags,
            context=context,
            extra=extra,
        )
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{memory.id}.md"
        draft = path.with_suffix(".tmp")
        with draft.open("w", encoding="utf-8") as file:
            file.write(memory.to_markdown())
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
        return memory

    def all(self) -> list[Memory]:
        """Return every memory, newest first."""
        found = [parse_markdown(path.stem, text) for path, text in self._files()]
        return sorted(found, key=lambda memory: (memory.created, memory.id), reverse=True)

    def find(
        self, query: str, tags: tuple[str, ...], min_score: float
    ) -> list[tuple[float, Memory]]:
        """Return the memories that share words with the query, best first, with scores up to 1.

        A word counts for more the fewer memories have it and the longer it is ("database" says
        more than "we"); a word inside another ("auth" in "authentication") counts half.
        """
        texts = [
            (memory, f"{memory.content} {memory.context} {' '.join(memory.tags)}".lower())
            for memory in self.all()
        ]
        wanted = {word.lower() for word in _WORD.findall(query)}
        words = [set(_WORD.findall(text)) for _, text in texts]
        weight = {
            word: min(len(word), 8) * math.log(2 + len(texts) / (1 + sum(word in w for w in words)))
            for word in wanted
        }
        whole = sum(weight.values()) or 1.0
        scored: list[tuple[float, Memory]] = []
        for (memory, text), own in zip(texts, words, strict=True):
            if not set(tags) <= set(memory.tags):
                continue
            points = sum(
                weight[word] * (1.0 if word in own else 0.5)
                for word in wanted
                if word in own or word in text
            )
            score = points / whole
            if score > 0 and score >= min_score:
                scored.append((score, memory))
        return sorted(scored, key=lambda pair: pair[0], reverse=True)

    def forget(self, memory_id: str) -> bool:
        """Move a memory out of use; its file stays in `.forgotten` for people to find."""
        for path, text in self._files():
            if parse_markdown(path.stem, text).id == memory_id:
                attic = self._folder / FORGOTTEN
                attic.mkdir(exist_ok=True)
                path.rename(attic / path.name)
                return True
        return False

    def tags(self) -> dict[str, int]:
        """Count the memories of each tag."""
        return dict(Counter(tag for memory in self.all() for tag in memory.tags).most_common())

    def _files(self) -> Iterator[tuple[Path, str]]:
        if not self._folder.is_dir():
            return
        for path in sorted(self._folder.glob("*.md")):
            if path.is_file() and path.stat().st_size <= FILE_LIMIT_BYTES:
                yield path, path.read_text(encoding="utf-8", errors="replace")
