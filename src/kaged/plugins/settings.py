"""A plugin's configuration: two halves, two schemas, one object for the plugin.

The project half is committed, the system half holds secrets; the split is the host's trust line
and the plugin never sees it. Schemas are compiled once per manifest.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, cast

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.config.jsonschemas import compile_schema
from kaged.config.localconfig import ModelTrait
from kaged.config.manifest import Manifest
from kaged.config.settings import Settings
from kaged.wire.errors import InvalidParams

_MASK = "***"
MAX_ERRORS = 50
MAX_METHOD_ERRORS = 10


class Side(StrEnum):
    """Which half of a configuration."""

    PROJECT = "project"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class HalfInvalid:
    """A half that does not fit its schema; `errors` never show a value of the system half."""

    side: Side
    errors: tuple[str, ...]


class MethodSchemas:
    """What a manifest promises about its methods, compiled once and held against each call."""

    def __init__(self, manifest: Manifest) -> None:
        self._params: dict[str, Any] = {}
        self._result: dict[str, Any] = {}
        for method, schemas in manifest.method_schemas.items():
            if schemas.params is not None:
                self._params[method] = compile_schema(schemas.params)
            if schemas.result is not None:
                self._result[method] = compile_schema(schemas.result)

    def require_params(self, method: str, params: JsonObject) -> None:
        """Refuse params that do not fit, before anything is sent. Raises InvalidParams."""
        problems = _errors(self._params.get(method), params, MAX_METHOD_ERRORS)
        if problems:
            found: list[JsonValue] = list(problems)
            raise InvalidParams(f"{method}: {problems[0]}", detail={"errors": found})

    def result_problems(self, method: str, result: JsonValue) -> list[str]:
        """Return what about a result is not as promised; a result is passed on all the same."""
        return _errors(self._result.get(method), result, MAX_METHOD_ERRORS)


class ConfigSchemas:
    """The schemas of one manifest, compiled: the two of its config, and those of its methods."""

    def __init__(self, manifest: Manifest) -> None:
        self._project = _plain(manifest.config_schema)
        self._system = _plain(manifest.system_config_schema)
        self._system_fields = frozenset(_properties(self._system))
        self._check_project = _compile(self._project)
        self._check_system = _compile(self._system)
        self.methods = MethodSchemas(manifest)

    @property
    def has_isolation(self) -> bool:
        """Whether the project half has `isolation`, the other spelling of the declaration's."""
        rule = _properties(self._project).get("isolation")
        if not isinstance(rule, dict):
            return False
        known = rule.get("enum")
        if isinstance(known, list):
            return "agent" in known and "project" in known
        return rule.get("type") == "string"

    @property
    def any(self) -> bool:
        """Whether the manifest has either schema."""
        return self._project is not None or self._system is not None

    def check_project(self, half: Mapping[str, JsonValue]) -> HalfInvalid | None:
        """Check a project half, with its defaults filled in."""
        misplaced = sorted(self._system_fields & half.keys())
        errors = [
            f"{name} belongs to the operator's local.toml and may not stand in a project file"
            for name in misplaced
        ]
        own: JsonObject = {k: v for k, v in half.items() if k not in self._system_fields}
        errors += _errors(self._check_project, _with_defaults(self._project, own))
        return HalfInvalid(Side.PROJECT, tuple(errors[:MAX_ERRORS])) if errors else None

    def check_system(self, half: Mapping[str, JsonValue]) -> HalfInvalid | None:
        """Check the system half, with its defaults filled in."""
        errors = _errors(self._check_system, _with_defaults(self._system, dict(half)))
        return HalfInvalid(Side.SYSTEM, tuple(errors[:MAX_ERRORS])) if errors else None

    def missing_system(self, half: Mapping[str, JsonValue]) -> list[str]:
        """Return the names that the operator must set and has not."""
        asked = (self._system or {}).get("required")
        filled = _with_defaults(self._system, dict(half))
        return [
            name
            for name in (asked if isinstance(asked, list) else [])
            if isinstance(name, str) and name not in filled
        ]

    def merged(
        self, project: Mapping[str, JsonValue], system: Mapping[str, JsonValue]
    ) -> JsonObject:
        """Return the one object that the plugin receives: both halves and their defaults."""
        return {
            **_with_defaults(self._project, dict(project)),
            **_with_defaults(self._system, dict(system)),
        }


def _compile(schema: JsonObject | None) -> Any:
    return None if schema is None else compile_schema(schema, mask=_MASK)


def _errors(check: Any, value: JsonValue, most: int = MAX_ERRORS) -> list[str]:
    if check is None or check.is_valid(value):
        return []
    found: list[str] = []
    for error in itertools.islice(check.iter_errors(value), most):
        where = ".".join(str(part) for part in cast("list[object]", error.instance_path))
        found.append(f"{where or '(top)'}: {error.message}")
    return found


def _with_defaults(schema: JsonObject | None, value: JsonObject) -> JsonObject:
    for name, rule in _properties(schema).items():
        if not isinstance(rule, dict):
            continue
        if name not in value and "default" in rule:
            value[name] = copy.deepcopy(rule["default"])
        inner = value.get(name)
        if isinstance(inner, dict):
            value[name] = _with_defaults(rule, dict(inner))
    return value


def _properties(schema: JsonObject | None) -> JsonObject:
    found = None if schema is None else schema.get("properties")
    return found if isinstance(found, dict) else {}


def _plain(schema: Mapping[str, JsonValue] | None) -> JsonObject | None:
    return None if schema is None else cast("JsonObject", thaw(schema))


def thaw(value: object) -> JsonValue:
    """Turn frozen mappings and tuples of the config into plain JSON data."""
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return {key: thaw(item) for key, item in items}
    if isinstance(value, tuple | list):
        return [thaw(item) for item in cast("list[object]", value)]
    return cast("JsonValue", value)


def model_traits(settings: Settings) -> Mapping[str, frozenset[ModelTrait]]:
    """Return the operator's model aliases with what each is said to be good at."""
    return {
        alias: frozenset(model.traits) for alias, model in settings.local.value.models.good.items()
    }
