"""Plugins that try to see, change, break or fake what they may not. Each attack is one test."""

from __future__ import annotations

import asyncio
import copy
import pickle
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import kaged.pipeline
from kaged.base import Ids, ManualClock
from kaged.pipeline import (
    AgentExtension,
    ControlExecutionStatus,
    DelegationExtension,
    Extensions,
    GlobalContext,
    HttpExtension,
    Pipeline,
    PipelineNotReady,
    Plugin,
    PluginContext,
    PluginError,
    PluginPayload,
    PluginResult,
    PluginViolation,
    RequestExtension,
    SecurityExtension,
    SubjectExtension,
    SubjectType,
    ToolPreInvokePayload,
    ToolPreInvokeResult,
    UserContext,
    filter_extensions,
)
from kaged.pipeline.payloads.base import HOST
from kaged.pipeline.policies import SecretRedaction
from requirements import requirement
from unit.pipeline.lab import CALL, Lab, entry, outcome
from unit.pipeline.material import ALL_CAPABILITIES, SLOT_NAMES, full_extensions


def acting(act: Callable[[Any, Extensions, PluginContext], Any]) -> type[Plugin]:
    """Make a plugin whose hook does `act(payload, extensions, context)`."""

    class Acts(Plugin):
        async def tool_pre_invoke(
            self, payload: Any, context: PluginContext, extensions: Extensions
        ) -> Any:
            return act(payload, extensions, context)

    return Acts


class Witness(Plugin):
    """Keeps what it sees."""

    seen: list[Extensions]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        type(self).seen = []

    async def tool_pre_invoke(
        self, payload: Any, context: PluginContext, extensions: Extensions
    ) -> None:
        self.seen.append(extensions)


def secretive() -> Extensions:
    """Fill everything that can be hidden with markers."""
    return full_extensions(
        agent=AgentExtension(input="MARK-agent", session_id="MARK-session"),
        http=HttpExtension(headers={"authorization": "MARK-header"}),
        security=SecurityExtension(
            labels=frozenset({"MARK-label"}),
            subject=SubjectExtension(
                id="MARK-id",
                type=SubjectType.USER,
                roles=frozenset({"MARK-role"}),
                permissions=frozenset({"MARK-permission"}),
                teams=frozenset({"MARK-team"}),
                claims={"sub": "MARK-claim"},
            ),
        ),
        delegation=DelegationExtension(origin_subject_id="MARK-origin"),
    )


def reachable(*roots: object) -> str:
    """Walk attributes (private ones too), `__dict__`s and containers; return all that is found."""
    found: list[str] = []
    seen: set[int] = set()
    alive: list[object] = []  # so that no id is used twice
    todo = list(roots)
    while todo:
        item = todo.pop()
        if id(item) in seen or isinstance(item, (type, int, float, bytes)) or callable(item):
            continue
        seen.add(id(item))
        alive.append(item)
        found.append(repr(item))
        if isinstance(item, dict):
            todo.extend([*item.keys(), *item.values()])
        elif isinstance(item, (list, tuple, set, frozenset)):
            todo.extend(item)
        elif not isinstance(item, str):
            names = {*dir(item), *getattr(item, "__dict__", {})}
            for kind in type(item).__mro__:
                names.update(getattr(kind, "__slots__", ()))
                names.update(f"_{kind.__name__}__{n}" for n in getattr(kind, "__slots__", ()))
            for name in names:
                try:
                    todo.append(getattr(item, name))
                except Exception:  # noqa: BLE001 - whatever cannot be read shows nothing
                    continue
            if isinstance(item, BaseModel):
                found += [repr(item.model_dump()), item.model_dump_json()]
            if isinstance(item, (BaseModel, PluginContext, GlobalContext)):
                found.append(pickle.dumps(item).decode("latin-1"))
    return "\n".join(found)


