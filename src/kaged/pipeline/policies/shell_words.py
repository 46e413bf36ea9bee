"""What a shell script would run, read by the grammar of the shell and not by patterns.

`read_script` finds every simple command, also those inside substitutions, pipelines, loops,
functions and here-documents. What the grammar cannot read is refused: a guess about a command is
worth nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kaged.base.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from ast_grep_py import SgNode

MAX_SCRIPT_CHARS: Final = 64 * 1024

_PARTS: Final = frozenset({"word", "string", "raw_string", "concatenation", "number"})
_SETS: Final = frozenset({"variable_assignment", "declaration_command", "unset_command"})
_EXPANDED: Final = frozenset("*?[]{}")
_IN_STRINGS: Final = frozenset({"string_content", '"'})
_REDIRECTS: Final = frozenset({"file_redirect", "heredoc_redirect", "herestring_redirect"})
_ESCAPED_IN_STRINGS: Final = frozenset('$`"\\\n')


class ScriptUnreadable(ValueError):
    """The script cannot be read with certainty."""


@dataclass(frozen=True, slots=True)
class SimpleCommand:
    """The words of one command; None stands for a word that is only known when it runs."""

    words: tuple[str | None, ...]
    text: str


@dataclass(frozen=True, slots=True)
class ScriptReading:
    """The commands of a script, and the variables that it sets."""

    commands: tuple[SimpleCommand, ...]
    variables: frozenset[str]


def read_script(script: str) -> ScriptReading:
    """Read a script of bash. Raises ScriptUnreadable."""
    if len(script) > MAX_SCRIPT_CHARS:
        raise ScriptUnreadable(f"the script is longer than {MAX_SCRIPT_CHARS} characters")
    if "\0" in script or "\r" in script:
        raise ScriptUnreadable("the script contains a control character")
    from ast_grep_py import SgRoot  # noqa: PLC0415 - not for daemons without such a policy

    commands: list[SimpleCommand] = []
    variables: set[str] = set()
    for node in _walk(SgRoot(script, "bash").root()):
        kind = node.kind()
        if kind == "ERROR":
            raise ScriptUnreadable(f"the script cannot be read at {node.text()[:40]!r}")
        if kind == "command":
            commands.append(SimpleCommand(tuple(_words(node)), node.text()[:200]))
        elif kind in _SETS:
            variables.update(_set_by(node))
        elif kind in {"for_statement", "select_statement"}:
            name = node.field("variable")
            variables.add("" if name is None else name.text())
    return ScriptReading(tuple(commands), frozenset(variables))


def _walk(root: SgNode) -> Iterator[SgNode]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(node.children()))


def _words(command: SgNode) -> Iterator[str | None]:
    for child in command.children():
        kind = child.kind()
        if kind == "variable_assignment" or kind in _REDIRECTS:
            continue  # counted as a variable; redirects are the cage's business
        if kind == "command_name":
            parts = child.children()
            yield _literal(parts[0]) if len(parts) == 1 else None
        else:
            yield _literal(child)


def _literal(node: SgNode) -> str | None:
    """Return the text of a word that is the same however often it is read; else None."""
    kind, text = node.kind(), node.text()
    if kind not in _PARTS:
        return None
    if kind == "raw_string":
        return text[1:-1]
    if kind == "string":
        if any(part.kind() not in _IN_STRINGS for part in node.children()):
            return None
        return _unescaped(text[1:-1], _ESCAPED_IN_STRINGS)
    if kind == "concatenation":
        parts = [_literal(part) for part in node.children()]
        return None if None in parts else "".join(part for part in parts if part is not None)
    if text.startswith("~") or not _EXPANDED.isdisjoint(text):
        return None
    return _unescaped(text, None)


def _unescaped(text: str, only: frozenset[str] | None) -> str:
    found: list[str] = []
    escaped = False
    for char in text:
        if escaped:
            if only is not None and char not in only:
                found.append("\\")
            if char != "\n":
                found.append(char)
            escaped = False
        elif char == "\\":
            escaped = True
        else:
            found.append(char)
    return "".join(found)


def _set_by(node: SgNode) -> Iterator[str]:
    """Yield the names that a node sets; an empty one for what cannot be told."""
    if node.kind() == "variable_assignment":
        name = node.field("name")
        yield "" if name is None else name.text().partition("[")[0]
        return
    for child in node.children():
        kind = child.kind()
        if kind == "variable_name":
            yield child.text()
        elif kind not in {"variable_assignment", "word"} and child.children():
            yield ""  # declare "$x"
        elif kind == "word" and not child.text().startswith("-"):
            yield ""
