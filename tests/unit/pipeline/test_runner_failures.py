from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kaged.pipeline import (
    ControlExecutionStatus,
    Extensions,
    GlobalContext,
    HttpExtension,
    Plugin,
    PluginContext,
    PluginError,
    PluginResult,
    PluginViolation,
    PluginViolationError,
)
from requirements import requirement
from unit.pipeline.lab import HOOK, Lab, entry, outcome
from unit.pipeline.material import full_extensions
from unit.pipeline.runner_plugins import (
    AddToOrder,
    Allow,
    Boom,
    Deny,
    Hang,
    seen_by,
)


@requirement("EX-SEC-03")
@pytest.mark.parametrize("make", [Boom, Hang])
async def test_a_failed_plugin_leaves_extensions_and_payload_as_they_were(
    make: type[Boom],
) -> None:
    class EditThenFail(make):
        async def tool_pre_invoke(
            self, payload: Any, context: PluginContext, extensions: Any = None
        ) -> PluginResult[Any]:
            extensions.model_copy(update={"custom": {"half": True}})
            payload.args["half"] = True
            context.global_context.state["half"] = True
            return await super().tool_pre_invoke(payload, context)

    context = GlobalContext("r")
    lab = await Lab.of(
        entry(AddToOrder, name="before"),
        entry(EditThenFail, on_error="ignore", timeout_s=0.01),
        entry(AddToOrder, name="after"),
    )
    result = await lab.call(extensions=Extensions(), context=context)
    assert result.modified_extensions is not None
    assert result.modified_extensions.custom == {"order": ["before", "after"]}
    assert result.modified_payload is None
    assert context.state == {}


@pytest.mark.parametrize("mode", ["sequential", "transform", "audit", "concurrent"])
async def test_under_fail_an_exception_ends_the_call_in_every_mode(mode: str) -> None:
    with pytest.raises(PluginError) as caught:
        await outcome(entry(Allow, name="first"), entry(Boom, name="boom", mode=mode))
    error = caught.value
    assert error.error.message == "ValueError('boom')"
    assert (error.error.mcp_error_code, error.code) == (-32603, "plugin_error")
    assert error.executions is not None
    first, last = error.executions
    assert (first.plugin_name, first.effective_allow) == ("first", True)
    assert (last.status, last.error_code) == (ControlExecutionStatus.ERROR, "plugin_error")
    assert (last.requested_allow, last.effective_allow, last.applied) == (None, False, True)
    assert last.duration_ns > 0


async def test_ignore_goes_on_and_disable_switches_the_plugin_off() -> None:
    lab = await Lab.of(
        entry(Boom, name="calm", on_error="ignore"), entry(Boom, name="off", on_error="disable")
    )
    first = await lab.call()
    assert [r.status for r in first.executions] == [ControlExecutionStatus.ERROR] * 2
    assert all(r.effective_allow and not r.applied for r in first.executions)
    second = await lab.call()
    assert [r.plugin_name for r in second.executions] == ["calm"]
    assert lab.pipeline.status.switched_off == ("off",)
    lab.pipeline.reset_switched_off()
    assert len((await lab.call()).executions) == 2


async def test_a_plugin_that_takes_too_long_is_timed_out() -> None:
    for on_error, mode, applied in (
        ("ignore", "sequential", True),
        ("disable", "transform", False),
    ):
        result = await outcome(entry(Hang, on_error=on_error, mode=mode, timeout_s=0.01))
        (record,) = result.executions
        assert (record.status, record.error_code) == (
            ControlExecutionStatus.TIMEOUT,
            "plugin_timeout",
        )
        assert (record.requested_allow, record.matched, record.applied) == (None, None, applied)
    with pytest.raises(PluginError, match=r"exceeded 0\.01s timeout"):
        await outcome(entry(Hang), timeout_s=0.01)


