"""YAML text to a `Node`: data only, every place remembered, limits kept while reading.

Files are read as YAML 1.2 with the core schema: `yes` and `on` are text, `2026-01-01` is text,
`012` is twelve. No tag constructs anything, merge keys (`<<`) and duplicate keys are refused, and
aliases are fine as long as the document stays small when they are written out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn

from kaged.base.lazy_dataclass import dataclass
from kaged.config.nodes import MapEntry, Node, Odd, Parsed, Scalar
from kaged.config.problems import (
    Mark,
    Problem,
    format_key_path,
    show_value,
)

MAX_NODES: Final = 10_000
"""How many values a document may hold, aliases written out."""

MAX_DEPTH: Final = 64
"""How deep values may be nested, aliases written out."""

_INT64_MAX: Final = 2**63 - 1
_TAG: Final = "tag:yaml.org,2002:"
_MAP_TAGS: Final = frozenset({"!", _TAG + "map"})
_SEQ_TAGS: Final = frozenset({"!", _TAG + "seq"})

_WORDS: Final[Mapping[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")


class _Stop(Exception):
    """The document cannot be read any further; the problem is already noted."""


@dataclass(slots=True)
class _Anchored:
    """A finished value behind an anchor, with its size and height written out."""

    node: Node
    size: int
    height: int


def parse_yaml(text: str, file: str) -> Parsed:
    """Read one YAML document, noting every problem that could be found.

    Duplicate keys, tags and the like leave a node behind, so that the caller can go on looking;
    after a syntax error or a broken limit there is none.
    """
    composer = _Composer(text, file)
    node = composer.compose()
    return Parsed(node, tuple(composer.problems))


def resolve_plain(text: str) -> Scalar:
    """Return the value that a plain (unquoted) YAML 1.2 scalar stands for.

    Raises:
        ValueError: for infinities, not-a-number and numbers beyond 64 bits.
    """
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "0123456789+-.":
        return text
    if _INT.fullmatch(text):
        # A number this long is refused by its length: int() would complain about its own limit.
        if len(text) > 64:
            raise ValueError("the number is too large")
        number = int(text, 0) if text[:2] in {"0o", "0x"} else int(text)
        if abs(number) > _INT64_MAX:
            raise ValueError("the number is too large")
        return number
    if _FLOAT.fullmatch(text):
        real = float(text)
        if not math.isfinite(real):
            raise ValueError("the number is too large")
        return real
    if _NOT_FINITE.fullmatch(text):
        raise ValueError("infinity and not-a-number are not accepted")
    return text


class _Composer:
    """Builds nodes from events; counts what it builds, so that no input makes it run away."""

    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file
        self._anchors: dict[str, _Anchored | None] = {}
        self._nodes = 0
        self._path: list[str | int] = []
        self._events: Iterator[Any] = iter(())
        self.problems: list[Problem] = []

    def compose(self) -> Node | None:
        # ruamel.yaml takes tens of milliseconds to import and is needed only when a file is read.
        from ruamel.yaml import YAML  # noqa: PLC0415 - see above
        from ruamel.yaml.error import MarkedYAMLError  # noqa: PLC0415 - see above
        from ruamel.yaml.reader import ReaderError  # noqa: PLC0415 - see above

        try:
            self._events = iter(YAML(typ="safe", pure=True, plug_ins=[]).parse(self._text))
            return self._document()
        except _Stop:
            return None
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = None if mark is None else Mark(mark.line + 1, mark.column + 1)
            what = " ".join(str(error.problem or error.context or "syntax error").split())
            self._syntax(where, what)
        except ReaderError as error:
            position = error.position if isinstance(error.position, int) else 0
            before = self._text[:position]
            where = Mark(before.count("\n") + 1, position - before.rfind("\n"))
            self._syntax(where, "a control character is not allowed here")
        except Exception as error:  # noqa: BLE001 - boundary: a parser fed with foreign text
            # Escapes such as "\UFFFFFFFF" leave the parser as OverflowError or ValueError.
            self._syntax(None, f"cannot be parsed ({type(error).__name__})")
        return None

    def _document(self) -> Node | None:
        next(self._events)  # the start of the stream
        event = next(self._events)
        if type(event).__name__ == "StreamEndEvent":
            self._note(None, "empty_document", "is empty", "write at least the required keys")
            return None
        if event.version is not None and tuple(event.version) != (1, 2):
            self._note(
                _mark(event),
                "yaml_version",
                "asks for another YAML version; files are read as YAML 1.2",
                "remove the %YAML line",
            )
        node, _, _ = self._value(next(self._events), 1)
        next(self._events)  # the end of the document
        event = next(self._events)
        if type(event).__name__ != "StreamEndEvent":
            self._note(
                _mark(event),
                "several_documents",
                "a second document begins here; only one is allowed",
                "remove everything from this '---' on",
            )
        return node

    def _value(self, event: Any, depth: int) -> tuple[Node, int, int]:
        """Build one value; return it with its size and height."""
        if depth > MAX_DEPTH:
            self._stop(event, "too_deep", f"is nested deeper than {MAX_DEPTH} levels")
        self._count(1, event)
        kind = type(event).__name__
        if kind == "AliasEvent":
            return self._alias(event, depth)
        if event.anchor is not None:
            # Until the value is finished an alias to it would be a cycle.
            self._anchors[event.anchor] = None
        if kind == "ScalarEvent":
            built = (self._scalar(event), 1, 1)
        elif kind == "SequenceStartEvent":
            built = self._sequence(event, depth)
        else:
            built = self._mapping(event, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchored(*built)
        return built

    def _alias(self, event: Any, depth: int) -> tuple[Node, int, int]:
        if event.anchor not in self._anchors:
            self._stop(event, "unknown_alias", f"*{event.anchor} names no anchor above it")
        target = self._anchors[event.anchor]
        if target is None:
            self._stop(event, "cyclic_alias", f"*{event.anchor} stands inside its own anchor")
        self._count(target.size - 1, event)
        if depth + target.height - 1 > MAX_DEPTH:
            self._stop(event, "too_deep", f"is nested deeper than {MAX_DEPTH} levels")
        return target.node, target.size, target.height

    def _sequence(self, event: Any, depth: int) -> tuple[Node, int, int]:
        self._check_tag(event, _SEQ_TAGS)
        items: list[Node] = []
        size, height = 1, 0
        while type(inner := next(self._events)).__name__ != "SequenceEndEvent":
            self._path.append(len(items))
            node, inner_size, inner_height = self._value(inner, depth + 1)
            self._path.pop()
            items.append(node)
            size += inner_size
            height = max(height, inner_height)
        return Node(tuple(items), _mark(event)), size, height + 1

    def _mapping(self, event: Any, depth: int) -> tuple[Node, int, int]:
        self._check_tag(event, _MAP_TAGS)
        pairs: dict[str, MapEntry] = {}
        size, height = 1, 0
        while type(inner := next(self._events)).__name__ != "MappingEndEvent":
            mark = _mark(inner)
            key, _, _ = self._value(inner, depth + 1)
            name = self._key_name(inner, key, mark)
            self._path.append("?" if name is None else name)
            if name is not None and name in pairs:
                first = pairs[name].mark.line
                self._note(
                    mark,
                    "duplicate_key",
                    f"is given twice (first in line {first})",
                    "keep one of the two",
                )
                name = None
            node, inner_size, inner_height = self._value(next(self._events), depth + 1)
            self._path.pop()
            size += inner_size + 1
            height = max(height, inner_height)
            if name is not None:
                pairs[name] = MapEntry(mark, node)
        return Node(pairs, _mark(event)), size, height + 1

    def _key_name(self, event: Any, key: Node, mark: Mark) -> str | None:
        if not isinstance(key.value, str):
            shown = "" if isinstance(key.value, (tuple, dict)) else f" {show_value(key.value)}"
            self._note(
                mark,
                "key_not_text",
                f"the key{shown} is not text",
                "put the key in quotes",
            )
            return None
        if key.value == "<<" and getattr(event, "style", None) is None:
            self._note(
                mark,
                "merge_key",
                "merge keys (<<) are not read, so that a file says what it means in one place",
                "write the keys out, or use an alias for a whole value",
            )
            return None
        return key.value

    def _scalar(self, event: Any) -> Node:
        mark = _mark(event)
        text: str = event.value
        tag: str | None = event.tag
        if _SURROGATE.search(text):
            text = _paired(text)
        if _SURROGATE.search(text):
            self._note(mark, "file_encoding", "holds half a character (a lone surrogate)")
            return Node(Odd("half a character", "", reported=True), mark)
        plain = event.style is None
        try:
            if tag is None:
                return Node(resolve_plain(text) if plain else text, mark)
            if tag in {"!", _TAG + "str"}:
                return Node(text, mark)
            if tag in {_TAG + "int", _TAG + "float", _TAG + "bool", _TAG + "null"}:
                return Node(_tagged(tag, text), mark)
        except ValueError as error:
            self._note(mark, "bad_number", f"{show_value(text)}: {error}", "put text in quotes")
            return Node(Odd("a number that cannot be used", text, reported=True), mark)
        self._refuse_tag(mark, tag)
        return Node(text, mark)

    def _check_tag(self, event: Any, allowed: frozenset[str]) -> None:
        if event.tag is not None and event.tag not in allowed:
            self._refuse_tag(_mark(event), event.tag)

    def _refuse_tag(self, mark: Mark, tag: str) -> None:
        shown = "!!" + tag.removeprefix(_TAG) if tag.startswith(_TAG) else tag
        self._note(
            mark,
            "tag_refused",
            f"the tag {show_value(shown)} is refused; files hold plain data only",
            "remove the tag",
        )

    def _count(self, more: int, event: Any) -> None:
        self._nodes += more
        if self._nodes > MAX_NODES:
            self._stop(
                event, "too_many_nodes", f"holds more than {MAX_NODES} values, aliases written out"
            )

    def _stop(self, event: Any, code: str, message: str) -> NoReturn:
        self._note(_mark(event), code, message)
        raise _Stop

    def _syntax(self, mark: Mark | None, what: str) -> None:
        fix = ""
        if "'\\t'" in what:
            what, fix = "a tab cannot indent YAML", "indent with spaces"
        self._note(mark, "yaml_syntax", f"is not valid YAML: {what}", fix)

    def _note(self, mark: Mark | None, code: str, message: str, fix: str = "") -> None:
        path = format_key_path(self._path) if code != "yaml_syntax" else ""
        self.problems.append(Problem.at(self._file, mark, path, message, fix, code))


def _mark(event: Any) -> Mark:
    return Mark(event.start_mark.line + 1, event.start_mark.column + 1)


def _paired(text: str) -> str:
    """Put the halves of characters together; JSON, which YAML includes, escapes them so."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _tagged(tag: str, text: str) -> Scalar:
    value = resolve_plain(text)
    fits = {
        _TAG + "int": isinstance(value, int) and not isinstance(value, bool),
        _TAG + "float": isinstance(value, (int, float)) and not isinstance(value, bool),
        _TAG + "bool": isinstance(value, bool),
        _TAG + "null": value is None,
    }
    if not fits[tag]:
        raise ValueError(f"is no !!{tag.removeprefix(_TAG)}")
    return float(value) if tag == _TAG + "float" and isinstance(value, int) else value
