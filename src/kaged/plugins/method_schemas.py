"""`MethodSchemas`: what a manifest promises about its methods, held against each call."""

from __future__ import annotations

from typing import Any, cast

from kaged.base import JsonObject, JsonValue
from kaged.config.jsonschemas import compile_schema
from kaged.config.manifest import Manifest
from kaged.wire.errors import InvalidParams

MAX_ERRORS = 10


class MethodSchemas:
    """The schemas of one manifest's methods, compiled once."""

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
        problems = _problems(self._params.get(method), params)
        if problems:
            found: list[JsonValue] = list(problems)
            raise InvalidParams(f"{method}: {problems[0]}", detail={"errors": found})

    def result_problems(self, method: str, result: JsonValue) -> list[str]:
        """Return what about a result is not as promised; a result is passed on all the same."""
        return _problems(self._result.get(method), result)


def _problems(check: Any, value: JsonValue) -> list[str]:
    if check is None or check.is_valid(value):
        return []
    found: list[str] = []
    for error in check.iter_errors(value):
        where = ".".join(str(part) for part in cast("list[object]", error.instance_path))
        found.append(f"{where or '(top)'}: {error.message}")
        if len(found) >= MAX_ERRORS:
            break
    return found
