from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kaged.audit import AuditEvent
from kaged.base import Ids, ManualClock
from kaged.pipeline import (
    Extensions,
    HttpExtension,
    HttpHeaderPayload,
    Plugin,
    PluginError,
    PluginResult,
    PluginViolation,
    PluginViolationError,
)
from kaged.pipeline import trace as trace_module
from kaged.pipeline.auditing import PipelineAudit
from kaged.pipeline.explain import check_file, explain_pipeline
from kaged.pipeline.payloads.base import HOST
from kaged.pipeline.payloads.calls import HttpPreRequestPayload
from kaged.pipeline.trace import Tracer, trace_file
from requirements import requirement
from unit.pipeline.lab import HOOK, Lab, entry
from unit.pipeline.material import full_extensions


class Edits(Plugin):
    async def tool_pre_invoke(
        self, payload: Any, context: Any, extensions: Extensions
    ) -> PluginResult[Any]:
        assert extensions.http is not None
        changed = extensions.model_copy(
            update={
                "http": HttpExtension(headers={**extensions.http.headers, "x": "s3cret"}),
                "custom": {"mine": 1},
                "request": None,
                "provenance": extensions.provenance.model_copy(update={"source": "forged"}),  # pyright: ignore[reportOptionalMemberAccess] - filled
            }
        )
        return PluginResult(
            modified_extensions=changed,
            modified_payload=payload.model_copy(update={"name": "other"}),
        )


class Denies(Plugin):
    async def tool_pre_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
        return PluginResult(
            continue_processing=False, violation=PluginViolation("why", "because", "nope")
        )


class Silent(Plugin):
    async def tool_pre_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
        return PluginResult(continue_processing=False)


class Boom(Plugin):
    async def tool_pre_invoke(self, payload: Any, context: Any) -> None:
        raise ValueError("boom")


async def test_a_trace_tells_what_each_plugin_saw_changed_and_was_refused(
    clock: ManualClock,
) -> None:
    tracer = Tracer(clock)
    lab = await Lab.of(
        entry(Edits, "read_headers", name="edits"),
        entry(Boom, name="boom", on_error="ignore"),
        entry(Denies, name="would", mode="transform"),
        entry(Denies, name="denies", priority=200),
        clock=clock,
        tracer=tracer,
    )
    await lab.call(extensions=full_extensions())
    edits, boom, denies = tracer.steps
    assert edits.plugin == "edits"
    assert "http" in edits.saw
    assert "agent" not in edits.saw
    assert "security.classification" in edits.saw
    assert edits.read == ("http", "provenance")
    assert edits.changed == ("custom.mine", "custom.nested", "custom.trace", "payload.name")
    assert edits.refused == (
        "http: write_headers is not granted",
        "provenance: it cannot be changed",
    )
    assert (edits.outcome, boom.outcome, denies.outcome) == ("allowed", "ValueError", "denied")
    assert (denies.code, denies.reason, denies.description) == ("nope", "why", "because")
    assert (boom.code, boom.reason) == ("plugin_error", "ValueError('boom')")
    assert "s3cret" not in repr(tracer.steps)

    calm = await Lab.of(entry(Denies, mode="transform"), clock=clock, tracer=tracer)
    tracer.steps.clear()
    await calm.call()
    assert tracer.steps[0].outcome == "denied (suppressed)"
    assert (tracer.steps[0].saw, tracer.steps[0].read) == ((), ())