_SUBJECT = {"id", "user", "identity"}
SHOWN_BY = {
    "read_subject": _SUBJECT,
    "read_roles": {*_SUBJECT, "role"},
    "read_teams": {*_SUBJECT, "team"},
    "read_claims": {*_SUBJECT, "claim"},
    "read_permissions": {*_SUBJECT, "permission"},
    "read_agent": {"agent", "session"},
    "read_headers": {"header", "payload-header"},
    "write_headers": {"header", "payload-header"},
    "read_labels": {"label"},
    "append_labels": {"label"},
    "read_delegation": {"origin"},
    "append_delegation": {"origin"},
}
"""Which markers each capability shows when it is the only one."""


@requirement("EX-SEC-01")
async def test_searching_every_object_it_is_given_finds_no_hidden_value() -> None:
    told: dict[str, str] = {}

    class Search(Plugin):
        async def tool_pre_invoke(
            self, payload: Any, context: PluginContext, extensions: Extensions
        ) -> None:
            told[self.name] = reachable(payload, context, extensions, copy.deepcopy(extensions))

    payload = ToolPreInvokePayload.model_validate(
        {"name": "t", "headers": {"authorization": "MARK-payload-header"}}, context={HOST: True}
    )
    context = GlobalContext(
        "r", user="MARK-user", user_context=UserContext(user_id="MARK-identity")
    )
    lab = await Lab.of(
        entry(Search, name="blind"),
        entry(Search, *ALL_CAPABILITIES, name="seeing"),
        *(entry(Search, capability, name=capability) for capability in SHOWN_BY),
    )
    await lab.call(payload, extensions=secretive(), context=context)
    assert "MARK" not in told["blind"]
    assert SHOWN_BY.keys() == ALL_CAPABILITIES
    for capability, marks in SHOWN_BY.items():
        found = set(re.findall(r"MARK-([a-z-]+)", told[capability]))
        assert found == marks, capability
    for mark in ("agent", "header", "label", "id", "role", "team", "claim", "user", "origin"):
        assert f"MARK-{mark}" in told["seeing"], "the search itself works"


@requirement("EX-SEC-02")
async def test_mutating_what_it_was_given_reaches_nobody_else() -> None:
    def vandalise(payload: Any, ext: Extensions, context: PluginContext) -> None:
        for action in (
            lambda: ext.http.headers.update(evil="1"),  # pyright: ignore[reportOptionalMemberAccess] - an attack
            lambda: dict.update(ext.http.headers, evil="1"),  # pyright: ignore[reportOptionalMemberAccess] - an attack
            lambda: dict.update(ext.security.subject.claims, evil="1"),  # pyright: ignore[reportOptionalMemberAccess] - an attack
            lambda: ext.custom["nested"]["list"].append("evil"),  # pyright: ignore[reportOptionalSubscript] - an attack
            lambda: [(ext.custom or {}).clear()],
            lambda: list.append(ext.framework.metadata["nested"]["list"], "evil"),  # pyright: ignore[reportOptionalMemberAccess] - an attack
            lambda: object.__setattr__(ext, "request", RequestExtension(environment="evil")),
            lambda: object.__setattr__(ext.provenance, "source", "evil"),
            lambda: vars(ext.meta).update(scope="evil"),
            lambda: object.__setattr__(ext.mcp.tool, "name", "evil"),  # pyright: ignore[reportOptionalMemberAccess] - an attack
            lambda: object.__setattr__(ext.delegation.chain[0], "subject_id", "evil"),  # pyright: ignore[reportOptionalMemberAccess] - an attack
            lambda: [ext.model_fields_set.clear()],
            lambda: payload.args["deep"]["list"].append("evil"),
            lambda: object.__setattr__(payload, "name", "evil"),
            lambda: context.global_context.metadata.update(evil=1),
        ):
            try:
                action()
            except TypeError:
                continue

    original = full_extensions()
    snapshot = copy.deepcopy(original)
    shared = GlobalContext("r")
    lab = await Lab.of(
        entry(acting(vandalise), *ALL_CAPABILITIES, mode="audit"),
        entry(Witness, *ALL_CAPABILITIES, mode="audit"),
    )
    for _ in range(2):
        result = await lab.call(extensions=original, context=shared)
        assert result.modified_extensions is None
        assert original == snapshot
        assert Witness.seen[-1] == snapshot, "a plugin with the same capabilities"
        assert shared.metadata == {}
    assert (
        ToolPreInvokePayload(name="db.query", args={"q": "select 1", "deep": {"list": [1]}}) == CALL
    )
    assert "evil" not in repr(original.model_dump())


