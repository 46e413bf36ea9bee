"""Everything that the product declares by name, and where each name is used.

Used by the product: read or produced in `src` outside the place of its declaration. Used by whole
tests: written in a file below `tests/whole`, or in one of the attacks and faults that use its
harness, as what it is (a key before `=` or `:` or in a section's head, any other name as a whole
word).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kaged.audit.events import EVENT_TYPES
from kaged.base.error_codes import ERROR_CODES
from kaged.config.records import keys_of
from kaged.config.reference import PAGES, record_classes
from kaged.kernel.capabilities.terms import StorageAccess
from kaged.kernel.extension_caps import ExtensionCapability
from kaged.kernel.lua_powers import LuaPower
from kaged.wire.methods import StorageMethod, SystemMethod
from reachability.callers import Reached
from reachability.definitions import tree_of
from reachability.programs import ROOT, SOURCE

WHOLE = ROOT / "tests" / "whole"
ALSO_WHOLE = (ROOT / "tests" / "security", ROOT / "tests" / "chaos")
NOT_SEEN = Path(__file__).with_name("not-seen-whole.txt")
REFERENCE = ROOT / "docs" / "reference"
REASON = "## "
DECLARING = ("audit/events/", "base/error_codes.py")
_TEXTS = (".py", ".lua", ".yaml", ".toml", ".json", ".md", ".js", ".mjs", ".ts")


@dataclass(frozen=True, order=True, slots=True)
class Declared:
    """One name of one kind."""

    kind: str
    name: str

    def __str__(self) -> str:
        """Return its line in the list of names that no whole test shows."""
        return f"{self.kind} {self.name}"


def declared() -> Iterator[Declared]:
    """Yield everything that is declared."""
    for kind, names in _TABLES.items():
        for name in sorted(names()):
            yield Declared(kind, name)


def _config_keys() -> set[str]:
    """Return the keys of the files that people write, each with the page that lists it."""
    return {
        f"{page.removesuffix('.md')}:{item.name}"
        for page in PAGES
        for cls in record_classes(page)
        for item in keys_of(cls)
    }


def script_events() -> set[str]:
    """Return the events of scripts, as the reference lists them."""
    page = (REFERENCE / "kage.md").read_text(encoding="utf-8")
    table = page.partition("| Event | Kind | Payload |")[2].partition("| Refused |")[0]
    return set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))


def policy_hooks() -> set[str]:
    """Return the hooks of policy plugins that the daemon fires, as the reference lists them."""
    page = (REFERENCE / "pipeline.md").read_text(encoding="utf-8")
    table = page.partition("\n## Hooks\n")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    return {
        name
        for row in rows
        if not row.rstrip().endswith("| no |")
        for name in re.findall(r"`([\w.]+)`", row.split("|")[1])
    }


def plugin_messages() -> set[str]:
    """Return requests, notifications and hooks between host and plugin, as the page lists them."""
    page = (REFERENCE / "plugin-protocol.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `([a-z_.]+)` \|", page, re.MULTILINE))
    return listed | {str(one) for one in (*SystemMethod, *StorageMethod)}


def _capabilities() -> set[str]:
    names = [*ExtensionCapability, *LuaPower]
    return {str(one) for one in names} | {f"kaged:storage:{one}" for one in StorageAccess}


_TABLES: Mapping[str, Callable[[], set[str]]] = {
    "audit-event": lambda: set(EVENT_TYPES),
    "capability": _capabilities,
    "config-key": _config_keys,
    "error-code": lambda: set(ERROR_CODES),
    "plugin-message": plugin_messages,
    "policy-hook": policy_hooks,
    "script-event": script_events,
}


# -- in the product ---------------------------------------------------------------------------


def unused(names: Iterator[Declared], reached: Reached) -> list[Declared]:
    """Return what is declared and then neither produced nor read anywhere in the product."""
    return [one for one in names if not _is_used(one, reached)]


def _is_used(one: Declared, reached: Reached) -> bool:
    if one.kind == "config-key":
        return not _fields_of(one.name).isdisjoint(reached.names)
    if one.kind in {"capability", "plugin-message"}:
        member = _member_of(one.name)
        if member and member in reached.names:
            return True
    name = one.name.removeprefix("kaged:storage:")
    texts = texts_of_the_product()
    return name in texts or f"kaged.hook.{name}" in texts or _is_put_together(name)


@cache
def _fields_of(name: str) -> frozenset[str]:
    """Return the fields that hold a key of a page: a keyword of Python is called otherwise."""
    page, _, wanted = name.partition(":")
    keys = (item for cls in record_classes(f"{page}.md") for item in keys_of(cls))
    return frozenset(item.field for item in keys if item.name == wanted)


def _is_put_together(name: str) -> bool:
    """Return whether an f-string of the product can give this name, from texts of the product."""
    for before, after in texts_with_a_hole():
        if name.startswith(before) and name.endswith(after):
            inner = name[len(before) : len(name) - len(after)]
            if inner and inner in texts_of_the_product():
                return True
    return False


def _member_of(name: str) -> str:
    for enum in (ExtensionCapability, LuaPower, SystemMethod, StorageMethod):
        for one in enum:
            if one == name:
                return one.name
    return ""


@cache
def texts_of_the_product() -> frozenset[str]:
    """Return every text in the product's code, without docstrings and the declarations."""
    found: set[str] = set()
    for path in (SOURCE / "kaged").rglob("*.py"):
        if not str(path.relative_to(SOURCE / "kaged")).startswith(DECLARING):
            found |= set(_texts(tree_of(path)))
    for path in (SOURCE / "kaged").rglob("*.lua"):
        found |= set(re.findall(r"['\"]([\w.]+)['\"]", path.read_text(encoding="utf-8")))
    return frozenset(found)


