from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest

from kaged.pipeline import (
    AgentExtension,
    ControlExecutionStatus,
    Extensions,
    GlobalContext,
    HttpExtension,
    HttpHeaderPayload,
    PayloadSizeError,
    Plugin,
    PluginConfig,
    PluginContext,
    PluginError,
    PluginMode,
    PluginResult,
    PluginViolation,
    PluginViolationError,
    ToolPostInvokePayload,
    ToolPreInvokePayload,
    UserContext,
    hook,
)
from kaged.pipeline.edits import MAX_PAYLOAD_CHARS, DefaultHookPolicy, HookPayloadPolicy
from kaged.pipeline.payloads.base import HOST
from kaged.pipeline.payloads.calls import HttpPreRequestPayload
from raising import has_code
from requirements import requirement
from unit.pipeline.lab import CALL, HOOK, Lab, entry, outcome
from unit.pipeline.material import ALL_CAPABILITIES, full_extensions

ORDER: contextvars.ContextVar[str] = contextvars.ContextVar("order", default="host")


class Allow(Plugin):
    async def tool_pre_invoke(self, payload: Any, context: PluginContext) -> PluginResult[Any]:
        return PluginResult()


class Both(Plugin):
    async def tool_pre_invoke(self, payload: Any, context: PluginContext) -> None: ...
    async def tool_post_invoke(self, payload: Any, context: PluginContext) -> None: ...


class Deny(Plugin):
    async def tool_pre_invoke(self, payload: Any, context: PluginContext) -> PluginResult[Any]:
        return PluginResult(
            continue_processing=False,
            violation=PluginViolation("no", "really no", "nope", http_status_code=403),
            modified_payload=payload.model_copy(update={"name": "denied-edit"}),
            metadata={"by": self.name},
        )


class Boom(Plugin):
    async def tool_pre_invoke(self, payload: Any, context: PluginContext) -> PluginResult[Any]:
        raise ValueError("boom")


class Hang(Plugin):
    async def tool_pre_invoke(self, payload: Any, context: PluginContext) -> PluginResult[Any]:
        await asyncio.Event().wait()
        raise AssertionError("nobody wakes this")


class AddToOrder(Plugin):
    """Appends its name to custom.order."""

    async def tool_pre_invoke(
        self, payload: Any, context: PluginContext, extensions: Extensions
    ) -> PluginResult[Any]:
        custom = dict(extensions.custom or {})
        custom["order"] = [*custom.get("order", []), self.name]
        return PluginResult(modified_extensions=extensions.model_copy(update={"custom": custom}))


class AddArgument(Plugin):
    async def tool_pre_invoke(self, payload: Any, context: PluginContext) -> PluginResult[Any]:
        return PluginResult(
            modified_payload=payload.model_copy(
                update={"args": {**payload.args, self.name: len(payload.args)}}
            ),
            metadata={"last": self.name, "_decision_plugin": "forged"},
        )


def seen_by(*views: Any) -> type[Plugin]:
    """Make a plugin that keeps the views it gets."""

    class Looker(Plugin):
        async def tool_pre_invoke(
            self, payload: Any, context: PluginContext, extensions: Extensions
        ) -> None:
            views[0].append(extensions)

    return Looker


# -- order, accumulation, hooks ------------------------------------------------------------------


@requirement("EX-CFG-02")
async def test_sequential_plugins_run_in_list_order_and_see_their_predecessors_changes() -> None:
    result = await outcome(
        entry(AddToOrder, name="first"), entry(AddToOrder, name="second"), extensions=Extensions()
    )
    assert result.modified_extensions is not None
    assert result.modified_extensions.custom == {"order": ["first", "second"]}


async def test_phases_come_in_their_order_and_priority_counts_inside_a_phase() -> None:
    ran: list[str] = []

    class Note(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: PluginContext) -> None:
            ran.append(self.name)

    lab = await Lab.of(
        entry(Note, name="background", mode="fire_and_forget", priority=-5),
        entry(Note, name="together", mode="concurrent"),
        entry(Note, name="audit", mode="audit", priority=1),
        entry(Note, name="transform", mode="transform", priority=1),
        entry(Note, name="late", priority=900),
        entry(Note, name="early", priority=-1),
        entry(Note, name="tie-1"),
        entry(Note, name="tie-2"),
        entry(Note, name="never", mode="disabled"),
    )
    result = await lab.call()
    assert ran == ["early", "tie-1", "tie-2", "late", "transform", "audit", "together"]
    assert await result.wait_for_background_tasks() == []
    assert ran[-1] == "background"
    assert [record.plugin_name for record in result.executions] == ran


