"""`Prompt`: an agent's system prompt, written in the project file or in a file of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.config.files import MAX_FILE_BYTES, read_text
from kaged.config.nodes import Node
from kaged.config.problems import ConfigFileInvalid
from kaged.config.projectpaths import (
    CONFIG_PREFIX,
    KAGED_DIR,
    ProjectPathInvalid,
    is_location,
    parse_location,
)
from kaged.config.reading import INVALID, DocumentPosition, NoValue
from kaged.config.shapes import Shape, TextShape

MAX_PROMPT_BYTES: Final = MAX_FILE_BYTES
_TEXT: Final = TextShape(max_chars=MAX_PROMPT_BYTES, one_line=False)
_FILE_ENDINGS: Final = (".md", ".txt", ".prompt", ".mdx")


@dataclass(frozen=True, slots=True)
class Prompt:
    """The text of a prompt; `location` is the file it came from, None when written in place."""

    text: str
    location: str | None = None


@dataclass(frozen=True, slots=True)
class PromptShape(Shape[Prompt]):
    """Text, or the location of a text file: `project:/x` (from the root), `config:/x` (.kaged)."""

    WORDS = "text, or `project:/file` or `config:/file`"

    def read(self, node: Node, place: DocumentPosition) -> Prompt | NoValue:
        """Read the text, and the file if a location is given."""
        text = _TEXT.read(node, place)
        if isinstance(text, NoValue):
            return INVALID
        if not text.strip():
            return place.error(node, "may not be blank")
        if is_location(text):
            return _read_file(text, node, place)
        if "\n" not in text.strip() and " " not in text and text.endswith(_FILE_ENDINGS):
            place.warn(
                node,
                f"{place.show(text)} is taken as the prompt itself, not as a file",
                f"to use the file write project:/{text.removeprefix('./').lstrip('/')}",
                "prompt_looks_like_path",
            )
        return Prompt(text)

    def schema(self, defs: JsonObject) -> JsonObject:
        """Return a string schema."""
        return {"type": "string", "minLength": 1}


def _read_file(location: str, node: Node, place: DocumentPosition) -> Prompt | NoValue:
    try:
        relative = parse_location(location)
    except ProjectPathInvalid as error:
        return place.error(node, f"{location}: {error.message}", error.fix or "", "bad_location")
    root = place.reading.root
    if root is None:
        return Prompt("", location)
    base = root / KAGED_DIR if location.startswith(CONFIG_PREFIX) else root
    try:
        found = read_text(
            Path(root, relative),
            limit_bytes=MAX_PROMPT_BYTES,
            inside=base,
            fix_missing="create the file, or write the prompt in place",
        )
    except ConfigFileInvalid as error:
        for problem in error.problems:
            where = f"line {problem.line} of " if problem.line is not None else ""
            place.error(node, f"{where}{location} {problem.message}", problem.fix, problem.code)
        return INVALID
    if not found.text.strip():
        return place.error(node, f"{location} is blank", "write the prompt into it")
    return Prompt(found.text, location)
