"""What an editor sends with a prompt, as the text of a message."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from acp.schema import (
    EmbeddedResourceContentBlock,
    ResourceContentBlock,
    TextContentBlock,
    TextResourceContents,
)

from kaged.cli.acp.link import bad_request

MAX_PROMPT_CHARS: Final = 500_000


def prompt_text(blocks: Sequence[Any], root: Path) -> str:
    """Return the blocks of a prompt as one text, files named as the agent names them.

    Raises:
        RequestError: a block is of a kind that was not offered, or all of it is too long.
    """
    text = "".join(_text(block, root) for block in blocks).strip()
    if not text:
        raise bad_request("The prompt is empty.")
    if len(text) > MAX_PROMPT_CHARS:
        raise bad_request(f"A prompt may have {MAX_PROMPT_CHARS} characters.")
    return text


def _text(block: Any, root: Path) -> str:
    match block:
        case TextContentBlock():
            return block.text
        case ResourceContentBlock():
            return f" {_place(block.uri, root)} "
        case EmbeddedResourceContentBlock(resource=TextResourceContents() as inside):
            fence = _fence(inside.text)
            return f"\n\n{_place(inside.uri, root)}:\n{fence}\n{inside.text}\n{fence}\n\n"
        case _:
            raise bad_request(f"Prompts with {block.type} blocks are not supported.")


def _place(uri: str, root: Path) -> str:
    """Return a file of the project by its path there; anything else as it is."""
    found = urlsplit(uri)
    if found.scheme != "file":
        return uri
    path = Path(unquote(found.path))
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _fence(text: str) -> str:
    """Return a fence that does not occur in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return fence
