"""What happened, plugin by plugin: `ControlExecutionRecord`, and the safe outcome of a denial."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from kaged.pipeline.merge import DiscardedChange
from kaged.pipeline.modes import PluginMode
from kaged.pipeline.shapes import PlainRecord

if TYPE_CHECKING:
    from kaged.pipeline.violations import PluginViolation

MAX_TEXT_BYTES = 256
MAX_CONFIG_KEYS = 64
MAX_DENIAL_METRICS = 16

_METRIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}\Z", re.ASCII)
_INT64_MAX = 2**63 - 1
_INT32_MAX = 2**31 - 1

DenialMetric: TypeAlias = "bool | int | float"


class ControlExecutionStatus(StrEnum):
    """How a plugin's run ended, apart from what it decided."""

    COMPLETED = "completed"
    ERROR = "error"
    TIMEOUT = "timeout"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class ControlExecutionRecord(PlainRecord):
    """One plugin's run in one chain. All of it comes from the host; a plugin cannot forge a field.

    `matched` is None when no result was obtained. `suppressed` marks a denial from a mode that
    cannot deny. `discarded` names the changes that did not come through, never their values.
    """

    shape: ClassVar[tuple[str, ...]] = (
        "plugin_id",
        "plugin_name",
        "plugin_kind",
        "hook_name",
        "mode",
        "status",
        "requested_allow",
        "effective_allow",
        "matched",
        "applied",
        "payload_modified",
        "extensions_modified",
        "duration_ns",
        "reason",
        "error_code",
        "config_keys",
        "suppressed",
        "discarded",
    )

    plugin_id: str
    plugin_name: str
    plugin_kind: str
    hook_name: str
    mode: PluginMode
    status: ControlExecutionStatus
    requested_allow: bool | None = None
    effective_allow: bool = True
    matched: bool | None = None
    applied: bool = False
    payload_modified: bool = False
    extensions_modified: bool = False
    duration_ns: int = 0
    reason: str | None = None
    error_code: str | None = None
    config_keys: tuple[str, ...] = ()
    suppressed: bool = False
    discarded: tuple[DiscardedChange, ...] = ()

    def model_dump(self, **_options: Any) -> dict[str, Any]:
        """Return the values as plain data."""
        data = super(ControlExecutionRecord, self).model_dump()
        data["discarded"] = [
            {"slot": change.slot, "tier": str(change.tier), "reason": change.reason}
            for change in self.discarded
        ]
        return data


@dataclass(frozen=True, slots=True)
class DenialExecutionRecord:
    """A record without free text and configuration, safe to send to a metrics system."""

    plugin_id: str
    plugin_name: str
    plugin_kind: str
    hook_name: str
    mode: PluginMode
    status: str
    requested_allow: bool | None
    effective_allow: bool
    matched: bool | None
    applied: bool
    payload_modified: bool
    extensions_modified: bool
    duration_ns: int
    error_code: str | None

    @classmethod
    def from_execution(cls, execution: ControlExecutionRecord) -> DenialExecutionRecord:
        """Take the safe part of a record."""
        return cls(
            plugin_id=execution.plugin_id,
            plugin_name=execution.plugin_name,
            plugin_kind=execution.plugin_kind,
            hook_name=execution.hook_name,
            mode=execution.mode,
            status=execution.status.value,
            requested_allow=execution.requested_allow,
            effective_allow=execution.effective_allow,
            matched=execution.matched,
            applied=execution.applied,
            payload_modified=execution.payload_modified,
            extensions_modified=execution.extensions_modified,
            duration_ns=execution.duration_ns,
            error_code=_label(execution.error_code),
        )


@dataclass(frozen=True, slots=True)
class DenialOutcome:
    """Who denied and with which code; no payload, no headers, no free text."""

    execution: DenialExecutionRecord
    violation_code: str | None
    mcp_error_code: int | None
    http_status_code: int | None
    metadata: Mapping[str, DenialMetric]

    @classmethod
    def from_execution(
        cls,
        execution: ControlExecutionRecord,
        violation: PluginViolation | None,
        metadata: Mapping[str, DenialMetric] | None,
    ) -> DenialOutcome:
        """Build the outcome from the host's record and the plugin's violation."""
        return cls(
            execution=DenialExecutionRecord.from_execution(execution),
            violation_code=None if violation is None else _label(violation.code),
            mcp_error_code=None
            if violation is None
            else _integer(violation.mcp_error_code, -_INT32_MAX - 1, _INT32_MAX),
            http_status_code=None
            if violation is None
            else _integer(violation.http_status_code, 100, 599),
            metadata=MappingProxyType(dict(metadata or {})),
        )


def sanitize_denial_metadata(metadata: object) -> dict[str, DenialMetric]:
    """Keep the numeric metrics of a denial: named safely, bounded, at most sixteen."""
    if not isinstance(metadata, Mapping) or len(metadata) > MAX_DENIAL_METRICS:
        return {}
    safe: dict[str, DenialMetric] = {}
    for name, value in metadata.items():
        if type(name) is not str or _METRIC_NAME.fullmatch(name) is None:
            continue
        if (
            type(value) is bool
            or (type(value) is int and -_INT64_MAX - 1 <= value <= _INT64_MAX)
            or (type(value) is float and math.isfinite(value))
        ):
            safe[name] = value
    return safe


def shorten(text: str) -> str:
    """Cut free text to 256 bytes of UTF-8, with an ellipsis where it was cut."""
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_TEXT_BYTES:
        return text
    return data[: MAX_TEXT_BYTES - 3].decode("utf-8", "ignore") + "…"


def nanoseconds(duration_s: float) -> int:
    """Return a duration in nanoseconds; a step that ran took at least one."""
    return int(duration_s * 1_000_000_000) or 1


def shown(error: BaseException) -> str:
    """Show an exception, whatever its class makes of that."""
    try:
        return repr(error)
    except Exception:  # noqa: BLE001 - boundary: the error class is the plugin's own
        return type(error).__name__


def _label(value: object) -> str | None:
    return value if type(value) is str and _METRIC_NAME.fullmatch(value) else None


def _integer(value: object, minimum: int, maximum: int) -> int | None:
    return value if type(value) is int and minimum <= value <= maximum else None
