"""Paths as project files write them: `./src`, `project:/docs`, `config:/prompts/a.md`."""

from __future__ import annotations

from typing import Final

from kaged.base import KagedError
from kaged.kernel.paths import PathInvalid, normalise

KAGED_DIR: Final = ".kaged"
"""The directory of a project that belongs to kaged; `config:/` in a project file means it."""

PROJECT_PREFIX: Final = "project:"
CONFIG_PREFIX: Final = "config:"


class ProjectPathInvalid(KagedError):
    """The text names no place inside the project."""

    code = "project_path_invalid"


def is_location(text: str) -> bool:
    """Return whether a text names a file of the project (`project:/…`, `config:/…`)."""
    one_line = "\n" not in text and "\r" not in text
    return one_line and text.startswith((f"{PROJECT_PREFIX}/", f"{CONFIG_PREFIX}/"))


def parse_location(text: str) -> str:
    """Turn `project:/x` into `x` and `config:/x` into `.kaged/x`, relative to the project root.

    Raises:
        ProjectPathInvalid: another prefix, or a path that would leave its base.
    """
    for prefix, base in ((PROJECT_PREFIX, ""), (CONFIG_PREFIX, KAGED_DIR)):
        if text.startswith(f"{prefix}/"):
            inner = _below(text.removeprefix(prefix))
            return f"{base}/{inner}".strip("/") or "."
    raise ProjectPathInvalid(
        "names no file of the project", fix="begin it with project:/ or config:/"
    )


def parse_project_path(text: str) -> str:
    """Normalise a path relative to the project root; `.` is the root itself.

    Glob characters pass; what they match is decided where the disk is known.

    Raises:
        ProjectPathInvalid: absolute, leaving the project, or no path at all.
    """
    if text.startswith((f"{PROJECT_PREFIX}/", f"{CONFIG_PREFIX}/")):
        return parse_location(text)
    if text.startswith("/"):
        raise ProjectPathInvalid(
            "paths are relative to the project root", fix="write it as ./path inside the project"
        )
    if text.startswith("~"):
        raise ProjectPathInvalid(
            "the home directory is not part of the project", fix="write it as ./path"
        )
    return _below(f"/{text}") or "."


def _below(text: str) -> str:
    try:
        return normalise(text).removeprefix("/")
    except PathInvalid as error:
        fix = "paths may not leave the project" if ".." in text else error.fix
        raise ProjectPathInvalid(error.message, fix=fix) from error
