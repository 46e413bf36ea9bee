"""Reading one capability: text in, a term out, or an error that says what was probably meant."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

from kaged.base.errors import KagedError
from kaged.base.jsonvalue import JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.capabilities.hints import guesses
from kaged.kernel.capabilities.terms import (
    CapabilityPath,
    EventsAccess,
    EventsCapability,
    ExecCapability,
    FsCapability,
    ManifestCapability,
    NetCapability,
    NoNetCapability,
    PathBase,
    StorageAccess,
    StorageCapability,
)
from kaged.kernel.hosts import NetTargetInvalid
from kaged.kernel.net import parse_target
from kaged.kernel.paths import PathInvalid, normalise
from kaged.kernel.policy import FsMode

MAX_CAPABILITY_CHARS = 5000
"""The longest capability text: a path of full length and what stands before it."""

FORMS = (
    "read:fs:<path>",
    "write:fs:<path>",
    "exec:<binary>:<path>",
    "net:<host>:<port>",
    "net:<host>:*",
    "net:*",
    "net:[]",
    "kaged:storage:read",
    "kaged:storage:write",
    "kaged:events:publish",
    "kaged:events:subscribe",
)
"""Every form a capability can take, for messages and prompts."""

_BINARY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,254}")
_GLOB = re.compile(r"[*?\[]")
_SHOWN_CHARS = 120
_PREFIXES = {"config:": PathBase.CONFIG, "project:": PathBase.PROJECT}
_OWN: Mapping[str, StorageCapability | EventsCapability] = {
    one.text: one
    for one in (*map(StorageCapability, StorageAccess), *map(EventsCapability, EventsAccess))
}
_FS = {"read:fs:": FsMode.RO, "write:fs:": FsMode.RW}


@dataclass(frozen=True, slots=True)
class CapabilityProblem:
    """One thing that is wrong in a capability list: where, what, and the nearest valid form."""

    where: str
    text: str
    message: str
    nearest: str

    def __str__(self) -> str:
        """Return one line for people."""
        hint = f"; did you mean {self.nearest}?" if self.nearest else ""
        return f"{self.where}: {self.text}: {self.message}{hint}"


class CapabilityInvalid(KagedError):
    """A capability list cannot be accepted; `problems` has every reason, not only the first."""

    code = "manifest_capability_invalid"

    def __init__(self, *problems: CapabilityProblem) -> None:
        rows: list[JsonValue] = [
            {"where": p.where, "text": p.text, "message": p.message, "nearest": p.nearest}
            for p in problems
        ]
        super().__init__(
            "; ".join(map(str, problems)),
            fix=f"a capability is one of {', '.join(FORMS)}",
            problems=rows,
        )
        self.problems = problems


class _MalformedCapability(Exception):
    """Why a text is no capability; turned into CapabilityInvalid with the place and a hint."""


def parse_capability(value: object, where: str = "capability") -> ManifestCapability:
    """Read one entry of a capability list: a text, or the YAML mapping `{net: []}`.

    Raises:
        CapabilityInvalid: with what is wrong, `where`, and the nearest valid form.
    """
    try:
        return _read(value)
    except _MalformedCapability as fault:
        raise CapabilityInvalid(
            CapabilityProblem(where, shown(value), str(fault), _nearest(value))
        ) from fault


def _read(value: object) -> ManifestCapability:
    text = _text_of(value)
    for head, mode in _FS.items():
        if text.startswith(head):
            return FsCapability(mode, _read_path(text.removeprefix(head)))
    if text.startswith("exec:"):
        binary, colon, path = text.removeprefix("exec:").partition(":")
        if not colon:
            raise _MalformedCapability("a binary and a directory are needed")
        if not _BINARY.fullmatch(binary):
            raise _MalformedCapability(
                "the binary must be a plain program name, without a directory"
            )
        return ExecCapability(binary, _read_path(path))
    if text in ("net:[]", "net: []"):
        return NoNetCapability()
    if text.startswith("net:"):
        try:
            return NetCapability(parse_target(text.removeprefix("net:")))
        except NetTargetInvalid as error:
            raise _MalformedCapability(str(error)) from error
    if text in _OWN:
        return _OWN[text]
    raise _MalformedCapability("matches no known form" if text else "is empty")


def shown(value: object) -> str:
    """Return any value as a short, printable piece of text."""
    text = value if isinstance(value, str) and value.isprintable() and value else repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"


def _text_of(value: object) -> str:
    if isinstance(value, Mapping):
        entries = cast("Mapping[object, object]", value)
        if len(entries) == 1 and entries.get("net") == []:
            return "net:[]"
        raise _MalformedCapability("the only mapping allowed here is net: []")
    if not isinstance(value, str):
        raise _MalformedCapability("must be a text")
    if len(value) > MAX_CAPABILITY_CHARS:
        raise _MalformedCapability(f"is longer than {MAX_CAPABILITY_CHARS} characters")
    if not value.isprintable():
        # Operators read these texts in a terminal: no control, no invisible, no bidi characters.
        raise _MalformedCapability("contains characters that cannot be shown")
    return value


def _read_path(text: str) -> CapabilityPath:
    base = PathBase.HOST
    for prefix, named in _PREFIXES.items():
        if text.startswith(prefix):
            base, text = named, text.removeprefix(prefix)
            break
    if text.startswith("~"):
        raise _MalformedCapability("the path must be absolute; ~ is not expanded")
    if _GLOB.search(text):
        raise _MalformedCapability("glob patterns are not supported in capability paths")
    try:
        return CapabilityPath(base, normalise(text))
    except PathInvalid as error:
        raise _MalformedCapability(error.message) from error


def _nearest(value: object) -> str:
    """Guess what was meant; every guess returned is itself a valid capability."""
    if not isinstance(value, str) or len(value) > _SHOWN_CHARS:
        return "net:[]" if isinstance(value, Mapping) else ""
    for guess in guesses(value):
        try:
            return _read(guess).text
        except _MalformedCapability:
            continue
    return ""