@requirement("EX-FILT-04", "EX-MERGE-08")
async def test_each_plugin_gets_its_own_view_of_the_accumulated_extensions() -> None:
    class SetHeader(Plugin):
        async def tool_pre_invoke(
            self, payload: Any, context: PluginContext, extensions: Extensions
        ) -> PluginResult[Any]:
            assert extensions.http is not None
            headers = {**extensions.http.headers, "x-new": "1"}
            return PluginResult(
                modified_extensions=extensions.model_copy(
                    update={"http": HttpExtension(headers=headers)}
                )
            )

    views: list[Extensions] = []
    original = full_extensions()
    result = await outcome(
        entry(SetHeader, "write_headers"),
        entry(seen_by(views), "read_headers"),
        entry(seen_by(views)),
        extensions=original,
    )
    reader, blind = views
    assert reader is not original
    assert reader.http is not None
    assert reader.http.headers["x-new"] == "1"
    assert blind.http is None
    assert result.modified_extensions is not None
    assert result.modified_extensions.http is not None
    assert result.modified_extensions.http.headers["x-new"] == "1"
    assert original.http is not None
    assert "x-new" not in original.http.headers


@requirement("EX-HOOK-01", "EX-HOOK-02")
async def test_two_and_three_parameter_hooks_run_side_by_side() -> None:
    got: list[Any] = []

    class Two(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: PluginContext) -> None:
            got.append(None)

    class Three(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any, extensions: Any) -> None:
            got.append(extensions)

    class ByKeyword(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any, **kw: Any) -> None:
            got.append(kw["extensions"])

    original = full_extensions()
    await outcome(entry(Two), entry(Three), entry(ByKeyword), extensions=original)
    assert got[0] is None
    assert got[1].request == original.request
    assert got[2].request == original.request
    got.clear()
    await outcome(entry(Three))
    assert got == [None]


@requirement("EX-HOOK-03", "EX-CFG-03")
async def test_a_hook_is_called_for_its_listed_events_and_no_other() -> None:
    ran: list[str] = []

    class Bound(Plugin):
        @hook("tool_pre_invoke")
        async def before(self, payload: Any, context: PluginContext) -> None:
            ran.append("pre")

        async def tool_post_invoke(self, payload: Any, context: PluginContext) -> None:
            ran.append("post")

    lab = await Lab.of(entry(Bound, hooks=["tool_pre_invoke"]))
    await lab.call()
    result = await lab.call(ToolPostInvokePayload(name="t", result=1), hook="tool_post_invoke")
    assert ran == ["pre"]
    assert result.executions == []
    assert lab.contexts is None
    # Also when the other event has a plan, because another plugin lists it.
    ran.clear()
    lab = await Lab.of(
        entry(Bound, hooks=["tool_pre_invoke"]),
        entry(Bound, hooks=["tool_post_invoke"], name="other"),
    )
    result = await lab.call(ToolPostInvokePayload(name="t", result=1), hook="tool_post_invoke")
    assert ran == ["post"]
    assert [record.plugin_name for record in result.executions] == ["other"]


async def test_a_sequential_denial_stops_the_chain() -> None:
    ran: list[str] = []

    class Note(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: PluginContext) -> None:
            ran.append(self.name)

    result = await outcome(
        entry(AddArgument, name="edits"),
        entry(Deny, name="denier"),
        entry(Note, name="later"),
        entry(Note, name="other-phase", mode="audit"),
    )
    assert result.continue_processing is False
    assert result.violation is not None
    assert (result.violation.code, result.violation.plugin_name) == ("nope", "denier")
    assert result.modified_payload is not None
    assert "edits" in result.modified_payload.args
    assert result.modified_payload.name == CALL.name, "the denier's own edit is dropped"
    assert result.metadata == {"last": "edits", "by": "denier"}
    assert ran == []
    assert (await outcome(entry(Allow))).continue_processing is True


