from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kaged.pipeline import (
    AgentExtension,
    ControlExecutionStatus,
    Extensions,
    GlobalContext,
    HttpExtension,
    Plugin,
    PluginConfig,
    PluginContext,
    PluginError,
    PluginMode,
    PluginResult,
    PluginViolationError,
    ToolPostInvokePayload,
    hook,
)
from requirements import requirement
from unit.pipeline.lab import CALL, Lab, entry, outcome
from unit.pipeline.material import full_extensions
from unit.pipeline.runner_plugins import (
    AddArgument,
    AddToOrder,
    Allow,
    Boom,
    Deny,
    Hang,
    seen_by,
)

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


@requirement("EX-HOOK-06")
async def test_a_later_hook_sees_what_was_shared_since_and_not_its_own_old_copy() -> None:
    seen: dict[str, list[Any]] = {"first": [], "second": []}

    class Both(Plugin):
        def look(self, context: PluginContext) -> None:
            shared = context.global_context
            seen[self.name].append(dict(shared.state))
            shared.state["last"] = self.name
            context.set_state("times", (context.get_state("times") or 0) + 1)

        async def tool_pre_invoke(self, payload: Any, context: PluginContext) -> None:
            self.look(context)

        async def tool_post_invoke(self, payload: Any, context: PluginContext) -> PluginResult[Any]:
            self.look(context)
            return PluginResult(metadata={self.name: context.get_state("times")})

    hooks = ["tool_pre_invoke", "tool_post_invoke"]
    lab = await Lab.of(*(entry(Both, name=name, hooks=hooks) for name in seen))
    shared = GlobalContext("r")
    await lab.call(context=shared)
    after = ToolPostInvokePayload(name="t", result=1)
    result = await lab.call(after, hook=hooks[1], contexts=lab.contexts, context=shared)
    assert seen == {"first": [{}, {"last": "second"}], "second": [{"last": "first"}] * 2}
    assert result.metadata == {"first": 2, "second": 2}
    assert shared.state == {"last": "second"}


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

    class LaterDeny(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
            return PluginResult(continue_processing=False, retry_delay_ms=7)

    assert (await outcome(*three, entry(LaterDeny))).retry_delay_ms == 7


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


@requirement("EX-AMB-12")
async def test_background_plugins_get_the_final_payload_and_report_errors() -> None:
    got: list[Any] = []

    class Keep(Plugin):
        async def tool_pre_invoke(
            self, payload: Any, context: PluginContext, extensions: Extensions
        ) -> None:
            got.append((payload.model_copy(deep=True), extensions.custom))
            payload.args["too late"] = True
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
    assert result.modified_payload is not None
    assert "too late" not in result.modified_payload.args, "it has a copy of its own"
    assert lab.pipeline.status.switched_off == ("b2",)
    records = result.executions
    assert [r.duration_ns for r in records if r.mode is PluginMode.FIRE_AND_FORGET] == [0] * 4
    again = await lab.call(extensions=Extensions())
    assert len(await again.wait_for_background_tasks()) == 2


@requirement("EX-AMB-12", "EX-HOOK-04")
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
