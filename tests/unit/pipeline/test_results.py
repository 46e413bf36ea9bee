from __future__ import annotations

import asyncio

import pytest

from kaged.base.tasks import Tasks
from kaged.pipeline import (
    ControlExecutionRecord,
    ControlExecutionStatus,
    PluginErrorModel,
    PluginMode,
    PluginResult,
    PluginViolation,
    ToolPreInvokePayload,
    ToolPreInvokeResult,
)
from kaged.pipeline.discards import DiscardedChange
from kaged.pipeline.errors import (
    PluginError,
    PluginViolationError,
    convert_exception_to_error,
)
from kaged.pipeline.records import (
    DenialOutcome,
    sanitize_denial_metadata,
    shorten,
)
from kaged.pipeline.tiers import MutabilityTier
from requirements import requirement


def record(**changes: object) -> ControlExecutionRecord:
    given: dict[str, object] = {
        "plugin_id": "0" * 32,
        "plugin_name": "p",
        "plugin_kind": "a.B",
        "hook_name": "tool_pre_invoke",
        "mode": PluginMode.SEQUENTIAL,
        "status": ControlExecutionStatus.COMPLETED,
    }
    return ControlExecutionRecord(**{**given, **changes})  # pyright: ignore[reportArgumentType] - test data


def test_a_plain_result_continues_and_has_empty_fields() -> None:
    result = ToolPreInvokeResult()
    assert result.continue_processing is True
    assert result.modified_payload is None
    assert result.modified_extensions is None
    assert result.violation is None
    assert result.metadata == {}
    assert result.executions == []
    assert result.retry_delay_ms == 0
    assert ToolPreInvokeResult is PluginResult
    assert result == PluginResult(continue_processing=True)
    assert "continue_processing=True" in repr(result)


def test_metadata_belongs_to_one_result() -> None:
    first, second = PluginResult[None](), PluginResult[None]()
    first.metadata["k"] = 1
    assert first.metadata == {"k": 1}
    assert second.metadata == {}
    assert PluginResult.metadata == {}


def test_a_result_keeps_everything_it_is_given() -> None:
    payload = ToolPreInvokePayload(name="t")
    violation = PluginViolation(reason="r", description="d", code="c")
    result = PluginResult(
        continue_processing=False,
        modified_payload=payload,
        violation=violation,
        metadata={"a": 1},
        denial_metadata={"n": 1},
        background_tasks=[],
        http_headers={"h": "v"},
        retry_delay_ms=5,
    )
    data = result.model_dump()
    assert data["modified_payload"] == {"name": "t", "args": {}, "headers": None}
    assert data["violation"]["code"] == "c"
    assert (data["retry_delay_ms"], data["http_headers"]) == (5, {"h": "v"})
    assert result.suppressed_denials == []


async def test_waiting_without_background_tasks_gives_no_errors() -> None:
    assert await PluginResult[None]().wait_for_background_tasks() == []


@requirement("EX-AMB-12")
async def test_a_background_plugin_that_was_stopped_hides_no_error_of_another() -> None:
    failed = PluginErrorModel(message="broken", plugin_name="late")

    async def fails() -> PluginErrorModel | None:
        return failed

    async def hangs() -> PluginErrorModel | None:
        await asyncio.Event().wait()
        return None

    tasks = Tasks("test")
    stopped = tasks.start(hangs(), "stopped")
    result = PluginResult[None](background_tasks=[stopped, tasks.start(fails(), "late")])
    stopped.cancel()
    assert await result.wait_for_background_tasks() == [failed]


def test_a_violation_is_text_and_gets_its_plugin_from_the_host() -> None:
    violation = PluginViolation("r", "d", "c", details={"k": [1]}, http_status_code=403)
    assert violation.plugin_name == ""
    violation.plugin_name = "p"
    assert violation.plugin_name == "p"
    assert "plugin_name" not in violation.model_dump()
    with pytest.raises(ValueError, match="not empty"):
        violation.plugin_name = " "
    with pytest.raises(TypeError, match="code"):
        PluginViolation("r", "d", 5)  # pyright: ignore[reportArgumentType] - that is the point
    own = violation.for_host("real")
    assert (own.plugin_name, own.http_status_code) == ("real", 403)
    violation.details["k"].append("later")
    assert own.details == {"k": [1]}
    odd = PluginViolation("r", "d", "c", mcp_error_code="x", http_status_code="y")  # pyright: ignore[reportArgumentType] - a lie
    assert (odd.for_host("p").mcp_error_code, odd.for_host("p").http_status_code) == (None, None)


def test_free_text_is_cut_to_256_bytes_with_an_ellipsis() -> None:
    assert shorten("short") == "short"
    cut = shorten("ä" * 300)
    assert cut.endswith("…")
    assert len(cut.encode()) <= 256


def test_denial_metrics_are_small_numbers_with_safe_names() -> None:
    assert sanitize_denial_metadata(
        {
            "ok": 1,
            "flag": True,
            "part": 0.5,
            "bad name": 1,
            "text": "x",
            "big": 2**70,
            "nan": float("nan"),
            5: 1,
        }
    ) == {"ok": 1, "flag": True, "part": 0.5}
    assert sanitize_denial_metadata({str(n): n for n in range(17)}) == {}
    assert sanitize_denial_metadata(None) == {}


def test_a_denial_outcome_holds_codes_and_no_free_text() -> None:
    denied = record(reason="secret words", error_code="my_code", effective_allow=False)
    violation = PluginViolation(
        "secret words", "d", "my_code", mcp_error_code=-32000, http_status_code=403
    )
    outcome = DenialOutcome.from_execution(denied, violation, {"n": 1})
    assert (outcome.violation_code, outcome.mcp_error_code, outcome.http_status_code) == (
        "my_code",
        -32000,
        403,
    )
    assert dict(outcome.metadata) == {"n": 1}
    assert "secret words" not in repr(outcome)
    bare = DenialOutcome.from_execution(record(error_code="has spaces"), None, None)
    assert (bare.violation_code, bare.execution.error_code) == (None, None)
    odd = PluginViolation("r", "d", "c", http_status_code=9)
    assert DenialOutcome.from_execution(denied, odd, None).http_status_code is None


def test_a_record_is_data() -> None:
    change = DiscardedChange("http", MutabilityTier.IMMUTABLE, "not granted")
    data = record(discarded=(change,)).model_dump()
    assert data["status"] == "completed"
    assert data["discarded"] == [{"slot": "http", "tier": "immutable", "reason": "not granted"}]


def test_errors_carry_what_happened() -> None:
    model = convert_exception_to_error(ValueError("nope"), "p")
    assert (model.plugin_name, model.mcp_error_code) == ("p", -32603)
    assert "ValueError('nope')" in model.message
    error = PluginError(PluginErrorModel("boom", "p"))
    assert (str(error), error.error.plugin_name, error.executions) == ("boom", "p", None)
    raised = PluginViolationError("blocked", PluginViolation("r", "d", "c"))
    assert (raised.denial_outcome, raised.executions) == (None, None)
    assert PluginErrorModel("m", "p").model_dump()["code"] == ""
