"""`Toolchain`: the languages whose tools a cage may be shown from outside the system's folders."""

from __future__ import annotations

from enum import StrEnum


class Toolchain(StrEnum):
    """One language's tools on this machine, in versions that people installed for themselves."""

    GO = "go"
    JAVA = "java"
    NODE = "node"
    PYTHON = "python"
    RUST = "rust"
