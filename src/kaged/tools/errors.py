"""`ToolError`: why a tool call ended without a result, in the one shape that every caller gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.kernel.decision import CapabilityDenied, Decision
from kaged.kernel.describe import describe_denial, operator_fix
from kaged.wire.errors import RpcError, number_of


class ToolErrorCode(StrEnum):
    """The codes a tool call can end with; a code that is missing here may still come (plugins)."""

    TOOL_NOT_FOUND = "tool_not_found"
    INVALID_PARAMS = "invalid_params"
    INTERNAL_ERROR = "internal_error"
    CAPABILITY_DENIED = "capability_denied"
    SECCOMP_INSUFFICIENT = "seccomp_insufficient"
    PRINCIPAL_SCOPE_VIOLATION = "principal_scope_violation"
    FILE_NOT_FOUND = "file_not_found"
    FILE_EXISTS = "file_exists"
    FILE_NOT_READ = "file_not_read"
    FILE_CHANGED_SINCE_READ = "file_changed_since_read"
    FILE_BUSY = "file_busy"
    OLD_STRING_NOT_FOUND = "old_string_not_found"
    MULTIPLE_MATCHES = "multiple_matches"
    NO_CHANGE = "no_change"
    INVALID_PATTERN = "invalid_pattern"
    LSP_SERVER_NOT_FOUND = "lsp_server_not_found"
    LSP_SERVER_UNAVAILABLE = "lsp_server_unavailable"
    LSP_TIMEOUT = "lsp_timeout"
    RENAME_SCOPE_EXCEEDS_CAGE = "rename_scope_exceeds_cage"
    RENAME_NOT_POSSIBLE = "rename_not_possible"
    DAP_REQUIRES_RELAXED_SECCOMP = "dap_requires_relaxed_seccomp"
    DAP_SESSION_ENDED = "dap_session_ended"
    DAP_ADAPTER_NOT_FOUND = "dap_adapter_not_found"
    ISSUE_NOT_FOUND = "issue_not_found"
    INVALID_TRANSITION = "invalid_transition"
    NO_BOUND_ISSUE = "no_bound_issue"
    TODO_NOT_FOUND = "todo_not_found"
    CONTENT_ADDRESSING_HINT = "content_addressing_hint"
    SESSION_NOT_FOUND = "session_not_found"
    WORKFLOW_NOT_FOUND = "workflow_not_found"
    RUN_NOT_FOUND = "run_not_found"
    FILE_INPUT_NOT_SUPPORTED = "file_input_not_supported"
    INVALID_ASSIGNMENT = "invalid_assignment"
    SHELL_SPAWN_FAILED = "shell_spawn_failed"
    TOOL_NAME_COLLISION = "tool_name_collision"
    PARSE_ERROR = "parse_error"
    DAP_SESSION_ACTIVE = "dap_session_active"
    DAP_NOT_STOPPED = "dap_not_stopped"
    DAP_UNSUPPORTED = "dap_unsupported"
    INTERACTION_PENDING = "interaction_pending"
    PLUGIN_UNAVAILABLE = "plugin_unavailable"
    # Ours, beyond the list of the specification.
    PIPELINE_REFUSED = "pipeline_refused"
    QUOTA_EXCEEDED = "quota_exceeded"
    AUDIT_UNAVAILABLE = "audit_unavailable"
    PATH_PROTECTED = "path_protected"
    RESULT_NOT_FOUND = "result_not_found"
    WEB_FAILED = "web_failed"
    WEB_NOT_FOUND = "web_not_found"
    WEB_NOT_TEXT = "web_not_text"
    WEB_TIMEOUT = "web_timeout"
    WEB_TOO_LARGE = "web_too_large"
    WEB_UNREACHABLE = "web_unreachable"


class ToolError(KagedError):
    """A tool call that failed. Subclasses have the `code`; `detail` is for the calling agent.

    `number` is the JSON-RPC number of the code, from the one table of the wire (AT-DISP-08).
    """

    code = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        fix: str = "",
        detail: JsonValue = None,
        **data: JsonValue,
    ) -> None:
        super().__init__(message, code=code, fix=fix or None, **data)
        self.detail: JsonValue = detail

    @property
    def number(self) -> int:
        """Return the JSON-RPC error number of this failure."""
        return number_of(self.code)

    def as_json(self) -> JsonObject:
        """Return the failure in the shape of every tool error (AT-DISP-07)."""
        return {
            "code": self.code,
            "number": self.number,
            "message": str(self),
            "detail": self.detail,
        }


class InvalidToolParams(ToolError):
    """The arguments do not fit; `detail.fields` lists `{field, problem}` for each mistake."""

    code = "invalid_params"

    @classmethod
    def of_field(cls, field: str, problem: str, *, fix: str = "") -> InvalidToolParams:
        """Return the error for one field."""
        return cls.of_fields([(field, problem)], fix=fix)

    @classmethod
    def of_fields(cls, problems: Iterable[tuple[str, str]], *, fix: str = "") -> InvalidToolParams:
        """Return one error for several fields; the message names all of them."""
        listed = list(problems)
        said = [f"{field}: {problem}" if field else problem for field, problem in listed]
        fields: list[JsonValue] = [
            {"field": field, "problem": problem} for field, problem in listed
        ]
        return cls(f"invalid parameters: {'; '.join(said)}", fix=fix, detail={"fields": fields})


class ToolRefused(ToolError):
    """Base of the refusals: the call ends with the audit event `tool.denied`.

    `denied_capability` says in a few words what was missing; `rule` names the rule that spoke.
    """

    code = "capability_denied"
    rule: str = "tool.refused"

    @property
    def denied_capability(self) -> str:
        """What was missing, for the audit log."""
        return self.detail if isinstance(self.detail, str) and self.detail else self.code


class ToolCapabilityRefused(ToolRefused):
    """The caller's cage does not grant what the call needs; `detail` is e.g. `rw:fs:./data/x`."""

    code = "capability_denied"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        fix: str = "",
        detail: JsonValue = None,
        decision: Decision | None = None,
    ) -> None:
        super().__init__(message, code=code, fix=fix, detail=detail)
        self.decision = decision
        if decision is not None:
            self.rule = decision.rule

    @classmethod
    def of(cls, decision: Decision) -> ToolCapabilityRefused:
        """Turn a negative decision into the error of its code."""
        sentence = describe_denial(decision)
        return cls(
            sentence.words,
            code=_denial(decision.code),
            fix=operator_fix(sentence.fix),
            detail=decision.detail,
            decision=decision,
        )


