"""What happened, plugin by plugin: `PluginViolation`, `ControlExecutionRecord`, `DenialOutcome`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeAlias

from kaged.base.lazy_dataclass import dataclass
from kaged.pipeline.discards import DiscardedChange
from kaged.pipeline.isolation import exact_text, isolate_payload
from kaged.pipeline.modes import PluginMode
from kaged.pipeline.shapes import PlainRecord

MAX_TEXT_BYTES = 256
MAX_CONFIG_KEYS = 64
MAX_DENIAL_METRICS = 16

_METRIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}\Z", re.ASCII)
_INT64_MAX = 2**63 - 1
_INT32_MAX = 2**31 - 1

APPROVAL_REQUIRED: Final = "approval_required"
"""The code of a violation that a person may overrule: the host asks, and the call waits."""

APPROVER: Final = "approver"
"""In the details of such a violation: who has to agree, if not whom the call is made for."""

OPERATOR: Final = "operator"
"""The approver that is no person of the front end's."""

DenialMetric: TypeAlias = "bool | int | float"


class PluginViolation(PlainRecord):
    """Why a plugin says no: a short reason, a description and a code, plus what to answer."""

    shape: ClassVar[tuple[str, ...]] = (
        "reason",
        "description",
        "code",
        "details",
        "mcp_error_code",
        "http_status_code",
        "http_headers",
    )
    __slots__ = ("_plugin_name", *shape)

    def __init__(
        self,
        reason: str,
        description: str,
        code: str,
        details: dict[str, Any] | None = None,
        mcp_error_code: int | None = None,
        http_status_code: int | None = None,
        http_headers: dict[str, str] | None = None,
    ) -> None:
        for name, text in (("reason", reason), ("description", description), ("code", code)):
            if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are plugins
                raise TypeError(f"{name} of a violation is text, not {type(text).__name__}")
        self.reason = reason
        self.description = description
        self.code = code
        self.details: dict[str, Any] = {} if details is None else details
        self.mcp_error_code = mcp_error_code
        self.http_status_code = http_status_code
        self.http_headers = http_headers
        self._plugin_name = ""

    @property
    def plugin_name(self) -> str:
        """Return the name of the plugin that denied; set by the host."""
        return self._plugin_name

    @plugin_name.setter
    def plugin_name(self, name: str) -> None:
        if not name.strip():
            raise ValueError("the plugin name of a violation is not empty")
        self._plugin_name = name

    def for_host(self, plugin_name: str) -> PluginViolation:
        """Copy this into the host's hands, with the name of the plugin that it came from."""
        own = PluginViolation(
            exact_text(self.reason) or "",
            exact_text(self.description) or "",
            exact_text(self.code) or "",
            isolate_payload(self.details),
            self.mcp_error_code if type(self.mcp_error_code) is int else None,
            self.http_status_code if type(self.http_status_code) is int else None,
            isolate_payload(self.http_headers),
        )
        own._plugin_name = plugin_name
        return own


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
        # Slots make the class anew, and `super()` alone would still mean the first one.
        data = super(ControlExecutionRecord, self).model_dump()  # noqa: UP008 - see above
        data["discarded"] = [
            {"slot": change.slot, "tier": str(change.tier), "reason": change.reason}
            for change in self.discarded
        ]
        return data


ControlExecutionRecord.shape = tuple(field.name for field in fields(ControlExecutionRecord))


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
        values = {field.name: getattr(execution, field.name) for field in fields(cls)}
        values["status"] = execution.status.value
        values["error_code"] = _label(execution.error_code)
        return cls(**values)


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
        code = mcp_code = http_code = None
        if violation is not None:
            code = _label(violation.code)
            mcp_code = _integer(violation.mcp_error_code, -_INT32_MAX - 1, _INT32_MAX)
            http_code = _integer(violation.http_status_code, 100, 599)
        return cls(
            execution=DenialExecutionRecord.from_execution(execution),
            violation_code=code,
            mcp_error_code=mcp_code,
            http_status_code=http_code,
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


def _label(value: object) -> str | None:
    return value if type(value) is str and _METRIC_NAME.fullmatch(value) else None


def _integer(value: object, minimum: int, maximum: int) -> int | None:
    return value if type(value) is int and minimum <= value <= maximum else None