async def test_extensions_merged_before_a_denial_are_kept() -> None:
    result = await outcome(entry(AddToOrder, name="first"), entry(Deny), extensions=Extensions())
    assert result.modified_extensions is not None
    assert result.modified_extensions.custom == {"order": ["first"]}


@requirement("EX-HOOK-05")
async def test_modified_extensions_of_a_result_lead_to_a_merge() -> None:
    class Tag(Plugin):
        async def tool_pre_invoke(
            self, payload: Any, context: Any, extensions: Extensions
        ) -> PluginResult[Any]:
            changed = extensions.model_copy(
                update={"custom": {"tag": 1}, "agent": AgentExtension(agent_id="forged")}
            )
            return PluginResult(continue_processing=True, modified_extensions=changed)

    original = full_extensions()
    result = await outcome(entry(Tag), extensions=original)
    assert result.modified_extensions is not None
    assert result.modified_extensions.custom == {"tag": 1}
    assert result.modified_extensions.agent is original.agent
    untouched = await outcome(entry(Allow), extensions=original)
    assert untouched.modified_extensions is None


@requirement("EX-AMB-11")
async def test_a_two_parameter_hook_may_return_extensions_too() -> None:
    class Sets(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
            return PluginResult(
                modified_extensions=Extensions(http=HttpExtension(headers={"a": "b"}))
            )

    for capability, accepted in (("write_headers", True), ("read_headers", False)):
        result = await outcome(entry(Sets, capability), extensions=Extensions())
        merged = result.modified_extensions
        assert (merged is not None and merged.http == HttpExtension(headers={"a": "b"})) is accepted


@requirement("EX-HOOK-06")
async def test_state_set_in_one_hook_is_there_in_the_next_of_the_same_request() -> None:
    class Remember(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: PluginContext) -> None:
            context.set_state("auth_method", "Bearer")

        async def tool_post_invoke(self, payload: Any, context: PluginContext) -> PluginResult[Any]:
            return PluginResult(metadata={"was": context.get_state("auth_method")})

    lab = await Lab.of(entry(Remember, hooks=["tool_pre_invoke", "tool_post_invoke"]))
    await lab.call()
    pre = lab.contexts
    after = ToolPostInvokePayload(name="t", result=1)
    result = await lab.call(after, hook="tool_post_invoke", contexts=pre)
    assert result.metadata == {"was": "Bearer"}
    other = await lab.call(
        after, hook="tool_post_invoke", contexts=pre, context=GlobalContext("req-2")
    )
    assert other.metadata == {"was": None}


async def test_shared_state_is_carried_on_by_the_modes_that_share() -> None:
    class Share(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: PluginContext) -> None:
            shared = context.global_context
            shared.state.setdefault("seen", "")
            shared.state["seen"] += self.name
            shared.metadata["last"] = self.name

    context = GlobalContext("r")
    lab = await Lab.of(
        entry(Share, name="a"),
        entry(Share, name="b", mode="transform"),
        entry(Share, name="c", mode="audit"),
        entry(Share, name="d", mode="concurrent"),
    )
    await lab.call(context=context)
    assert context.state == {"seen": "abd"}
    assert context.metadata == {"last": "d"}


async def test_metadata_is_merged_and_later_plugins_win() -> None:
    result = await outcome(entry(AddArgument, name="a"), entry(AddArgument, name="b"))
    assert result.metadata == {"last": "b"}
    assert result.modified_payload is not None
    assert result.modified_payload.args == {**(CALL.args or {}), "a": 2, "b": 3}


async def test_the_longest_retry_delay_wins() -> None:
    def delaying(delay_ms: int) -> type[Plugin]:
        class Delay(Plugin):
            async def tool_pre_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
                return PluginResult(retry_delay_ms=delay_ms)

        return Delay

    three = [entry(delaying(delay)) for delay in (5, 9, 3)]
    assert (await outcome(*three)).retry_delay_ms == 9
    assert (await outcome(*three, entry(Deny))).retry_delay_ms == 0


# -- modes ---------------------------------------------------------------------------------------


@requirement("EX-AMB-12")
async def test_only_sequential_and_transform_plugins_change_extensions() -> None:
    for mode, changes in (
        (None, True),
        ("sequential", True),
        ("enforce", True),
        ("enforce_ignore_error", True),
        ("transform", True),
        ("permissive", True),
        ("audit", False),
        ("concurrent", False),
        ("fire_and_forget", False),
    ):
        settings = {} if mode is None else {"mode": mode}
        lab = await Lab.of(entry(AddToOrder, **settings))
        result = await lab.call(extensions=Extensions())
        assert (result.modified_extensions is not None) is changes, mode
        await result.wait_for_background_tasks()
    assert PluginConfig(name="p", kind="a.B").mode is PluginMode.SEQUENTIAL
    assert PluginConfig(name="p", kind="a.B").priority == 100
    old = PluginConfig.model_validate({"name": "p", "kind": "a.B", "mode": "enforce"})
    assert old.mode is PluginMode.SEQUENTIAL
    calm = PluginConfig.model_validate({"name": "p", "kind": "a.B", "mode": "enforce_ignore_error"})
    assert (calm.mode, str(calm.on_error)) == (PluginMode.SEQUENTIAL, "ignore")
    strict = PluginConfig.model_validate(
        {"name": "p", "kind": "a.B", "mode": "enforce_ignore_error", "on_error": "fail"}
    )
    assert str(strict.on_error) == "fail"
    with pytest.raises(ValueError, match="mode"):
        PluginConfig.model_validate({"name": "p", "kind": "a.B", "mode": "parallel"})


async def test_a_transform_plugin_cannot_deny_but_its_payload_edit_counts() -> None:
    class DenyAndEdit(Deny):
        async def tool_pre_invoke(
            self, payload: Any, context: PluginContext, extensions: Any = None
        ) -> PluginResult[Any]:
            result = await super().tool_pre_invoke(payload, context)
            result.modified_extensions = extensions.model_copy(update={"custom": {"x": 1}})
            return result

    result = await outcome(
        entry(DenyAndEdit, mode="transform"), entry(Allow), extensions=Extensions()
    )
    assert result.continue_processing is True
    assert result.violation is None
    assert result.modified_payload is not None
    assert result.modified_payload.name == "denied-edit"
    assert result.modified_extensions is None
    (suppressed,) = result.suppressed_denials
    assert (suppressed.requested_allow, suppressed.effective_allow) == (False, True)
    assert suppressed.error_code == "nope"


async def test_an_audit_plugin_changes_nothing() -> None:
    result = await outcome(
        entry(Deny, mode="audit"), entry(AddArgument, mode="audit"), extensions=Extensions()
    )
    assert result.continue_processing is True
    assert result.modified_payload is None
    assert [record.payload_modified for record in result.executions] == [False, False]


async def test_the_first_concurrent_denial_wins_and_ends_the_others() -> None:
    ended: list[str] = []

    class Slow(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append(self.name)
                raise
            raise AssertionError

    result = await outcome(
        entry(Slow, name="s1", mode="concurrent"),
        entry(Deny, name="denier", mode="concurrent"),
        entry(Slow, name="s2", mode="concurrent"),
    )
    assert result.continue_processing is False
    assert result.violation is not None
    assert result.violation.plugin_name == "denier"
    assert set(ended) <= {"s1", "s2"}
    assert [record.plugin_name for record in result.executions] == ["denier"]


async def test_concurrent_plugins_run_at_the_same_time_and_are_timed() -> None:
    meeting = asyncio.Barrier(3)

    class Meet(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
            async with asyncio.timeout(5):
                await meeting.wait()
            return PluginResult(modified_payload=payload, metadata={self.name: 1})

    result = await outcome(*[entry(Meet, name=f"m{n}", mode="concurrent") for n in range(3)])
    assert result.continue_processing is True
    assert result.modified_payload is None
    assert result.metadata == {"m0": 1, "m1": 1, "m2": 1}
    assert all(record.duration_ns > 0 for record in result.executions)


async def test_concurrent_plugins_whose_conditions_do_not_match_stay_out() -> None:
    result = await outcome(
        entry(Boom, name="no", mode="concurrent", conditions=[{"tools": ["other"]}]),
        entry(Allow, name="yes", mode="concurrent", conditions=[{"tools": [CALL.name]}]),
        entry(Boom, name="off", conditions=[{"tenant_ids": ["t"]}]),
    )
    assert [record.plugin_name for record in result.executions] == ["yes"]


async def test_a_hook_that_cancels_its_caller_is_a_failed_plugin() -> None:
    class CancelsCaller(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

    class CancelsAndRaises(CancelsCaller):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> None:
            await super().tool_pre_invoke(payload, context)
            raise ValueError("as well")

    for make in (CancelsCaller, CancelsAndRaises):
        result = await outcome(entry(make, on_error="ignore"), entry(Allow))
        assert [record.status for record in result.executions] == [
            ControlExecutionStatus.ERROR,
            ControlExecutionStatus.COMPLETED,
        ]
        assert result.executions[0].reason == "the hook cancelled the task that it runs in"
        with pytest.raises(PluginError, match="cancelled the task"):
            await outcome(entry(make))


async def test_an_answer_that_cannot_be_read_is_a_failed_plugin() -> None:
    class Odd(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> Any:
            return "yes"

    result = await outcome(entry(Odd, on_error="ignore"))
    assert result.executions[0].status is ControlExecutionStatus.ERROR
    with pytest.raises(PluginError, match="returned str"):
        await outcome(entry(Odd))


async def test_a_failing_concurrent_plugin_ends_the_call_with_records() -> None:
    with pytest.raises(PluginError) as caught:
        await outcome(entry(Hang, mode="concurrent"), entry(Boom, name="boom", mode="concurrent"))
    assert caught.value.error.plugin_name == "boom"
    assert caught.value.executions is not None
    calm = await outcome(
        entry(Boom, mode="concurrent", on_error="ignore"), entry(Allow, mode="concurrent")
    )
    assert calm.continue_processing is True


async def test_background_plugins_get_the_final_payload_and_report_errors() -> None:
    got: list[Any] = []

    class Keep(Plugin):
        async def tool_pre_invoke(
            self, payload: Any, context: PluginContext, extensions: Extensions
        ) -> None:
            got.append((payload, extensions.custom))
            context.global_context.state["late"] = True

    class Raise(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> None:
            raise PluginViolationError("late no")

    context = GlobalContext("r")
    lab = await Lab.of(
        entry(AddArgument, name="edit"),
        entry(AddToOrder, name="tag"),
        entry(Keep, mode="fire_and_forget"),
        entry(Boom, name="b1", mode="fire_and_forget"),
        entry(Boom, name="b2", mode="fire_and_forget", on_error="disable"),
        entry(Raise, name="b3", mode="fire_and_forget"),
    )
    result = await lab.call(extensions=Extensions(), context=context)
    assert got == [], "no code of a background plugin has run when the call returns"
    errors = await result.wait_for_background_tasks()
    assert [error.plugin_name for error in errors] == ["b1", "b2", "b3"]
    (payload, custom) = got[0]
    assert "edit" in payload.args
    assert custom == {"order": ["tag"]}
    assert context.state == {}
    assert lab.pipeline.status.switched_off == ("b2",)
    records = result.executions
    assert [r.duration_ns for r in records if r.mode is PluginMode.FIRE_AND_FORGET] == [0] * 4
    again = await lab.call(extensions=Extensions())
    assert len(await again.wait_for_background_tasks()) == 2


async def test_background_plugins_run_after_a_denial_but_not_after_a_raised_one() -> None:
    ran: list[str] = []

    class Note(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> None:
            ran.append(self.name)

    lab = await Lab.of(entry(Deny), entry(Note, name="bg", mode="fire_and_forget"))
    result = await lab.call()
    assert result.continue_processing is False
    await result.wait_for_background_tasks()
    assert ran == ["bg"]
    with pytest.raises(PluginViolationError):
        await lab.call(raising=True)
    await asyncio.sleep(0)
    assert ran == ["bg"]


# -- errors, timeouts, records -------------------------------------------------------------------


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


# -- limits and guards ---------------------------------------------------------------------------


async def test_a_hook_that_returns_none_changes_nothing() -> None:
    class Silent(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> None:
            return None

    result = await outcome(entry(Silent))
    assert result.continue_processing is True
    assert result.executions[0].status is ControlExecutionStatus.COMPLETED


async def test_a_hook_may_give_back_any_awaitable() -> None:
    class Later:
        def __await__(self) -> Any:
            yield from asyncio.sleep(0).__await__()
            return PluginResult(metadata={"late": True})

    class Odd(Plugin):
        def __init__(self, config: PluginConfig) -> None:
            super().__init__(config)

            async def declared(payload: Any, context: Any) -> Any: ...

            def real(payload: Any, context: Any) -> Any:
                return Later()

            real.__wrapped__ = declared  # pyright: ignore[reportFunctionMemberAccess] - what functools.wraps does
            self.tool_pre_invoke = real

    result = await outcome(entry(Odd))
    assert result.metadata == {"late": True}


async def test_a_context_variable_set_by_a_plugin_stays_with_it() -> None:
    class SetVar(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
            seen = ORDER.get()
            ORDER.set(self.name)
            await asyncio.sleep(0)
            mine = ORDER.get()
            return PluginResult(metadata={self.name: (seen, mine)})

    result = await outcome(entry(SetVar, name="a"), entry(SetVar, name="b"))
    assert result.metadata == {"a": ("host", "a"), "b": ("host", "b")}
    assert ORDER.get() == "host"


async def test_payloads_over_the_limit_are_refused_before_any_plugin() -> None:
    lab = await Lab.of(entry(Both, hooks=["tool_pre_invoke", "tool_post_invoke"]))

    async def size(payload: Any, hook_name: str = HOOK) -> None:
        await lab.call(payload, hook=hook_name)

    half = "x" * (MAX_PAYLOAD_CHARS // 2)
    await size(ToolPreInvokePayload(name="t", args={"a": half, "n": 5, "z": None}))
    with pytest.raises(PayloadSizeError):
        await size(ToolPreInvokePayload(name="t", args={"a": half, "b": [half, 1]}))
    post = ToolPostInvokePayload(name="t", result="x" * (MAX_PAYLOAD_CHARS + 1))
    with pytest.raises(ValueError, match="longer"):
        await size(post, "tool_post_invoke")
    await size(ToolPreInvokePayload(name="t", args=None))


async def test_calling_the_pipeline_from_a_hook_ends_at_a_depth() -> None:
    depths: list[int] = []

    class Again(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
            depths.append(1)
            return await lab.call()

    lab = await Lab.of(entry(Again, on_error="fail"))
    with pytest.raises(PluginError) as caught:
        await lab.call()
    assert len(depths) == 8
    cause: BaseException | None = caught.value
    while cause is not None and not has_code(cause, "pipeline_recursion"):
        cause = cause.__cause__
    assert has_code(cause, "pipeline_recursion")
    depths.clear()
    with pytest.raises(PluginError):
        await lab.call()
    assert len(depths) == 8, "the depth is back to zero after a call"


async def test_payload_edits_follow_the_policy_of_the_hook() -> None:
    class Rewrite(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
            payload.args["deep"]["list"].append("in place")
            return PluginResult(
                modified_payload=payload.model_copy(
                    update={"name": "other", "args": {"only": "this"}}
                )
            )

    only_args = {HOOK: HookPayloadPolicy(frozenset({"args"}))}
    result = await outcome(entry(Rewrite), hook_policies=only_args)
    assert result.modified_payload == CALL.model_copy(update={"args": {"only": "this"}})
    nothing = await outcome(entry(Rewrite), default_hook_policy=DefaultHookPolicy.DENY)
    assert nothing.modified_payload is None
    whole = await outcome(entry(Rewrite))
    assert whole.modified_payload is not None
    assert whole.modified_payload.name == "other"
    assert CALL.args == {"q": "select 1", "deep": {"list": [1]}}


async def test_http_hooks_give_back_headers_and_the_next_plugin_sees_the_request_with_them() -> (
    None
):
    got: list[Any] = []

    class Header(Plugin):
        async def http_pre_request(self, payload: Any, context: Any) -> PluginResult[Any]:
            got.append(payload)
            return PluginResult(
                modified_payload=HttpHeaderPayload({**payload.headers.root, self.name: "1"})
            )

    lab = await Lab.of(
        entry(Header, name="a", hooks=["http_pre_request"]),
        entry(Header, name="b", hooks=["http_pre_request"]),
    )
    request = HttpPreRequestPayload.model_validate(
        {"path": "/", "method": "GET", "headers": {"h": "0"}}, context={HOST: True}
    )
    result = await lab.call(request, hook="http_pre_request")
    assert result.modified_payload == HttpHeaderPayload({"h": "0", "a": "1", "b": "1"})
    assert isinstance(got[1], HttpPreRequestPayload)
    assert got[1].headers.root == {"h": "0", "a": "1"}


@requirement("EX-AMB-23")
async def test_payload_and_shared_context_show_no_more_than_the_slots() -> None:
    secret_payload = ToolPreInvokePayload.model_validate(
        {"name": "t", "headers": {"authorization": "s3cret-header"}}, context={HOST: True}
    )
    secret_context = GlobalContext(
        "r", user="s3cret-user", user_context=UserContext(user_id="s3cret-user")
    )
    got: dict[str, tuple[Any, Any]] = {}

    class Look(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: PluginContext) -> PluginResult[Any]:
            got[self.name] = (payload.headers, context.global_context)
            return PluginResult(modified_payload=payload.model_copy(update={"args": {"n": 1}}))

    def entries() -> list[Any]:
        return [
            entry(Look, name="blind"),
            entry(Look, "read_headers", "read_subject", name="seeing"),
            entry(Look, "write_headers", name="writer"),
        ]

    lab = await Lab.of(*entries())
    result = await lab.call(secret_payload, context=secret_context)
    headers, shared = got["blind"]
    assert headers is None
    assert (shared.user, shared.user_context) == (None, None)
    headers, shared = got["seeing"]
    assert headers.root == {"authorization": "s3cret-header"}
    assert shared.user == "s3cret-user"
    assert result.modified_payload is not None
    assert result.modified_payload.headers == secret_payload.headers, "hidden, so not blanked"

    program = await Lab.of(*entries(), guarded=False)
    await program.call(secret_payload, context=secret_context)
    headers, shared = got["blind"]
    assert headers.root == {"authorization": "s3cret-header"}
    assert shared.user == "s3cret-user"


async def test_header_maps_of_payloads_change_with_write_headers_only() -> None:
    class Forge(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
            return PluginResult(
                modified_payload=payload.model_copy(
                    update={"headers": HttpHeaderPayload({"forged": "1"})}
                )
            )

    payload = ToolPreInvokePayload.model_validate(
        {"name": "t", "headers": {"a": "b"}}, context={HOST: True}
    )
    for capability, accepted in (("read_headers", False), ("write_headers", True)):
        result = await outcome(entry(Forge, capability), payload=payload)
        assert result.modified_payload is not None
        forged = result.modified_payload.headers == HttpHeaderPayload({"forged": "1"})
        assert forged is accepted


async def test_a_program_gets_its_own_payload_object_through_unless_a_policy_isolates() -> None:
    got: list[Any] = []

    class Keep(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> None:
            got.append(payload)

    await outcome(entry(Keep), guarded=False)
    await outcome(entry(Keep), guarded=True)
    await outcome(entry(Keep), guarded=False, hook_policies={HOOK: HookPayloadPolicy(frozenset())})
    assert [payload is CALL for payload in got] == [True, False, False]
    assert got == [CALL] * 3


async def test_no_plugins_means_a_plain_result() -> None:
    lab = await Lab.of()
    result = await lab.call(extensions=full_extensions())
    assert result == PluginResult()
    assert lab.contexts is None


@requirement("EX-CFG-04")
async def test_a_plugin_cannot_raise_its_own_rights() -> None:
    views: list[Extensions] = []

    class Greedy(Plugin):
        def __init__(self, config: PluginConfig) -> None:
            super().__init__(config)
            self.capabilities = frozenset(ALL_CAPABILITIES)
            object.__setattr__(config, "capabilities", frozenset(ALL_CAPABILITIES))
            object.__setattr__(config, "mode", PluginMode.AUDIT)
            object.__setattr__(config, "name", "somebody-else")

        async def tool_pre_invoke(
            self, payload: Any, context: Any, extensions: Extensions
        ) -> PluginResult[Any]:
            views.append(extensions)
            return PluginResult(
                metadata={"capabilities": sorted(ALL_CAPABILITIES)},
                modified_extensions=extensions.model_copy(
                    update={"http": HttpExtension(headers={"forged": "1"})}
                ),
            )

    lab = await Lab.of(entry(Greedy, name="greedy"))
    await lab.call(extensions=full_extensions())
    result = await lab.call(extensions=full_extensions())
    assert result.modified_extensions is None
    assert all(view.http is None for view in views)
    assert result.executions[0].plugin_name == "greedy"
    assert result.executions[0].mode is PluginMode.SEQUENTIAL
