"""Values from the command line: texts and files within a limit, `NAME=VALUE` pairs, JSON."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import typer

from kaged.base import KagedError
from kaged.cli.named_files import open_named

TEXT_LIMIT_BYTES = 1024 * 1024


def read_bytes(file: Path, limit: int = TEXT_LIMIT_BYTES) -> bytes:
    """Read a file, or standard input for `-`, up to a limit."""
    if str(file) == "-":
        data = sys.stdin.buffer.read(limit + 1)
    else:
        with open_named(file) as source:
            data = source.read(limit + 1)
    if len(data) > limit:
        raise typer.BadParameter(f"{file} has more than {limit} bytes")
    return data


def text_or_file(text: str | None, file: Path | None) -> str | None:
    """Return a text from the command line, or from a file; `-` is standard input."""
    if text is not None and file is not None:
        raise typer.BadParameter("give the text or the file, not both")
    return text if file is None else read_text(file)


def read_text(file: Path) -> str:
    """Read a text in UTF-8 from a file, or from standard input for `-`, up to a limit."""
    try:
        return read_bytes(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise KagedError(
            f"{file} is no text in UTF-8: {error.reason} at byte {error.start}.",
            code="invalid_params",
            fix="Convert it to UTF-8.",
        ) from error


def pairs_of(given: list[str] | None) -> list[tuple[str, str]]:
    """Read options of the form NAME=VALUE."""
    pairs: list[tuple[str, str]] = []
    for one in given or ():
        name, equals, text = one.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{one!r} is not NAME=VALUE")
        pairs.append((name, text))
    return pairs


def file_of(path: Path) -> dict[str, str]:
    """Read a file as requests carry it."""
    with open_named(path) as source:
        content = base64.b64encode(source.read()).decode("ascii")
    return {"name": path.name, "content_base64": content}


def plain_value(kind: str | None, text: str) -> Any:
    """Read a value by its type; the daemon reports what does not fit."""
    if kind not in {"number", "integer", "boolean"}:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def json_value(text: str, what: str) -> Any:
    """Read JSON from the command line."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise KagedError(f"{what} is not valid JSON: {error}.", code="invalid_params") from error


def json_object(text: str, what: str) -> dict[str, Any]:
    """Read a JSON object from the command line."""
    found = json_value(text, what)
    if not isinstance(found, dict):
        raise KagedError(
            f"{what} is not a JSON object.",
            code="invalid_params",
            fix="Write it as '{\"key\": 1}'.",
        )
    return found