@requirement("EX-TIER-01", "EX-MERGE-01")
async def test_writing_without_a_capability_changes_nothing() -> None:
    forged = full_extensions(
        request=RequestExtension(environment="evil"),
        agent=AgentExtension(agent_id="evil"),
        http=HttpExtension(headers={"evil": "1"}),
        security=SecurityExtension(labels=frozenset({"evil"}), classification="evil"),
        delegation=DelegationExtension(actor_subject_id="evil"),
    )
    original = full_extensions()
    result = await outcome(
        entry(acting(lambda _p, _e, _c: ToolPreInvokeResult(modified_extensions=forged))),
        entry(Witness, *ALL_CAPABILITIES),
        extensions=original,
    )
    assert result.modified_extensions is None
    assert Witness.seen == [original]


@requirement("EX-AMB-02")
@pytest.mark.parametrize("on_error", ["fail", "ignore", "disable"])
async def test_shrinking_a_monotonic_slot_voids_the_whole_result(on_error: str) -> None:
    def shrink(payload: Any, ext: Extensions, _context: PluginContext) -> PluginResult[Any]:
        assert ext.security is not None
        return PluginResult(
            modified_payload=payload.model_copy(update={"name": "evil"}),
            metadata={"evil": 1},
            modified_extensions=ext.model_copy(
                update={
                    "security": ext.security.model_copy(update={"labels": frozenset({"pii"})}),
                    "http": HttpExtension(headers={"added": "1"}),
                    "custom": {"evil": 1},
                }
            ),
        )

    lab = await Lab.of(
        entry(acting(shrink), "append_labels", "write_headers", name="p", on_error=on_error)
    )
    original = full_extensions()
    if on_error == "fail":
        with pytest.raises(PluginError, match=r"security\.labels") as caught:
            await lab.call(extensions=original)
        assert caught.value.executions is not None
        assert caught.value.executions[-1].status is ControlExecutionStatus.ERROR
        return
    result = await lab.call(extensions=original)
    assert result.modified_extensions is None
    assert result.modified_payload is None
    assert result.metadata == {}
    assert result.executions[0].status is ControlExecutionStatus.ERROR
    assert bool(lab.pipeline.status.switched_off) is (on_error == "disable")


async def test_references_kept_from_one_call_change_nothing_in_the_next() -> None:
    kept: list[Any] = []

    def keep(payload: Any, ext: Extensions, context: PluginContext) -> PluginResult[Any]:
        for old_payload, old_ext, old_custom, old_headers, old_context in kept:
            old_payload.args["evil"] = 1
            old_custom["evil"] = 1
            old_headers["evil"] = "1"
            old_context.global_context.state["evil"] = 1
            object.__setattr__(old_ext, "custom", {"evil": 1})
        custom = {"n": [1]}
        headers = {"a": "b"}
        changed = ext.model_copy(
            update={"custom": custom, "http": HttpExtension.model_construct(headers=headers)}
        )
        edited = payload.model_copy(update={"args": dict(payload.args)})
        kept.append((edited, changed, custom, headers, context))
        return PluginResult(modified_payload=edited, modified_extensions=changed)

    lab = await Lab.of(entry(acting(keep), "write_headers"))
    shared = GlobalContext("r")
    first = await lab.call(extensions=full_extensions(), context=shared)
    before = copy.deepcopy((first.modified_extensions, first.modified_payload))
    await lab.call(extensions=full_extensions(), context=shared)
    assert (first.modified_extensions, first.modified_payload) == before
    assert shared.state == {}


