"""What an HTTP API offers, read from a file: our own TOML, or OpenAPI 3 in JSON or YAML.

Only what is described can be called, and nothing that comes with a call can change the server, the
method or the shape of a path. References to other documents are not followed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.services.errors import CapabilityInvalidInput

FILE_LIMIT_BYTES: Final = 8 * 1024 * 1024
OPERATIONS_LIMIT: Final = 128
_REFERENCE_DEPTH: Final = 24
_DEPTH_LIMIT: Final = 100
_NODES_LIMIT: Final = 20_000

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_HOLE: Final = re.compile(r"\{([^{}/]+)\}")
_METHODS: Final = ("get", "post", "put", "patch", "delete")
_TYPES: Final = frozenset({"string", "integer", "number", "boolean", "array"})


class ParameterLocation(StrEnum):
    """Where a parameter goes."""

    PATH = "path"
    QUERY = "query"


@dataclass(frozen=True, slots=True)
class RestParameter:
    """One named value of a call."""

    name: str
    place: ParameterLocation
    required: bool
    schema: JsonObject


@dataclass(frozen=True, slots=True)
class RestOperation:
    """One call that can be made; `body` is the schema of its JSON body, None when it has none."""

    name: str
    description: str
    method: str
    path: str
    mutating: bool
    parameters: tuple[RestParameter, ...] = ()
    body: JsonObject | None = None
    body_required: bool = False

    def input_schema(self) -> JsonObject:
        """Return what a call must look like."""
        properties: JsonObject = {one.name: one.schema for one in self.parameters}
        required: list[JsonValue] = [one.name for one in self.parameters if one.required]
        if self.body is not None:
            properties["body"] = self.body
            if self.body_required:
                required.append("body")
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }


@dataclass(frozen=True, slots=True)
class RestDescription:
    """An HTTP API as far as it may be used."""

    base_url: str
    description: str
    operations: Mapping[str, RestOperation]


def load_description(
    file: Path, *, base_url: str | None = None, only: Sequence[str] = ()
) -> RestDescription:
    """Read a description. `only` names the operations to offer; all of them when it is empty.

    Raises:
        CapabilityInvalidInput: the file cannot be read, or says something that cannot be offered.
    """
    document = _read(file)
    openapi = "openapi" in document or "swagger" in document
    try:
        made = _from_openapi(document) if openapi else _from_toml(document)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, CapabilityInvalidInput):
            raise
        raise _bad(f"{file.name} is not a description that can be used: {error!r:.200}") from None
    offered = {name: one for name, one in made.operations.items() if not only or name in only}
    missing = sorted(set(only) - set(offered))
    if missing:
        raise _bad(f"{file.name} has no operation {', '.join(missing)}")
    if not 0 < len(offered) <= OPERATIONS_LIMIT:
        raise _bad(
            f"{file.name} would offer {len(offered)} operations; between 1 and {OPERATIONS_LIMIT} "
            "can be, so name the ones that are wanted in operations"
        )
    return RestDescription(require_base_url(base_url or made.base_url), made.description, offered)


def require_base_url(text: str) -> str:
    """Check the address of an API: https, or http on loopback. Raises CapabilityInvalidInput."""
    parts = urlsplit(text)
    loopback = parts.hostname in {"127.0.0.1", "localhost", "::1"}
    if parts.scheme != "https" and not (parts.scheme == "http" and loopback):
        raise _bad("base_url starts with https:// (http:// on loopback only)")
    if not parts.hostname or parts.username or parts.query or parts.fragment:
        raise _bad("base_url is a server and a path, without user, query or fragment")
    return text.rstrip("/")


# -- our own form ------------------------------------------------------------------------------


def _from_toml(document: Mapping[str, Any]) -> RestDescription:
    found: dict[str, RestOperation] = {}
    for name, said in document["operations"].items():
        method = str(said.get("method", "GET")).upper()
        parameters = tuple(
            RestParameter(
                key,
                ParameterLocation(one.get("in", "query")),
                bool(one.get("required", one.get("in") == "path")),
                _plain_schema(one),
            )
            for key, one in said.get("parameters", {}).items()
        )
        body = said.get("body")
        found[name] = _operation(
            RestOperation(
                name,
                str(said["description"]),
                method,
                str(said["path"]),
                bool(said.get("mutating", method != "GET")),
                parameters,
                None if body is None else cast("JsonObject", dict(body)),
                bool(said.get("body_required", body is not None)),
            )
        )
    return RestDescription(
        str(document.get("base_url", "")), str(document.get("description", "An HTTP API.")), found
    )


def _plain_schema(said: Mapping[str, Any]) -> JsonObject:
    return {
        key: value for key, value in said.items() if key not in {"in", "required"}
    } or {"type": "string"}  # fmt: skip


# -- OpenAPI -----------------------------------------------------------------------------------


def _from_openapi(document: Mapping[str, Any]) -> RestDescription:
    if not str(document.get("openapi", "")).startswith("3."):
        raise _bad("only OpenAPI 3 is understood")
    resolver = _References(document)
    found: dict[str, RestOperation] = {}
    for path, item in document["paths"].items():
        for method in _METHODS:
            said = item.get(method)
            name = said.get("operationId") if isinstance(said, Mapping) else None
            if not isinstance(name, str) or _NAME.fullmatch(name) is None:
                continue
            shared = [*item.get("parameters", []), *said.get("parameters", [])]
            body, needed = _body(resolver, said.get("requestBody"))
            text = said.get("summary") or said.get("description") or name
            found[name] = _operation(
                RestOperation(
                    name,
                    " ".join(str(text).split())[:500],
                    method.upper(),
                    str(path),
                    method != "get",
                    tuple(_parameters(resolver, shared)),
                    body,
                    needed,
                )
            )
    info = document.get("info", {})
    servers = document.get("servers") or [{}]
    return RestDescription(
        str(servers[0].get("url", "")), str(info.get("title", "An HTTP API."))[:200], found
    )


def _parameters(resolver: _References, said: Sequence[Any]) -> list[RestParameter]:
    found: dict[str, RestParameter] = {}
    for one in said:
        parameter = resolver.follow(one)
        place = parameter.get("in")
        if place not in {"path", "query"}:
            continue  # headers and cookies are the host's business
        schema = resolver.inline(parameter.get("schema") or {"type": "string"})
        text = parameter.get("description")
        if isinstance(text, str):
            schema = {**schema, "description": text[:300]}
        name = str(parameter["name"])
        required = parameter.get("required") is True or place == "path"
        found[name] = RestParameter(name, ParameterLocation(place), required, schema)
    return list(found.values())


def _body(resolver: _References, said: Any) -> tuple[JsonObject | None, bool]:
    if not isinstance(said, Mapping):
        return None, False
    body = resolver.follow(said)
    content = body.get("content", {}).get("application/json")
    if not isinstance(content, Mapping):
        return None, False
    return resolver.inline(content.get("schema") or {}), body.get("required") is True


class _References:
    """Follows `#/…` references within one document, and no others."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._nodes = 0

    def follow(self, value: Any) -> Mapping[str, Any]:
        """Return what a value stands for."""
        for _ in range(_REFERENCE_DEPTH):
            reference = value.get("$ref") if isinstance(value, Mapping) else None
            if reference is None:
                return value
            value = self._look_up(str(reference))
        raise _bad("a reference leads in a circle")

    def inline(self, value: Any, above: frozenset[str] = frozenset(), depth: int = 0) -> Any:
        """Return a schema without references; where it contains itself anything is allowed."""
        self._nodes += 1
        if self._nodes > _NODES_LIMIT or depth > _DEPTH_LIMIT:
            raise _bad("the schemas are too large; name fewer operations")
        if isinstance(value, list):
            return [self.inline(one, above, depth + 1) for one in value]
        if not isinstance(value, Mapping):
            return value
        reference = value.get("$ref")
        if isinstance(reference, str):
            if reference in above:
                return {}
            return self.inline(self._look_up(reference), above | {reference}, depth + 1)
        return {
            key: self.inline(one, above, depth + 1)
            for key, one in value.items()
            if key not in {"example", "examples", "xml", "externalDocs", "discriminator"}
        }

    def _look_up(self, reference: str) -> Any:
        if not reference.startswith("#/"):
            raise _bad("references to other documents are not followed")
        found: Any = self._document
        for part in reference[2:].split("/"):
            found = found[part.replace("~1", "/").replace("~0", "~")]
        return found


