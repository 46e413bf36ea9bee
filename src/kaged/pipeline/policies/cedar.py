"""`CedarPolicy`: policies written in Cedar decide, inside the daemon."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaged.base import JsonObject, JsonValue
from kaged.pipeline.policies.engine import EnginePolicy, NoDecision, Verdict
from kaged.pipeline.policies.options import Options, read_options
from kaged.pipeline.settings import PluginConfig

if TYPE_CHECKING:
    import cedarpy

MAX_FILE_BYTES = 4 * 1024 * 1024
_LARGE_CHARS = 64 * 1024
"""A question of this size is decided on a thread, so that nobody waits for it."""

_LONG = 2**63
_ESCAPES = frozenset({"__entity", "__extn", "__expr"})
_RESOURCES: Mapping[str, tuple[str, str]] = {
    "tool": ("Tool", "name"),
    "prompt": ("Prompt", "prompt_id"),
    "resource": ("Resource", "uri"),
    "agent": ("Agent", "agent_id"),
}
_NOBODY = {"type": "Nobody", "id": "nobody"}


class CedarOptions(Options):
    """Files of the operator's; a relative path would depend on where the daemon was started."""

    policies: str
    entities: str = ""
    schema_file: str = ""


class CedarPolicy(EnginePolicy):
    """Asks Cedar whether the subject may do what the hook is about.

    The principal is `User::"ann"` (or `Agent`, `Service`, `System`), in `Role::"…"` and
    `Team::"…"`; the action is `Action::"<hook>"`, the resource `Tool::"file.read"`, and the
    document about the call is `context`. A policy that cannot be evaluated denies, because the one
    that Cedar passes over may be a `forbid`.
    """

    pure = True

    engine = "Cedar"

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        self._options = read_options(CedarOptions, config)
        self._policies: cedarpy.PolicySet | None = None
        self._schema: cedarpy.Schema | None = None
        self._known: dict[tuple[str, str], dict[str, Any]] = {}
        self._entities: cedarpy.Entities | None = None

    async def initialize(self) -> None:
        """Read the files. Raises ValueError for one that does not parse or does not fit."""
        try:
            import cedarpy  # noqa: PLC0415 - an extra, and not for daemons without such a policy
        except ImportError as error:
            raise ValueError("needs the package cedarpy: pip install 'kaged[cedar]'") from error

        options = self._options
        text = _read(options.policies, "policies")
        self._policies = _parsed("policies", cedarpy.PolicySet.from_str, text)
        if options.schema_file:
            written = _read(options.schema_file, "schema_file")
            schema = self._schema = _parsed("schema_file", cedarpy.Schema.from_str, written)
            checked = cedarpy.validate_policies(text, schema)
            if not checked.validation_passed:
                faults = "; ".join(str(one) for one in checked.errors[:5])
                raise ValueError(f"policies: {faults}")
        entities: Any = []
        if options.entities:
            entities = _parsed("entities", json.loads, _read(options.entities, "entities"))
        self._entities = _parsed("entities", cedarpy.Entities.from_json_str, json.dumps(entities))
        self._known = {_uid(one["uid"]): one for one in entities}

    async def ask(self, question: JsonObject) -> Verdict:
        """Ask Cedar. Raises NoDecision."""
        context = json.dumps(_cedar(question))
        if len(context) > _LARGE_CHARS:
            return await asyncio.to_thread(self._ask, question, context)
        return self._ask(question, context)

    def _ask(self, question: JsonObject, context: str) -> Verdict:
        import cedarpy  # noqa: PLC0415 - loaded by initialize already

        assert self._policies is not None
        principal = _principal(question)
        request = {
            "principal": principal["uid"],
            "action": {"type": "Action", "id": question["hook"]},
            "resource": _resource(question),
            "context": context,
        }
        try:
            entities = self._with(principal)
            done = cedarpy.is_authorized(request, self._policies, entities, self._schema)
        except (ValueError, TypeError) as error:
            raise NoDecision(f"Cedar cannot read the question: {error}") from error
        faults = done.diagnostics.errors
        if faults:
            raise NoDecision(
                f"a Cedar policy cannot be evaluated: {str(faults[0])[:500]}; "
                "ask with `has` before you use what a call may not have"
            )
        named = done.diagnostics.id_annotations_by_reason
        reasons: list[JsonValue] = [named.get(one) or one for one in done.diagnostics.reasons[:20]]
        if done.allowed:
            return Verdict(allowed=True)
        if not reasons:
            return Verdict(allowed=False, reason="no Cedar policy permits it")
        because = ", ".join(map(str, reasons))
        return Verdict(
            allowed=False,
            reason=f"Cedar policy {because} forbids it",
            details={"policies": reasons},
        )

    def _with(self, principal: dict[str, Any]) -> cedarpy.Entities:
        """Return the operator's entities and the principal, as the host knows it."""
        import cedarpy  # noqa: PLC0415 - loaded by initialize already

        assert self._entities is not None
        key = _uid(principal["uid"])
        known = self._known.get(key)
        if known is None:
            return self._entities.with_added_json_str(json.dumps([principal]))
        merged = {
            "uid": principal["uid"],
            "attrs": {**known.get("attrs", {}), **principal["attrs"]},
            "parents": [*known.get("parents", []), *principal["parents"]],
        }
        others = [one for uid, one in self._known.items() if uid != key]
        return cedarpy.Entities.from_json_str(json.dumps([*others, merged]))


def _principal(question: JsonObject) -> dict[str, Any]:
    security = _table(_table(question.get("extensions")).get("security"))
    subject = _table(security.get("subject"))
    if not subject:
        return {"uid": _NOBODY, "attrs": {}, "parents": []}
    attrs = {name: subject.get(name, []) for name in ("roles", "teams", "permissions")}
    parents = [
        {"type": kind, "id": one}
        for kind, names in (("Role", attrs["roles"]), ("Team", attrs["teams"]))
        for one in names
    ]
    return {
        "uid": {"type": str(subject["type"]).capitalize(), "id": subject["id"]},
        "attrs": {**attrs, "claims": _cedar(subject.get("claims", {}))},
        "parents": parents,
    }


def _resource(question: JsonObject) -> dict[str, Any]:
    hook = str(question["hook"])
    kind, key = _RESOURCES.get(hook.partition("_")[0], ("Call", ""))
    name = _table(question["payload"]).get(key)
    return {"type": kind, "id": name if isinstance(name, str) else hook}


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _cedar(value: JsonValue) -> Any:
    """Return a value as Cedar can hold it.

    Cedar has no null and no fractions, and its JSON has keys with a meaning: whoever chooses the
    arguments of a call must not choose entities with them.
    """
    if isinstance(value, dict):
        if not _ESCAPES.isdisjoint(value):
            return json.dumps(value)
        return {name: _cedar(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_cedar(item) for item in value if item is not None]
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int) and not isinstance(value, bool) and not -_LONG <= value < _LONG:
        return str(value)
    return value


def _uid(uid: Any) -> tuple[str, str]:
    found = uid.get("__entity", uid)
    return str(found["type"]), str(found["id"])


def _read(written: str, option: str) -> str:
    path = Path(written).expanduser()
    if not path.is_absolute():
        raise ValueError(f"{option}: write an absolute path")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ValueError(f"{option}: the file has more than {MAX_FILE_BYTES} bytes")
        return content.decode()
    except OSError as error:
        raise ValueError(f"{option}: {path} cannot be read: {error.strerror}") from error


def _parsed(option: str, parse: Any, text: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from error
