"""What a toolchain of the host allows, in words; and that a cage asks for one that is not there."""

from __future__ import annotations

from collections.abc import Iterable

from kaged.kernel.describe.sentence import Sentence, SentenceSeverity
from kaged.kernel.toolchains import Toolchain


def describe_toolchain(name: Toolchain) -> str:
    """Return what a cage may do that has this toolchain."""
    return (
        f"use the {name} toolchain in your home, read-only, with a package cache of the project's "
        "own that it may change"
    )


def describe_found_toolchain(name: Toolchain, folders: Iterable[str], *, present: bool) -> Sentence:
    """Return what is shown of a toolchain, or that this host has none."""
    listed = ", ".join(folders)
    if listed:
        return Sentence(f"has {name} first on PATH from {listed}")
    if present:
        return Sentence(f"has the system's own {name}: there is none in your home")
    return Sentence(
        f"asks for the toolchain {name} and does not have it",
        SentenceSeverity.WARNING,
        "no version manager that kaged knows keeps one in your home, and the system has none",
        f"Install it, or take {name} out of the toolchains.",
    )