# -- both --------------------------------------------------------------------------------------


def _operation(made: RestOperation) -> RestOperation:
    holes = _HOLE.findall(made.path)
    in_path = {one.name for one in made.parameters if one.place is ParameterLocation.PATH}
    if _NAME.fullmatch(made.name) is None:
        raise _bad(f"not the name of an operation: {made.name!r:.100}")
    if made.method.lower() not in _METHODS:
        raise _bad(f"{made.name}: {made.method} is not a method that can be used")
    if not made.path.startswith("/") or "?" in made.path or "#" in made.path:
        raise _bad(f"{made.name}: a path starts with / and has no query")
    if set(holes) != in_path:
        raise _bad(f"{made.name}: the holes of the path and the path parameters differ")
    if "body" in {one.name for one in made.parameters}:
        raise _bad(f"{made.name}: no parameter can be named body")
    for one in made.parameters:
        kinds = one.schema.get("type", "string")
        listed = kinds if isinstance(kinds, list) else [kinds]
        if not set(map(str, listed)) <= {*_TYPES, "null"}:
            raise _bad(f"{made.name}: {one.name} is not a plain value or a list of them")
    return made


def _read(file: Path) -> Mapping[str, Any]:
    try:
        if file.stat().st_size > FILE_LIMIT_BYTES:
            raise _bad(f"{file.name} is too large")
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".toml":
            found: Any = tomllib.loads(text)
        else:
            # Heavy; JSON is YAML, too.
            from ruamel.yaml import YAML  # noqa: PLC0415 - see above

            found = YAML(typ="safe", pure=True).load(text)
    except OSError as error:
        raise _bad(f"{file} cannot be read: {error.strerror}") from None
    except CapabilityInvalidInput:
        raise
    except Exception as error:  # noqa: BLE001 - the edge: each parser has errors of its own
        raise _bad(f"{file.name} cannot be parsed: {type(error).__name__}") from None
    if not isinstance(found, Mapping):
        raise _bad(f"{file.name} holds no description")
    return found


def _bad(text: str) -> CapabilityInvalidInput:
    return CapabilityInvalidInput(text)
