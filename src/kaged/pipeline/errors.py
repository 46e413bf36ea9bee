"""Errors of the pipeline that a caller handles: a denial, a failed plugin, a faulty setup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from kaged.base import KagedError
from kaged.base.foreign import describe_error
from kaged.pipeline.records import (
    ControlExecutionRecord,
    DenialOutcome,
    PluginViolation,
    sanitize_denial_metadata,
)
from kaged.pipeline.shapes import PlainRecord

MCP_INTERNAL_ERROR = -32603


class PluginErrorModel(PlainRecord):
    """What went wrong inside a plugin, as data."""

    shape: ClassVar[tuple[str, ...]] = (
        "message",
        "plugin_name",
        "code",
        "details",
        "mcp_error_code",
    )
    __slots__ = shape

    def __init__(
        self,
        message: str,
        plugin_name: str,
        code: str | None = "",
        details: dict[str, Any] | None = None,
        mcp_error_code: int = MCP_INTERNAL_ERROR,
    ) -> None:
        self.message = message
        self.plugin_name = plugin_name
        self.code = code
        self.details: dict[str, Any] = {} if details is None else details
        self.mcp_error_code = mcp_error_code


class PluginError(KagedError):
    """A plugin failed and its error policy ends the call; `executions` tells how far it got."""

    code = "plugin_error"

    def __init__(self, error: PluginErrorModel) -> None:
        super().__init__(error.message, plugin=error.plugin_name)
        self.error = error
        self.executions: list[ControlExecutionRecord] | None = None


class PluginViolationError(KagedError):
    """A plugin denied the call, and the caller asked to have denials raised."""

    code = "plugin_violation"

    def __init__(self, message: str, violation: PluginViolation | None = None) -> None:
        super().__init__(message)
        self.violation = violation
        self.executions: list[ControlExecutionRecord] | None = None
        self.denial_outcome: DenialOutcome | None = None

    @classmethod
    def of_host(
        cls,
        message: str,
        violation: PluginViolation | None,
        denial_metadata: Mapping[str, Any] | None,
        executions: list[ControlExecutionRecord],
    ) -> PluginViolationError:
        """Make the error of a denial that the host found; the last record is the denier's."""
        error = cls(message, violation)
        error.executions = executions
        error.denial_outcome = DenialOutcome.from_execution(
            executions[-1], violation, sanitize_denial_metadata(denial_metadata)
        )
        return error


class PayloadSizeError(KagedError, ValueError):
    """A payload is larger than the pipeline takes."""

    code = "pipeline_payload_too_large"


class PipelineNotReady(KagedError):
    """The configuration that names this hook is faulty, so calls on it are refused."""

    code = "pipeline_not_ready"


def not_loaded(message: str, key: str, fix: str | None = None) -> KagedError:
    """Return the error for a plugin that cannot be loaded; `key` of its entry is at fault."""
    return KagedError(message, code="pipeline_plugin_not_loaded", fix=fix, key=key)


def convert_exception_to_error(exception: BaseException, plugin_name: str) -> PluginErrorModel:
    """Describe an exception as data."""
    return PluginErrorModel(
        message=describe_error(exception, as_repr=True), plugin_name=plugin_name
    )
