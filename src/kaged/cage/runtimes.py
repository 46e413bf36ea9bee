"""Where runtimes keep their files: a Python's library, a Node's packages, git's helpers."""

from __future__ import annotations

import os
import re
from pathlib import Path

from kaged.base.lazy_dataclass import dataclass

_PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?t?")
_PYTHON_LIB = re.compile(r"python3(?:\.\d+t?)?")
_NODE_PACKAGE = re.compile(r"(/.+/node_modules/(?:@[^/]+/)?[^/]+)/.+")
_COMPANION_DIRS = ("/usr/lib", "/usr/libexec", "/usr/lib64")
# Files a program keeps under another name than its own.
_COMPANION_NAMES: dict[str, tuple[str, ...]] = {
    "git": ("git-core",),
    "node": ("node_modules", "nodejs"),
    "nodejs": ("node_modules", "nodejs"),
    "npm": ("node_modules",),
    "gcc": ("gcc",),
    "cc": ("gcc",),
    "g++": ("gcc",),
    "c++": ("gcc",),
    "cpp": ("gcc",),
    "perl": ("perl5",),
    "ruby": ("ruby",),
    "gpg": ("gnupg",),
    "file": ("file",),
    "tclsh": ("tcltk",),
}
_HEADERS = frozenset({"gcc", "cc", "g++", "c++", "cpp", "clang"})


@dataclass(frozen=True, slots=True)
class RuntimeLayout:
    """What belongs to a program that lives outside the system's directories.

    `at_own_path` says that it must be shown where it lies, because it finds its files from there.
    """

    dirs: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    at_own_path: bool = False


def runtime_layout(real: str) -> RuntimeLayout:
    """Return what the program at `real` (no link) needs beside itself, by where it lies."""
    folder, _, base = real.rpartition("/")
    prefix, _, last = folder.rpartition("/")
    package = _NODE_PACKAGE.fullmatch(real)
    if package is not None:
        return RuntimeLayout(dirs=(package[1],), at_own_path=True)
    if _is_python(base) and last == "bin" and prefix:
        libraries = _python_libraries(prefix)
        if libraries and prefix != "/usr":
            # Self-built or relocated: at another path it would load the system's library and die.
            return RuntimeLayout(
                dirs=(f"{prefix}/lib",), links=_sibling_links(folder, base), at_own_path=True
            )
        return RuntimeLayout(dirs=libraries)
    return RuntimeLayout()


def companions(base: str) -> tuple[str, ...]:
    """Return the system directories that belong to a program, such as git's own helpers."""
    names = dict.fromkeys((*_COMPANION_NAMES.get(base, ()), base))
    found = [
        f"{folder}/{name}"
        for folder in _COMPANION_DIRS
        for name in names
        if Path(folder, name).is_dir() and not Path(folder, name).is_symlink()
    ]
    if base in _HEADERS or any(base.endswith(f"-{one}") for one in _HEADERS):
        found.append("/usr/include")
    return tuple(found)


def _is_python(base: str) -> bool:
    return _PYTHON.fullmatch(base) is not None


def _python_libraries(prefix: str) -> tuple[str, ...]:
    found: list[str] = []
    for folder in ("lib", "lib64"):
        try:
            names = sorted(one.name for one in Path(prefix, folder).iterdir())
        except OSError:
            continue
        found.extend(
            f"{prefix}/{folder}/{name}"
            for name in names
            if _PYTHON_LIB.fullmatch(name) and Path(prefix, folder, name).is_dir()
        )
    return tuple(found)


def _sibling_links(folder: str, base: str) -> tuple[tuple[str, str], ...]:
    """Return the short names beside a runtime that lead to it: python3 -> python3.11."""
    found: list[tuple[str, str]] = []
    for name in ("python", "python3"):
        try:
            target = os.readlink(f"{folder}/{name}")  # noqa: PTH115 - string paths throughout
        except OSError:
            continue
        if target in {base, "python3"}:
            found.append((f"{folder}/{name}", target))
    return tuple(found)