async def test_a_denial_can_be_raised_with_who_and_why() -> None:
    class Counted(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
            return PluginResult(continue_processing=False, denial_metadata={"hits": 3, "x": "y"})

    lab = await Lab.of(entry(Allow), entry(Deny, name="denier"))
    with pytest.raises(PluginViolationError, match="denier: no") as caught:
        await lab.call(raising=True)
    error = caught.value
    assert error.violation is not None
    assert error.violation.plugin_name == "denier"
    assert error.executions is not None
    assert [r.effective_allow for r in error.executions] == [True, False]
    assert error.denial_outcome is not None
    assert error.denial_outcome.violation_code == "nope"
    bare = await Lab.of(entry(Counted))
    with pytest.raises(PluginViolationError, match="no reason given") as counted:
        await bare.call(raising=True)
    assert counted.value.denial_outcome is not None
    assert dict(counted.value.denial_outcome.metadata) == {"hits": 3}


@pytest.mark.parametrize("mode", ["sequential", "transform", "audit", "concurrent"])
async def test_a_violation_error_of_a_plugin_escapes_whatever_its_policy(mode: str) -> None:
    class Raise(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> None:
            await asyncio.sleep(0)
            raise PluginViolationError("stop", PluginViolation("r", "d", "c"))

    lab = await Lab.of(entry(Raise, name="p", mode=mode, on_error="ignore"))
    with pytest.raises(PluginViolationError, match="stop") as caught:
        await lab.call()
    assert caught.value.denial_outcome is None
    assert caught.value.violation is not None
    assert caught.value.violation.plugin_name == "p"
    assert caught.value.executions is not None
    assert caught.value.executions[-1].error_code == "c"


async def test_a_raised_violation_error_without_a_violation_is_recorded_too() -> None:
    class Raise(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> None:
            raise PluginViolationError("stop")

    lab = await Lab.of(entry(Raise))
    with pytest.raises(PluginViolationError) as caught:
        await lab.call()
    assert caught.value.executions is not None
    record = caught.value.executions[-1]
    assert (record.reason, record.error_code) == ("stop", "plugin_violation")


async def test_records_tell_what_was_asked_what_happened_and_what_was_left_out() -> None:
    class Everything(Plugin):
        async def tool_pre_invoke(
            self, payload: Any, context: Any, extensions: Extensions
        ) -> PluginResult[Any]:
            return PluginResult(
                modified_payload=payload.model_copy(update={"name": "other"}),
                modified_extensions=extensions.model_copy(
                    update={"custom": {"x": 1}, "http": HttpExtension(headers={})}
                ),
            )

    result = await outcome(
        entry(Allow, name="plain", config={"secret": "value"}),
        entry(Everything, name="all"),
        extensions=full_extensions(),
    )
    plain, full = result.executions
    assert (plain.status, plain.requested_allow, plain.effective_allow) == (
        ControlExecutionStatus.COMPLETED,
        True,
        True,
    )
    assert (plain.matched, plain.applied) == (False, False)
    assert plain.duration_ns >= 1
    assert len(plain.plugin_id) == 32
    assert (plain.plugin_kind, plain.hook_name) == ("lab.Plugin0", HOOK)
    assert plain.config_keys == ("secret",)
    assert "value" not in repr(plain)
    assert (full.matched, full.applied, full.payload_modified, full.extensions_modified) == (
        True,
        True,
        True,
        True,
    )
    assert [change.slot for change in full.discarded] == ["http"]


@requirement("EX-MERGE-04")
async def test_unauthorised_writes_are_dropped_without_anybody_noticing() -> None:
    class Forge(Plugin):
        async def tool_pre_invoke(
            self, payload: Any, context: Any, extensions: Extensions
        ) -> PluginResult[Any]:
            return PluginResult(
                modified_extensions=extensions.model_copy(
                    update={"http": HttpExtension(headers={"forged": "1"})}
                )
            )

    views: list[Extensions] = []
    original = full_extensions()
    result = await outcome(
        entry(Forge, "read_headers"), entry(seen_by(views), "read_headers"), extensions=original
    )
    assert result.continue_processing is True
    assert result.modified_extensions is None
    assert views[0].http == original.http


class CancelsItsReader(dict[str, Any]):
    """Metadata that raises a cancellation when the host looks whether there is any."""

    def __len__(self) -> int:
        raise asyncio.CancelledError


@pytest.mark.parametrize("waits", [False, True])
async def test_an_answer_that_cancels_its_reader_is_a_failed_plugin_and_the_call_goes_on(
    waits: bool,
) -> None:
    class Odd(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: PluginContext) -> PluginResult[Any]:
            if waits:
                await asyncio.sleep(0)
            return PluginResult(metadata=CancelsItsReader(a=1))

    with pytest.raises(PluginError, match="cancelled the call while it was read"):
        await outcome(entry(Odd))
    result = await outcome(entry(Odd, on_error="ignore"), entry(Allow, name="after"))
    assert [one.status for one in result.executions] == ["error", "completed"]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