@cache
def texts_with_a_hole() -> frozenset[tuple[str, str]]:
    """Return beginning and end of the product's f-strings that have one hole and no blanks."""
    found: set[tuple[str, str]] = set()
    for path in (SOURCE / "kaged").rglob("*.py"):
        for node in ast.walk(tree_of(path)):
            match node:
                case ast.JoinedStr(values=[ast.Constant(value=str(first)), ast.FormattedValue()]):
                    found.add((first, ""))
                case ast.JoinedStr(
                    values=[
                        ast.Constant(value=str(first)),
                        ast.FormattedValue(),
                        ast.Constant(value=str(last)),
                    ]
                ):
                    found.add((first, last))
                case _:
                    pass
    return frozenset(pair for pair in found if " " not in "".join(pair))


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
            if " " in node.value and "\n" not in node.value:
                yield from node.value.split()  # tables written as words


# -- in whole tests ---------------------------------------------------------------------------


@cache
def _whole_text() -> str:
    files = [path for path in sorted(WHOLE.rglob("*")) if path.suffix in _TEXTS]
    texts = [path.read_text(encoding="utf-8") for path in files]
    for folder in ALSO_WHOLE:
        others = [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))]
        texts += [text for text in others if "from whole.harness" in text]
    text = "\n".join(texts)
    return text.replace(
        "\\n", "\n"
    )  # in a test's own texts, `\\nkey` is a key on a line of its own


@cache
def _whole_words() -> frozenset[str]:
    return frozenset(
        re.findall(r"[A-Za-z0-9_]+(?:[.:-][A-Za-z0-9_]+)*", _whole_text())
    ) | frozenset(re.findall(r"[A-Za-z0-9_]+", _whole_text()))


@cache
def _whole_keys() -> frozenset[str]:
    """Return the words that stand where a key does: before `=` or `:`, quoted, in a `[head]`."""
    heads = re.findall(r"(?:^|[\"'])\s*\[([A-Za-z0-9_.-]+)\]$", _whole_text(), re.MULTILINE)
    return (
        frozenset(re.findall(r"([A-Za-z0-9_-]+)[\"']?\s*[=:]", _whole_text()))
        | frozenset(re.findall(r"[\"']([A-Za-z0-9_-]+)[\"']", _whole_text()))
        | frozenset(word for head in heads for word in head.split("."))
    )


def is_seen_whole(one: Declared) -> bool:
    """Return whether a whole test writes this name."""
    if one.kind == "config-key":
        return one.name.partition(":")[2] in _whole_keys()
    return one.name in _whole_words()


def not_seen_yet() -> dict[str, str]:
    """Return the names that no whole test shows, each with the reason that stands above it."""
    found: dict[str, str] = {}
    reason = ""
    for line in NOT_SEEN.read_text(encoding="utf-8").splitlines():
        if line.startswith(REASON):
            reason = line.removeprefix(REASON).strip()
        elif line and not line.startswith("#"):
            found[line] = reason
    return found