@pytest.mark.parametrize(
    "answer",
    [
        "text",
        {"continue_processing": False},
        5,
        object(),
        PluginResult,
        PluginResult(continue_processing="no"),  # pyright: ignore[reportArgumentType] - a lie
        PluginResult(continue_processing=None),  # pyright: ignore[reportArgumentType] - a lie
        PluginResult(continue_processing=0),  # pyright: ignore[reportArgumentType] - a lie
        PluginResult(continue_processing=False, violation="because"),  # pyright: ignore[reportArgumentType] - a lie
        PluginResult(metadata=["a"]),  # pyright: ignore[reportArgumentType] - a lie
        PluginResult(retry_delay_ms="soon"),  # pyright: ignore[reportArgumentType] - a lie
        PluginResult(retry_delay_ms=-1),
        PluginResult(retry_delay_ms=10**12),
        PluginResult(retry_delay_ms=True),
        PluginResult(modified_payload="payload"),
        PluginResult(modified_payload={"name": "x"}),
        PluginResult(modified_payload=PluginPayload()),
        PluginResult(modified_payload=CALL.model_copy(update={"name": 5})),
        PluginResult(modified_payload=CALL.model_copy(update={"args": [1]})),
        PluginResult(modified_extensions={"custom": {}}),  # pyright: ignore[reportArgumentType] - a lie
        PluginResult(modified_extensions="x"),  # pyright: ignore[reportArgumentType] - a lie
    ],
)
async def test_foreign_types_in_an_answer_are_a_failed_plugin(answer: Any) -> None:
    act = acting(lambda _p, _e, _c: answer)
    with pytest.raises(PluginError):
        await outcome(entry(act), extensions=full_extensions())
    calm = await outcome(entry(act, on_error="ignore"), extensions=full_extensions())
    assert calm.continue_processing is True
    assert (calm.modified_payload, calm.modified_extensions, calm.metadata) == (None, None, {})


async def test_a_result_that_changes_its_mind_is_read_once() -> None:
    """A class with properties could say yes to the check and no to the record."""

    class TwoFaced(PluginResult[Any]):
        reads = 0

        @property
        def __dict__(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride] - an attack
            raise AssertionError("somebody asked the object itself")

        @property
        def modified_extensions(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride] - an attack
            TwoFaced.reads += 1
            return full_extensions(custom={"evil": TwoFaced.reads})

    made = TwoFaced()
    result = await outcome(entry(acting(lambda _p, _e, _c: made)), extensions=full_extensions())
    assert TwoFaced.reads == 0
    assert result.modified_extensions is None


