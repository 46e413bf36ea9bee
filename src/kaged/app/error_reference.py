"""The list of all error codes for `docs/reference/error-codes.md`, made from the error classes.

`python -m kaged.app.error_reference docs/reference/error-codes.md` rewrites the page's made part.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import kaged
from kaged.base import KagedError
from kaged.serve.http.statuses import HTTP_STATUS

BEGIN: Final = "<!-- made from the error classes: python -m kaged.app.error_reference -->"
END: Final = "<!-- end of the made part -->"

# Answers of the HTTP edge that have no class: it gives them before there is a request to fail.
EDGE_ONLY: Final[Mapping[str, str]] = {
    "headers_too_large": "The head of a request is over the limit.",
    "method_not_allowed": "The path exists, but not for this HTTP method.",
    "too_many_connections": "As many connections as there may be are open.",
}


def error_classes() -> list[type[KagedError]]:
    """Load every module of the package and return its error classes, sorted by name."""
    for module in pkgutil.walk_packages(kaged.__path__, "kaged."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: set[type[KagedError]] = set()
    waiting: list[type[KagedError]] = [KagedError]
    while waiting:
        kind = waiting.pop()
        if kind.__module__.startswith("kaged.") and kind not in found:
            found.add(kind)
            waiting += kind.__subclasses__()
    return sorted(found, key=lambda kind: (kind.__module__, kind.__qualname__))


def meanings() -> dict[str, tuple[set[str], list[str]]]:
    """Return per code the packages that raise it and what their classes say it means."""
    found: dict[str, tuple[set[str], list[str]]] = {
        code: ({"serve"}, [meaning]) for code, meaning in EDGE_ONLY.items()
    }
    for kind in error_classes():
        packages, said = found.setdefault(kind.code, (set(), []))
        packages.add(kind.__module__.split(".")[1])
        if "code" not in vars(kind) or kind is KagedError:
            continue  # a narrower kind of the same error, or the base of all
        meaning = (kind.__doc__ or "").strip().splitlines()[0]
        if meaning not in said:
            said.append(meaning)
    return found


def render() -> str:
    """Write the made part of the page."""
    rows = [
        f"| `{code}` | {HTTP_STATUS[code]} | {', '.join(sorted(packages))} | {_cell(said)} |"
        for code, (packages, said) in sorted(meanings().items())
    ]
    head = ["| Code | HTTP | Raised in | Means |", "|---|---|---|---|"]
    return "\n".join([BEGIN, "", *head, *rows, "", END])


def rewrite(page: Path) -> None:
    """Put the made part into a page, in place of the old one."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(before + render() + rest.partition(END)[2], encoding="utf-8")


def _cell(said: list[str]) -> str:
    return " · ".join(said).replace("|", "\\|")


if __name__ == "__main__":
    rewrite(Path(sys.argv[1]))
