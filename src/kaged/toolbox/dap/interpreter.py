"""`find_interpreter`: the project's own Python, where there is one that may be started.

A project's environment is a folder that its agents may be able to write. In its own cage such an
agent runs there what it likes anyway; outside of cages nothing is started that one could have
written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from kaged.base.lazy_dataclass import dataclass

ENVIRONMENTS: Final = (".venv", "venv")
OLDEST: Final = (3, 8)
"""The oldest Python that debugpy works in."""
CONFIG_BYTES: Final = 64 * 1024
_MAX_LINKS: Final = 40
_MAX_FOLDERS: Final = 100
_VERSION: Final = re.compile(r"^version(?:_info)?\s*=\s*(\d{1,4})\.(\d{1,4})", re.MULTILINE)
_SYSTEM: Final = "/usr/"

Allowed = Callable[[str], bool]
"""Answers a question about an absolute path."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python, its name for the caller, and why it is not that of the project, if it has one."""

    path: str
    shown: str
    note: str = ""


def find_interpreter(
    start: str, root: str, usual: str, *, caged: bool, readable: Allowed, changeable: Allowed
) -> Interpreter:
    """Return the Python of the nearest environment at or above `start`, or else the usual one.

    `readable` says what a caged caller sees; `changeable` whether a guest of any cage may write
    something at or below a path.
    """
    folder = _environment(start, root)
    if folder is None:
        return Interpreter(usual, os.path.basename(usual))  # noqa: PTH119 - a text
    path = f"{folder}/bin/python"
    shown = os.path.relpath(path, root)
    reason = _too_old(folder)
    if not reason and caged:
        reason = _unseen(path, readable)
    elif not reason and within_reach(path, changeable):
        reason = (
            "an agent in a cage may write that environment, and this would run outside every "
            "cage; make it read-only in their cages, or launch from within one"
        )
    if not reason:
        return Interpreter(path, shown)
    name = os.path.basename(usual)  # noqa: PTH119 - a text
    return Interpreter(usual, name, f"{shown} is not used: {reason}")


def within_reach(python: str, changeable: Allowed) -> bool:
    """Return whether a guest may write a Python, its environment, or a link on the way to it."""
    return any(changeable(path) for path in _places(python))


def _environment(start: str, root: str) -> str | None:
    folder = start
    for _ in range(_MAX_FOLDERS):
        if folder != root and not folder.startswith(f"{root}/"):
            return None
        for name in ENVIRONMENTS:
            found = f"{folder}/{name}"
            if Path(found, "pyvenv.cfg").is_file() and os.access(f"{found}/bin/python", os.X_OK):
                return found
        folder = os.path.dirname(folder)  # noqa: PTH120 - a text
    return None


def _too_old(folder: str) -> str:
    try:
        with Path(folder, "pyvenv.cfg").open("rb") as file:
            text = file.read(CONFIG_BYTES).decode("utf-8", "replace")
    except OSError:
        return "its pyvenv.cfg cannot be read"
    said = _VERSION.search(text)
    if said is None or (int(said[1]), int(said[2])) >= OLDEST:
        return ""
    return f"debugpy needs Python {OLDEST[0]}.{OLDEST[1]} or newer, and it is {said[1]}.{said[2]}"


def _unseen(path: str, readable: Allowed) -> str:
    folder = os.path.realpath(os.path.dirname(os.path.dirname(path)))  # noqa: PTH120 - texts
    if not readable(folder):
        return "your cage does not show it"
    real = os.path.realpath(path)
    if real.startswith(_SYSTEM) or readable(real):
        return ""
    return "it links to a Python that your cage does not show"


def _places(python: str) -> Iterator[str]:
    """Return each folder and file that decides what runs as this Python.

    Those are the environment or the installation around it, and around each link on the way.
    """
    path = python
    for _ in range(_MAX_LINKS):
        yield path
        folder = os.path.dirname(path)  # noqa: PTH120 - texts throughout
        for one in (folder, os.path.realpath(folder)):
            yield one
            around = os.path.dirname(one)  # noqa: PTH120 - texts throughout
            if around not in ("/", "/usr"):
                yield around
        path = os.path.join(os.path.realpath(folder), os.path.basename(path))  # noqa: PTH118, PTH119 - as above
        if not os.path.islink(path):  # noqa: PTH114 - as above
            return
        aim = os.readlink(path)  # noqa: PTH115 - as above
        path = os.path.normpath(os.path.join(os.path.dirname(path), aim))  # noqa: PTH118, PTH120 - as above
    yield "/"  # links without an end: nothing is known of them