async def test_an_equality_that_spies_never_meets_the_hosts_objects() -> None:
    caught: list[object] = []

    class SpyRequest(RequestExtension):
        def __eq__(self, other: object) -> bool:
            caught.append(other)
            return True

        __hash__ = None

    class SpyText(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            caught.append(other)
            return True

        def __hash__(self) -> int:
            return 5

    class SpyDict(dict[str, Any]):
        def __eq__(self, other: object) -> bool:
            caught.append(other)
            return True

        __hash__ = None

    def spy(_payload: Any, ext: Extensions, _context: PluginContext) -> PluginResult[Any]:
        assert ext.security is not None
        changes = {
            "request": SpyRequest(),
            "http": HttpExtension.model_construct(headers=SpyDict({SpyText("k"): SpyText("v")})),
            "custom": SpyDict(a=SpyText("x")),
            "security": ext.security.model_copy(
                update={"labels": frozenset({SpyText("pii")}) | ext.security.labels}
            ),
        }
        return PluginResult(modified_extensions=ext.model_copy(update=changes))

    result = await outcome(entry(acting(spy), *ALL_CAPABILITIES), extensions=full_extensions())
    assert not [item for item in caught if not isinstance(item, str)]
    merged = result.modified_extensions
    assert merged is not None
    assert merged.http is not None
    assert type(merged.http.headers) is dict
    assert {type(x) for pair in merged.http.headers.items() for x in pair} == {str}
    assert type(merged.custom) is dict
    assert merged.security is not None
    assert {type(label) for label in merged.security.labels} == {str}


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        RuntimeError(),
        KeyError(),
        RecursionError(),
        MemoryError(),
        SystemExit(1),
        GeneratorExit(),
        StopAsyncIteration(),
        asyncio.CancelledError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_it_raises_is_judged_by_its_error_policy(error: BaseException) -> None:
    def blow(_p: Any, _e: Any, _c: Any) -> None:
        raise error

    with pytest.raises(PluginError):
        await outcome(entry(acting(blow)))
    calm = await outcome(entry(acting(blow), on_error="ignore"))
    assert calm.continue_processing is True
    assert calm.executions[0].status is ControlExecutionStatus.ERROR


async def test_an_exception_that_cannot_be_shown_is_still_handled() -> None:
    class Unshowable(Exception):
        def __repr__(self) -> str:
            raise RuntimeError("no")

    def blow(_p: Any, _e: Any, _c: Any) -> None:
        raise Unshowable

    with pytest.raises(PluginError, match="Unshowable"):
        await outcome(entry(acting(blow)))


async def test_hanging_ends_at_the_timeout_and_later_plugins_still_run() -> None:
    class Hang(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> None:
            await asyncio.Event().wait()

    result = await outcome(
        entry(Hang, timeout_s=0.01, on_error="ignore"),
        entry(Witness),
        extensions=full_extensions(),
    )
    assert result.executions[0].status is ControlExecutionStatus.TIMEOUT
    assert len(Witness.seen) == 1


async def test_cancelling_the_task_it_runs_in_harms_only_itself() -> None:
    class CancelNow(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            task.cancel()
            return PluginResult()

    class CancelAndRaise(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            raise ValueError("as well")

    for attack in (CancelNow, CancelAndRaise):
        result = await outcome(
            entry(attack, on_error="ignore", mode="audit"),
            entry(Witness, mode="audit"),
            extensions=full_extensions(),
        )
        assert result.executions[0].status is ControlExecutionStatus.ERROR
        assert len(Witness.seen) == 1
        await asyncio.sleep(0)
        with pytest.raises(PluginError, match="cancelled the task"):
            await outcome(entry(attack))
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_the_callers_own_cancellation_is_not_taken_for_the_plugins() -> None:
    entered = asyncio.Event()

    class Wait(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> None:
            entered.set()
            await asyncio.Event().wait()

    lab = await Lab.of(entry(Wait, on_error="ignore"))
    caller = asyncio.get_running_loop().create_task(lab.call())
    await entered.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_recursing_into_the_pipeline_stops_at_a_depth() -> None:
    calls: list[int] = []

    class Recurse(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> Any:
            calls.append(1)
            return await lab.call()

    class RecurseInTask(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> Any:
            calls.append(1)
            return await asyncio.get_running_loop().create_task(lab.call())

    for attack in (Recurse, RecurseInTask):
        calls.clear()
        lab = await Lab.of(entry(attack))
        with pytest.raises(PluginError):
            await lab.call()
        assert len(calls) == 8


async def test_lying_about_records_and_background_work_is_ignored() -> None:
    lie = PluginResult(metadata={"a": 1, "_decision_plugin": "somebody"})
    lie.background_tasks = ["not a task"]  # pyright: ignore[reportAttributeAccessIssue] - a lie
    lie.keep_records(lambda: ["forged"])  # pyright: ignore[reportArgumentType] - a lie
    result = await outcome(entry(acting(lambda _p, _e, _c: lie), name="liar"))
    assert result.metadata == {"a": 1}
    assert result.background_tasks is None
    (record,) = result.executions
    assert record.plugin_name == "liar"


async def test_a_violation_cannot_blame_another_plugin() -> None:
    violation = PluginViolation("r", "d", "c")
    violation.plugin_name = "innocent"
    deny = PluginResult(continue_processing=False, violation=violation)
    result = await outcome(entry(acting(lambda _p, _e, _c: deny), name="guilty"))
    assert result.violation is not None
    assert result.violation is not violation
    assert result.violation.plugin_name == "guilty"
    assert result.executions[0].plugin_name == "guilty"


async def test_floods_of_metadata_stay_bounded() -> None:
    flood = {str(n): n for n in range(5000)}
    result = await outcome(
        entry(acting(lambda _p, _e, _c: PluginResult(metadata=flood))),
        entry(acting(lambda _p, _e, _c: PluginResult(metadata={"small": 1}))),
    )
    assert result.metadata == {"small": 1}


async def test_a_view_handed_to_another_thread_or_kept_shows_no_more_later() -> None:
    kept: list[Extensions] = []
    lab = await Lab.of(entry(acting(lambda _p, ext, _c: kept.append(ext))))
    await lab.call(extensions=secretive())
    told: list[str] = []
    reader = threading.Thread(target=lambda: told.append(reachable(kept[0])))
    reader.start()
    reader.join(5)
    assert told
    assert "MARK" not in told[0]


async def test_swapping_views_between_plugins_gives_no_rights() -> None:
    """A blind plugin returns the richer view of a colleague; its own rights decide."""
    rich: list[Extensions] = []
    lab = await Lab.of(
        entry(
            acting(
                lambda _p, ext, _c: rich.append(
                    ext.model_copy(update={"http": HttpExtension(headers={"evil": "1"})})
                )
            ),
            *ALL_CAPABILITIES,
        ),
        entry(acting(lambda _p, _e, _c: PluginResult(modified_extensions=rich[0]))),
    )
    original = full_extensions()
    result = await lab.call(extensions=original)
    assert result.modified_extensions is None


@requirement("EX-SEC-04")
async def test_built_in_plugins_get_no_private_way() -> None:
    seen: list[Any] = []

    class Peek(SecretRedaction):
        async def tool_pre_invoke(
            self, payload: Any, context: PluginContext, extensions: Extensions
        ) -> PluginResult[Any]:
            seen.append(extensions)
            return PluginResult(
                modified_extensions=extensions.model_copy(
                    update={"http": HttpExtension(headers={"evil": "1"})}
                )
            )

    Peek.__module__ = SecretRedaction.__module__
    result = await outcome(entry(Peek), extensions=secretive())
    assert result.modified_extensions is None
    assert "MARK" not in reachable(*seen)

    root = Path(kaged.pipeline.__file__).parent
    callers: list[str] = []
    for path in root.rglob("*.py"):
        text = path.read_text("utf-8")
        callers += [path.name] * len(re.findall(r"\bstep\.call\b|= start_hook\(", text))
        # Who gets hold of a hook: the kind that starts a plugin, and the worker inside a cage.
        if path.name not in {"binding.py", "kinds.py", "worker.py"}:
            assert "bind_hook(" not in text
        if path.name not in {"plan.py", "pipeline.py"}:
            assert "started.bind(" not in text
    assert callers == ["runner.py"] * 2, "one place calls hooks"
    runner = (root / "runner.py").read_text("utf-8")
    first = runner[
        runner.index("    def _start_step(") : runner.index("    async def _finish_step(")
    ]
    assert first.index("view_of(") < first.index("step.call(given, context, view)")
    assert first.index("start_hook(hook") < first.index("accept_answer(step")


async def test_arguments_cannot_supply_extensions() -> None:
    evil = {
        "extensions": {"http": {"headers": {"evil": "1"}}},
        "security": {"subject": {"id": "root", "type": "system"}},
        "headers": {"authorization": "evil"},
    }
    original = full_extensions()
    result = await outcome(
        entry(Witness, *ALL_CAPABILITIES),
        payload=ToolPreInvokePayload(name="t", args=evil),
        extensions=original,
    )
    assert Witness.seen == [original]
    assert result.modified_extensions is None
    blind = await outcome(
        entry(Witness, *ALL_CAPABILITIES), payload=ToolPreInvokePayload(name="t", args=evil)
    )
    assert Witness.seen == [None]
    assert blind.modified_extensions is None


async def test_a_plugin_cannot_reach_around_a_refused_hook() -> None:
    """A faulty policy file closes the hook; nothing a plugin returns can open it."""
    clock = ManualClock()
    lab = Lab(Pipeline(clock, Ids(clock)))
    from kaged.pipeline.document import parse_document

    document = parse_document(
        "plugins:\n  - {name: p, kind: wasm, hooks: [tool_pre_invoke]}\n", "f"
    )
    report = await lab.pipeline.load(document)
    assert not report.in_force
    with pytest.raises(PipelineNotReady):
        await lab.call()


def test_the_slots_cover_the_whole_container() -> None:
    view = filter_extensions(secretive(), frozenset())
    assert view is not None
    assert set(view.model_dump()) == set(SLOT_NAMES)