async def test_a_trace_tells_raised_denials_and_who_was_canceled_by_another(
    clock: ManualClock,
) -> None:
    import asyncio

    class Raises(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> None:
            await asyncio.sleep(0)
            raise PluginViolationError(
                "no", PluginViolation(reason="shut", description="Until nine.", code="shut")
            )

    class Waits(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> None:
            await asyncio.Event().wait()

    tracer = Tracer(clock)
    lab = await Lab.of(
        entry(Waits, name="waits", mode="concurrent"),
        entry(Raises, name="raises", mode="concurrent"),
        clock=clock,
        tracer=tracer,
    )
    with pytest.raises(PluginViolationError):
        await lab.call()
    raised, canceled = tracer.steps
    assert (raised.plugin, raised.outcome) == ("raises", "denied")
    assert (raised.code, raised.reason, raised.description) == ("shut", "shut", "Until nine.")
    assert (canceled.plugin, canceled.outcome, canceled.reason) == ("waits", "canceled", "")


async def test_a_trace_forgets_the_oldest_steps_first(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_module, "MAX_STEPS", 2)
    tracer = Tracer(clock)
    lab = await Lab.of(*[entry(Silent, name=n, mode="audit") for n in "abc"], tracer=tracer)
    await lab.call()
    assert [step.plugin for step in tracer.steps] == ["b", "c"]


async def test_a_trace_names_a_payload_of_another_type(clock: ManualClock) -> None:
    class Headers(Plugin):
        async def http_pre_request(self, payload: Any, context: Any) -> PluginResult[Any]:
            return PluginResult(modified_payload=HttpHeaderPayload({"a": "b"}))

    tracer = Tracer(clock)
    lab = await Lab.of(entry(Headers, hooks=["http_pre_request"]), tracer=tracer)
    request = HttpPreRequestPayload.model_validate(
        {"path": "/", "method": "GET", "headers": {}}, context={HOST: True}
    )
    await lab.call(request, hook="http_pre_request")
    assert tracer.steps[0].changed == ("payload",)


async def test_one_call_through_a_file_can_be_traced(
    tmp_path: Path, clock: ManualClock, ids: Ids
) -> None:
    path = tmp_path / "pipeline.yaml"

    def write(act: str, hook: str = HOOK) -> None:
        path.write_text(
            f"""\
plugins:
  - name: p
    kind: fakes.pipeline_plugins.Everything
    hooks: [{hook}]
    capabilities: [write_headers]
    config: {{act: {act}}}
""",
            encoding="utf-8",
        )

    call = {"name": "t", "args": {"a": 1}}
    slots = {"http": {"headers": {"h": "1"}}, "security": {"labels": ["pii"]}}
    write("edit")
    report = await trace_file(path, HOOK, call, slots, clock, ids)
    assert report.allowed
    assert report.steps[0].changed == ("http.headers.x-new", "custom", "payload.args.n")
    assert report.payload["args"] == {"a": 1, "n": [1]}
    assert report.extensions["http"]["headers"] == {"h": "1", "x-new": "1"}
    write("deny")
    denied = await trace_file(path, HOOK, call, slots, clock, ids)
    assert (denied.allowed, denied.violation) == (False, "no")
    write("raise")
    failed = await trace_file(path, HOOK, call, slots, clock, ids)
    assert failed.error == "ValueError('boom')"
    assert failed.steps[0].outcome == "ValueError"
    write("edit", "made_up")
    faulty = await trace_file(path, HOOK, call, slots, clock, ids)
    assert faulty.problems
    assert not faulty.steps
    write("nothing")
    other = await trace_file(path, "made.up", {"x": 1}, {}, clock, ids)
    assert (other.allowed, other.payload, other.steps) == (True, {"x": 1}, ())
    with pytest.raises(ValueError, match="name"):
        await trace_file(path, HOOK, {}, slots, clock, ids)


async def test_a_running_pipeline_can_be_watched(clock: ManualClock) -> None:
    lab = await Lab.of(entry(Silent, mode="audit"), clock=clock)
    await lab.call()
    tracer = Tracer(clock)
    lab.pipeline.watch(tracer)
    await lab.call()
    lab.pipeline.watch(None)
    await lab.call()
    assert len(tracer.steps) == 1


async def test_watching_may_begin_in_the_middle_of_a_call(clock: ManualClock) -> None:
    import asyncio

    waiting = asyncio.Event()
    gate = asyncio.Event()

    class Waits(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> None:
            waiting.set()
            await gate.wait()

    lab = await Lab.of(
        entry(Waits, name="before", mode="concurrent"),
        entry(Silent, name="after", mode="audit", priority=1),
        entry(Waits, name="also", mode="concurrent"),
        clock=clock,
    )
    running = asyncio.get_running_loop().create_task(lab.call())
    await waiting.wait()
    tracer = Tracer(clock)
    lab.pipeline.watch(tracer)
    gate.set()
    assert (await running).continue_processing
    assert len(tracer.steps) <= 1


async def test_explaining_lists_plugins_in_order_with_their_rights() -> None:
    lab = await Lab.of(
        entry(Boom, "append_labels", name="second", mode="audit", conditions=[{"tools": ["x"]}]),
        entry(Boom, "write_headers", name="first"),
    )
    (explained,) = explain_pipeline(lab.pipeline)
    assert explained.hook == HOOK
    first, second = explained.steps
    assert (first.order, first.plugin, first.mode, first.conditional) == (
        1,
        "first",
        "sequential",
        False,
    )
    assert first.capabilities == ("read_headers", "write_headers")
    assert first.may_change == ("payload", "http", "custom")
    assert "http" in first.sees
    assert second.may_change == ()
    assert (second.conditional, second.may_deny, second.switched_off) == (True, False, False)
    assert "security.labels" in second.sees


async def test_checking_a_file_loads_it_and_throws_it_away(
    tmp_path: Path, clock: ManualClock, ids: Ids
) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        "plugins:\n  - {name: p, kind: fakes.pipeline_plugins.Tagger, hooks: [tool_pre_invoke]}\n",
        encoding="utf-8",
    )
    report = await check_file(path, clock, ids)
    assert report.sound
    assert report.hooks[0].steps[0].plugin == "p"
    path.write_text(path.read_text("utf-8").replace("Tagger", "Missing"), "utf-8")
    faulty = await check_file(path, clock, ids)
    assert not faulty.sound
    assert faulty.problems[0].line == 2
    assert faulty.hooks == ()


@requirement("EX-AMB-17")
async def test_denials_failures_and_discarded_changes_are_audited_without_values() -> None:
    events: list[AuditEvent] = []
    lab = await Lab.of(
        entry(Edits, "read_headers", name="edits"),
        entry(Boom, name="boom", on_error="ignore"),
        entry(Silent, name="silent", mode="transform"),
        entry(Denies, name="denies", priority=200),
        observer=PipelineAudit(events.append),
    )
    result = await lab.call(extensions=full_extensions())
    assert [(event.name, event.data["plugin"]) for event in events] == [
        ("pipeline.changes_discarded", "edits"),
        ("pipeline.plugin_failed", "boom"),
        ("pipeline.plugin_denied", "denies"),
    ]
    assert {event.request_id for event in events} == {"req-1"}
    assert events[0].data["slots"] == {"http": 1, "provenance": 1}
    assert events[1].data["failure"] == "plugin_error"
    assert events[2].data["violation_code"] == "nope"
    assert "s3cret" not in repr([event.data for event in events])
    assert [change.slot for change in result.executions[0].discarded] == ["http", "provenance"]

    events.clear()
    silent = await Lab.of(entry(Silent, mode="transform"), observer=PipelineAudit(events.append))
    await silent.call()
    assert events[0].data["violation_code"] == ""


async def test_a_timeout_is_audited_with_its_length() -> None:
    import asyncio

    class Hangs(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> None:
            await asyncio.Event().wait()

    events: list[AuditEvent] = []
    lab = await Lab.of(entry(Hangs, timeout_s=0.01), observer=PipelineAudit(events.append))
    with pytest.raises(PluginError):
        await lab.call()
    assert events[0].data["failure"] == "plugin_timeout"
    assert events[0].data["timeout_sec"] == 0.01
