"""The languages of ast-grep and the files they are written in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

EXTENSIONS: Final[dict[str, tuple[str, ...]]] = {
    "bash": ("sh", "bash", "zsh", "ksh", "bats"),
    "c": ("c", "h"),
    "cpp": ("cpp", "cc", "cxx", "c++", "hpp", "hh", "hxx", "h++", "cu", "ino", "h"),
    "csharp": ("cs",),
    "css": ("css",),
    "dart": ("dart",),
    "elixir": ("ex", "exs"),
    "go": ("go",),
    "haskell": ("hs",),
    "hcl": ("hcl", "tf", "tfvars"),
    "html": ("html", "htm", "xhtml"),
    "java": ("java",),
    "javascript": ("js", "mjs", "cjs", "jsx"),
    "json": ("json",),
    "kotlin": ("kt", "ktm", "kts"),
    "lua": ("lua",),
    "markdown": ("md", "markdown"),
    "nix": ("nix",),
    "php": ("php",),
    "python": ("py", "py3", "pyi", "bzl"),
    "ruby": ("rb", "rbw", "gemspec"),
    "rust": ("rs",),
    "scala": ("scala", "sc", "sbt"),
    "solidity": ("sol",),
    "swift": ("swift",),
    "tsx": ("tsx",),
    "typescript": ("ts", "cts", "mts"),
    "yaml": ("yml", "yaml"),
    "zig": ("zig",),
}
"""By ast-grep's own names. A header may be C or C++; it belongs to both."""

LANGUAGES: Final = tuple(EXTENSIONS)
_NEVER_GUESSED: Final = frozenset({"markdown"})
"""A README beside the code does not make a directory one of mixed languages."""

_BY_EXTENSION: Final = {
    extension: lang
    for lang, extensions in EXTENSIONS.items()
    if lang not in _NEVER_GUESSED
    for extension in extensions
    if not (lang == "cpp" and extension == "h")
}


def names_of(lang: str) -> tuple[str, ...]:
    """Return the file patterns of a language."""
    return tuple(f"*.{extension}" for extension in EXTENSIONS[lang])


def guessable_names() -> tuple[str, ...]:
    """Return the file patterns of every language that can be told from a file's name."""
    return tuple(f"*.{extension}" for extension in sorted(_BY_EXTENSION))


def extension_of(path: str) -> str:
    """Return what stands behind the last dot of a file's name, '' for nothing."""
    name = path.rpartition("/")[2]
    stem, dot, extension = name.rpartition(".")
    return extension if dot and stem else ""


def is_of(path: str, lang: str) -> bool:
    """Return whether a file is written in a language, by its name."""
    return extension_of(path) in EXTENSIONS[lang]


def language_of(path: str) -> str | None:
    """Return the language of a file by its name."""
    return _BY_EXTENSION.get(extension_of(path))


def languages_of(paths: Iterable[str]) -> dict[str, int]:
    """Count files by language; headers count as C++ where there is C++ and no C."""
    counts: dict[str, int] = {}
    headers = 0
    for path in paths:
        lang = language_of(path)
        if lang == "c" and extension_of(path) == "h":
            headers += 1
        elif lang is not None:
            counts[lang] = counts.get(lang, 0) + 1
    if headers:
        owner = "cpp" if "cpp" in counts and "c" not in counts else "c"
        counts[owner] = counts.get(owner, 0) + headers
    return counts
