"""What a JavaScript engine says of a value, as an agent reads it."""

from __future__ import annotations

import re
from dataclasses import field
from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.toolbox.dap.errors import DapRequestFailed
from kaged.wire.fastjson import encode_json

MAX_HANDLES: Final = 20_000
TEXT_CHARS: Final = 4000
_PREVIEWED: Final = 20
MAX_NAMES: Final = 300
_LINE_CHARS: Final = 2000
_DECLARATION: Final = re.compile(
    r"^(?:export )?(?:default )?(?:async )?(let|const|var|class|function\*?|import) *(.*)$",
    re.MULTILINE,
)
_VALUE: Final = re.compile(r"=[^,]*")
_NAME: Final = re.compile(r"(?<![\w$.\"'`])[A-Za-z_$][\w$]*(?![\w$\"'`])")
_WORDS: Final = frozenset(
    "as async await break case catch class const continue debugger default delete do else enum "  # noqa: SIM905 - words read better so
    "export extends false finally for from function if implements import in instanceof interface "
    "let new null of package private protected public return static super switch this throw true "
    "try typeof var void while with yield".split()
)


@dataclass(frozen=True, slots=True)
class Handle:
    """A structured value that can be looked into; `whole` ones are never trimmed.

    `module` names the frame of a module whose engine does not list the module's own variables.
    """

    object_id: str
    whole: bool
    module: JsonObject | None = None


@dataclass(slots=True)
class Handles:
    """Numbers for structured values; they die when the program goes on."""

    _known: dict[int, Handle] = field(default_factory=dict)
    _last: int = 0

    def number(
        self, object_id: str, *, whole: bool = False, module: JsonObject | None = None
    ) -> int:
        """Return a new number for a value."""
        if len(self._known) >= MAX_HANDLES:
            raise DapRequestFailed("too many values were looked at", fix="continue, or step")
        self._last += 1
        self._known[self._last] = Handle(object_id, whole, module)
        return self._last

    def find(self, number: JsonValue) -> Handle:
        """Return a numbered value. Raises DapRequestFailed when it is not known (any more)."""
        found = self._known.get(number) if type(number) is int else None
        if found is None:
            raise DapRequestFailed(f"there is no value {number}", fix="list the variables again")
        return found

    def clear(self) -> None:
        """Forget all of them; numbers are not used again."""
        self._known.clear()


def describe(name: str, remote: JsonObject, handles: Handles) -> JsonObject:
    """Describe a value as DAP does."""
    object_id = remote.get("objectId")
    looked_into = isinstance(object_id, str) and remote.get("type") in ("object", "function")
    shown: JsonObject = {
        "name": name,
        "value": text_of(remote),
        "type": type_of(remote),
        "variablesReference": 0,
    }
    if looked_into and isinstance(object_id, str):
        proxy = remote.get("subtype") == "proxy"
        shown["variablesReference"] = handles.number(object_id, whole=proxy)
    return shown


def type_of(remote: JsonObject) -> str:
    """Return the name of a value's type: its class for objects."""
    if remote.get("subtype") == "null":
        return "null"
    if remote.get("type") == "object" and isinstance(remote.get("className"), str):
        return str(remote["className"])
    return str(remote.get("type", ""))


def text_of(remote: JsonObject) -> str:
    """Write a value so that a person recognises it."""
    kind, value = remote.get("type"), remote.get("value")
    if kind == "undefined":
        return "undefined"
    if kind == "string":
        return encode_json(value if isinstance(value, str) else "").decode()[:TEXT_CHARS]
    if remote.get("subtype") == "null":
        return "null"
    if kind == "boolean":
        return "true" if value is True else "false"
    preview = remote.get("preview")
    if isinstance(preview, dict) and remote.get("subtype") in (None, "array", "class"):
        return _preview(remote, preview)[:TEXT_CHARS]
    for said in (remote.get("description"), remote.get("unserializableValue")):
        if isinstance(said, str):
            return said[:TEXT_CHARS]
    return str(kind) if value is None else encode_json(value).decode()[:TEXT_CHARS]


def _preview(remote: JsonObject, preview: JsonObject) -> str:
    listed = preview.get("properties")
    members = [one for one in (listed if isinstance(listed, list) else []) if isinstance(one, dict)]
    array = remote.get("subtype") == "array"
    parts: list[str] = []
    for one in members[:_PREVIEWED]:
        value = one.get("value")
        text = value if isinstance(value, str) else str(one.get("type", ""))
        if one.get("type") == "string":
            text = encode_json(text).decode()
        parts.append(text if array else f"{one.get('name')}: {text}")
    if preview.get("overflow") is True or len(members) > _PREVIEWED:
        parts.append("…")
    said = str(remote.get("description") or remote.get("className") or "")
    inner = ", ".join(parts)
    if array:
        return f"{said} [{inner}]"
    return f"{'' if said == 'Object' else said + ' '}{{{inner}}}"


def members(listed: JsonValue, handles: Handles) -> list[JsonValue]:
    """Describe the properties of a value; what a getter would give is not asked for."""
    found: list[JsonValue] = []
    for one in listed if isinstance(listed, list) else []:
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            continue
        value = one.get("value")
        if isinstance(value, dict):
            found.append(describe(str(one["name"]), value, handles))
        elif "get" in one or "set" in one:
            shown = {"name": one["name"], "value": "(getter)", "type": "accessor"}
            found.append({**shown, "variablesReference": 0})
    return found


def declared_names(source: str) -> list[str]:
    """Find the names that translated code declares at its top level, which begins at the margin.

    It may find too many (the keys of a pattern); whoever uses them sees which ones exist.
    """
    found: dict[str, None] = {}
    for line in _DECLARATION.finditer(source):
        head, rest = line[1], line[2][:_LINE_CHARS]
        if head not in ("let", "const", "var", "import"):
            rest = rest.partition("(")[0].partition("{")[0].partition(" extends")[0]
        elif head != "import":
            rest = _VALUE.sub(" ", rest)
        for name in _NAME.findall(rest):
            if name not in _WORDS and len(found) < MAX_NAMES:
                found[name] = None
    return list(found)
