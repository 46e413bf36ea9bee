"""The `initialize` exchange: what the host says, and every check of the plugin's answer. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.config.manifest import KAGED_API, Manifest
from kaged.wire.messages import Response

LISTED_LIMIT: Final = 1200
"""How many entries a list of the answer may have; a manifest has 1000 methods and 200 tools."""
TEXT_LIMIT_CHARS: Final = 256
WARNINGS_LIMIT: Final = 20


@dataclass(frozen=True, slots=True)
class HandshakeResult:
    """A plugin's accepted answer: what can be called, and what is worth a warning."""

    methods: frozenset[str]
    notifications: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HandshakeFault:
    """Why the plugin is killed: the audit event, its data, and a sentence for the author."""

    event: str
    data: JsonObject
    reason: str


def greeting_params(
    manifest: Manifest,
    daemon_version: str,
    *,
    storage: bool,
    projects: list[str],
    files: JsonObject | None = None,
) -> JsonObject:
    """Return the params of `initialize` (PH-HAND-03 to PH-HAND-07); `files` are shared folders."""
    slugs: list[JsonValue] = list(projects)
    return {
        "daemon_version": daemon_version,
        "api_version": KAGED_API,
        "plugin_name": manifest.name,
        "storage_available": storage,
        "projects": slugs,
        **({} if files is None else {"shared_files": files}),
    }


def check_greeting(response: Response, manifest: Manifest) -> HandshakeResult | HandshakeFault:
    """Check the answer to `initialize`, gate by gate; the first that fails is the fault."""
    if response.empty or not isinstance(response.result, dict):
        return _malformed("the result of initialize is not an object")
    result = response.result
    for field in ("name", "version"):
        said = result.get(field)
        if not isinstance(said, str):
            return _malformed(f"{field} is missing or not text")
        if len(said) > TEXT_LIMIT_CHARS:
            return _malformed(f"{field} has {len(said)} characters, {TEXT_LIMIT_CHARS} at most")
    api = result.get("api_version")
    if type(api) is not int:
        return _malformed("api_version is missing or not an integer")
    lists: dict[str, list[str]] = {}
    for field in ("methods", "notifications", "capabilities_used"):
        raw = result.get(field)
        if raw is None:
            raw = []  # PH-AMB-60: an absent list is an empty one
        # A claim may also be the mapping form of `net: []` (PH-AMB-02); the kernel reads those.
        texts = isinstance(raw, list) and all(isinstance(item, str) for item in raw)
        if not texts and not (field == "capabilities_used" and isinstance(raw, list)):
            return _malformed(f"{field} is not a list of text")
        found = lists[field] = cast("list[str]", raw)
        too_much = _too_much(found)
        if too_much:
            return _malformed(f"{field} {too_much}")
    mismatch = _mismatch(result, manifest) or _overreach(lists["capabilities_used"], manifest)
    return mismatch or _accepted(lists, manifest)


def _too_much(raw: Sequence[object]) -> str:
    """Return what of a list is beyond its limits: work on it would hold up every other plugin."""
    if len(raw) > LISTED_LIMIT:
        return f"has {len(raw)} entries, {LISTED_LIMIT} at most"
    if any(isinstance(item, str) and len(item) > TEXT_LIMIT_CHARS for item in raw):
        return f"has an entry of more than {TEXT_LIMIT_CHARS} characters"
    return ""


def _mismatch(result: JsonObject, manifest: Manifest) -> HandshakeFault | None:
    for field, expected in (("name", manifest.name), ("version", str(manifest.version))):
        said = result[field]
        if said != expected:
            return HandshakeFault(
                f"plugin.{field}_mismatch",
                {"reason": f"initialize.{field}_mismatch", field: expected, "answered": said},
                f"the manifest says {field} {expected!r}, the handshake says {said!r}",
            )
    if result["api_version"] != KAGED_API:
        return HandshakeFault(
            "plugin.api_mismatch",
            {
                "reason": "initialize.api_mismatch",
                "host_api_version": KAGED_API,
                "plugin_api_version": result["api_version"],
            },
            f"the host supports plugin API {KAGED_API}, the plugin uses {result['api_version']}",
        )
    return None


def _overreach(claimed: list[str], manifest: Manifest) -> HandshakeFault | None:
    extra = manifest.capabilities.overreach(claimed)
    if not extra:
        return None
    claims: list[JsonValue] = [str(claim)[:TEXT_LIMIT_CHARS] for claim in claimed]
    allowed: list[JsonValue] = list(manifest.capabilities.texts)
    return HandshakeFault(
        "plugin.capability_overreach",
        {"claimed": claims, "allowed": allowed, "reason": "initialize.capability_overreach"},
        f"it claims {', '.join(extra)}, which its manifest does not have",
    )


def _accepted(lists: dict[str, list[str]], manifest: Manifest) -> HandshakeResult:
    answered = set(lists["methods"])
    declared = set(manifest.methods)
    tools = {f"{manifest.name}.{tool.name}" for tool in manifest.tools}
    warnings = [
        f"{name} is not in the manifest's methods and is ignored"
        for name in sorted(answered - declared - tools)
    ]
    warnings += [
        f"{name} is in the manifest but the plugin does not offer it"
        for name in sorted(declared - answered)
    ]
    if len(warnings) > WARNINGS_LIMIT:
        more = len(warnings) - WARNINGS_LIMIT
        warnings = [*warnings[:WARNINGS_LIMIT], f"and {more} further differences like these"]
    return HandshakeResult(
        methods=frozenset(declared & answered),
        notifications=tuple(lists["notifications"]),
        warnings=tuple(warnings),
    )


def _malformed(detail: str) -> HandshakeFault:
    return HandshakeFault(
        "plugin.protocol_violation",
        {"violation_type": "initialize.malformed", "detail": detail},
        f"the answer to initialize is malformed: {detail}",
    )