class PrincipalScopeViolation(ToolRefused):
    """The tool is for the root agent only."""

    code = "principal_scope_violation"
    rule = "tool.principal_scope"


class PipelineRefused(ToolRefused):
    """A plugin of the extension pipeline ended the call, or could not be asked.

    `wants_approval` names the plugin that would let it pass if a person agreed, `approver` that
    person, if it must be another than the one whom the call is made for. `told` is what
    programs learn beside the words: policy, description, when to try again.
    """

    code = "pipeline_refused"
    rule = "pipeline"

    def __init__(
        self,
        message: str,
        *,
        fix: str = "",
        detail: JsonValue = None,
        denied_by: str | None = None,
        wants_approval: bool = False,
        approver: str | None = None,
        told: Mapping[str, JsonValue] | None = None,
    ) -> None:
        super().__init__(message, fix=fix, detail=detail)
        self.data.update(told or {})
        self.denied_by = denied_by
        self.wants_approval = denied_by if wants_approval else None
        self.approver = approver

    def as_json(self) -> JsonObject:
        """Return the failure with what the policy said about it."""
        return {**super().as_json(), **self.data}


class QuotaExceeded(ToolRefused):
    """The agent used up what the operator allows it."""

    code = "quota_exceeded"
    rule = "tool.quota"


class ReportedError(ToolError):
    """An error of another package or process, with the code and number it came with."""

    def __init__(
        self, code: str, message: str, *, number: int | None = None, detail: JsonValue = None
    ) -> None:
        super().__init__(message, code=code, detail=detail)
        self._number = number

    @property
    def number(self) -> int:
        """Return the number it came with, or that of its code."""
        return number_of(self.code) if self._number is None else self._number


def tool_error_of(error: KagedError) -> ToolError:
    """Return any error with a code as a tool error with the same code.

    An error that came off the wire keeps its number (AT-DISP-16); a denial of the kernel stays a
    denial.
    """
    if isinstance(error, ToolError):
        return error
    if isinstance(error, RpcError):
        return ReportedError(error.code, error.message, number=error.number, detail=error.detail)
    fix = error.fix or ""
    detail: JsonValue = getattr(error, "detail", None)
    if detail is None and error.data:
        detail = error.data.get("detail", dict(error.data))
    if isinstance(error, CapabilityDenied):
        return ToolCapabilityRefused(
            error.message, code=_denial(error.code), fix=fix, detail=detail
        )
    if error.code == InvalidToolParams.code:
        return InvalidToolParams(error.message, fix=fix, detail=detail)
    return ToolError(error.message, code=error.code, fix=fix, detail=detail)


def _denial(code: str) -> str | None:
    """Return the code of a refusal: its own where it has one, or none for that of the class."""
    return code if code in {"seccomp_insufficient", "path_protected"} else None
