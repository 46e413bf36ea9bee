from __future__ import annotations

import asyncio
import json
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import pytest

from fakes.tool_lab import Spy, ToolLab, cage, make_tool
from kaged.base import JsonValue, KagedError, ManualClock
from kaged.config.toolsettings import QuotaSpan
from kaged.kernel.policy import CagePolicy, FsMode
from kaged.kernel.requirements import CapabilityRequirement, FsRequirement, SeccompRequirement
from kaged.tools import (
    InvalidToolParams,
    Tool,
    ToolCallContext,
    ToolError,
    ToolErrorCode,
    ToolInvocation,
)
from kaged.tools.errors import QuotaExceeded, tool_error_of
from kaged.tools.quotas import CallQuotas, QuotaRule
from kaged.wire.errors import RpcError, number_of
from raising import raises_code
from requirements import requirement

RO, RW = FsRequirement(FsMode.RO), FsRequirement(FsMode.RW)
CODER = "primary.subagents.coder"


def reader(spy: Spy, name: str = "file.peek", **fields: Any) -> Tool:
    return make_tool(
        name,
        handler=spy,
        paths=["path"],
        required=["path"],
        requires=[RO],
        properties={"limit": {"type": "integer", "default": 2000}},
        **fields,
    )


def issue(spy: Spy) -> Tool:
    return make_tool(
        "kaged.issue",
        handler=spy,
        root_only=True,
        properties={"action": {"enum": ["get", "create"]}, "number": {"type": "integer"}},
        required=["action"],
        aliases={
            "kaged.issue.get": {"action": "get"},
            "kaged.issue.create": {"action": "create"},
        },
    )


@pytest.fixture
def spy() -> Spy:
    return Spy()


# -- order -----------------------------------------------------------------------------------------


@requirement("AT-DISP-01", "AT-AMB-34")
async def test_the_first_closed_gate_answers_and_nothing_behind_it_happens(
    tmp_path: Path, spy: Spy
) -> None:
    caged = cage(root=tmp_path)
    tools = [issue(spy), reader(spy), reader(spy, "file.other")]
    lab = ToolLab(tmp_path, tools, caged, CODER, enabled=["file.peek"])
    # Out of scope, not enabled and malformed: the scope speaks.
    assert (await lab.refusal("kaged.issue", nonsense=1)).code == "principal_scope_violation"
    # Not enabled, malformed and forbidden: not enabled speaks.
    error = await lab.refusal("file.other", path=7)
    assert (error.code, error.detail) == ("tool_not_found", {"reason": "not_enabled"})
    # Malformed and forbidden: the parameters speak.
    assert (await lab.refusal("file.peek", path="a", limit="x")).code == "invalid_params"
    # Only forbidden.
    assert (await lab.refusal("file.peek", path="a")).code == "capability_denied"
    assert spy.calls == []


@requirement("AT-DISP-02", "AT-BEY-18")
async def test_an_unknown_name_is_not_found(tmp_path: Path, spy: Spy) -> None:
    lab = ToolLab(tmp_path, [reader(spy)])
    for name in ("no.such", "media.fetch", "", "FILE.peek", "file.peek ", "agent-nobody"):
        error = await lab.refusal_with(name, {})
        assert (error.code, error.number) == ("tool_not_found", -32601)
    assert "file.peek" in str(await lab.refusal("file.pek"))


@requirement("AT-DISP-03")
async def test_bad_input_names_its_fields(tmp_path: Path, spy: Spy) -> None:
    error = await ToolLab(tmp_path, [reader(spy)]).refusal("file.peek", limit="x")
    assert (error.code, error.number) == ("invalid_params", -32602)
    assert error.detail == {
        "fields": [
            {"field": "limit", "problem": "must be integer, not string"},
            {"field": "path", "problem": "is required"},
        ]
    }
    assert spy.calls == []


@requirement("AT-DISP-04", "AT-FAIL-08", "AT-PERM-09")
async def test_a_cage_that_does_not_grant_it_refuses_and_says_what_is_missing(
    tmp_path: Path, spy: Spy
) -> None:
    write = make_tool("file.put", handler=spy, paths=["path"], requires=[RW])
    lab = ToolLab(tmp_path, [write], cage("rw ./src", root=tmp_path), CODER)
    error = await lab.refusal("file.put", path="./data/x")
    assert (error.code, error.number) == ("capability_denied", -32001)
    assert error.detail == "rw:fs:./data/x"
    assert "rw on ./data/x" in str(error)
    assert spy.calls == []


@requirement("AT-DISP-10")
async def test_a_tool_that_is_not_enabled_does_not_exist(tmp_path: Path, spy: Spy) -> None:
    lab = ToolLab(tmp_path, [reader(spy)], enabled=[], caller=CODER)
    (tmp_path / "a").write_text("x", encoding="utf-8")
    error = await lab.refusal("file.peek", path="a")
    assert (error.code, error.number) == ("tool_not_found", -32601)
    assert error.detail == {"reason": "not_enabled"}
    assert spy.calls == []
    assert lab.tools.export(lab.registry) == []


async def test_an_action_that_is_switched_off_does_not_exist(tmp_path: Path, spy: Spy) -> None:
    lab = ToolLab(tmp_path, [issue(spy)], off={"kaged.issue": ["create"]})
    for name in ("kaged.issue", "kaged.issue.create"):
        error = await lab.refusal(name, action="create")
        assert (error.code, error.detail) == ("tool_not_found", {"reason": "not_enabled"})
    await lab.call("kaged.issue", action="get", number=1)
    assert len(spy.calls) == 1


# -- names -----------------------------------------------------------------------------------------


@requirement("AT-AUD-27")
async def test_an_alias_is_the_tool_with_arguments_filled_in(tmp_path: Path, spy: Spy) -> None:
    ast = make_tool("search.ast", aliases={"search.ast_grep": {}}, handler=spy)
    lab = ToolLab(tmp_path, [issue(spy), ast])
    await lab.call("kaged.issue.get", number=1)
    await lab.call("kaged.issue", action="get", number=1)
    assert spy.calls[0].args == spy.calls[1].args == {"action": "get", "number": 1}
    await lab.call("search.ast_grep")
    assert len(spy.calls) == 3
    called = lab.audit.of("tool.called")
    assert [one["tool_name"] for one in called] == ["kaged.issue", "kaged.issue", "search.ast"]
    assert [one.get("alias") for one in called] == ["kaged.issue.get", None, "search.ast_grep"]
    assert lab.audit.of("tool.completed")[0]["alias"] == "kaged.issue.get"
    exported = [one["name"] for one in lab.tools.export(lab.registry)]
    assert exported == ["kaged.issue", "search.ast"]
    assert len(lab.registry) == 2
    # An alias cannot be talked into another action.
    await lab.call("kaged.issue.get", number=1, action="create")
    assert spy.calls[-1].args["action"] == "get"


@requirement("AT-SCOPE-03", "AT-SCOPE-05", "AT-SCOPE-07", "AT-CTX-03", "AT-FAIL-15", "AT-AUD-27")
@pytest.mark.parametrize(
    "caller",
    [CODER, "primary.subagents.primary", "Primary", "primary ", "primary.", "PRIMARY", "prim"],
)
@pytest.mark.parametrize("name", ["kaged.issue", "kaged.issue.create"])
async def test_root_only_means_the_exact_caller_primary(
    tmp_path: Path, spy: Spy, caller: str, name: str
) -> None:
    lab = ToolLab(tmp_path, [issue(spy)], None, caller)
    error = await lab.refusal(name, action="get")
    assert (error.code, error.number) == ("principal_scope_violation", -32001)
    assert spy.calls == []
    assert lab.audit.names() == ["tool.called", "tool.denied"]
    (denied,) = lab.audit.of("tool.denied")
    alias = None if name == "kaged.issue" else name
    assert (denied["tool_name"], denied.get("alias")) == ("kaged.issue", alias)


async def test_the_root_agent_passes_the_scope(tmp_path: Path, spy: Spy) -> None:
    await ToolLab(tmp_path, [issue(spy)]).call("kaged.issue", action="get")
    assert len(spy.calls) == 1


@requirement("AT-REG-06", "AT-CTX-08")
@pytest.mark.parametrize("key", ["foo", "caller", "cage_policy", "session_id", "_context"])
async def test_an_unknown_parameter_is_named_and_changes_nothing(
    tmp_path: Path, spy: Spy, key: str
) -> None:
    lab = ToolLab(tmp_path, [reader(spy)], None, CODER)
    error = await lab.refusal_with("file.peek", {"path": "a", key: "primary"})
    assert error.code == "invalid_params"
    assert key in str(error.detail)
    assert spy.calls == []
    await lab.call("file.peek", path="a")
    assert spy.calls[0].context.caller == CODER
    with pytest.raises(FrozenInstanceError):
        spy.calls[0].context.caller = "primary"  # type: ignore[misc]  # that is the attempt


@requirement("AT-DISP-13")
@pytest.mark.parametrize("value", [True, False, "5", 5.5, None])
async def test_values_are_not_coerced(tmp_path: Path, spy: Spy, value: Any) -> None:
    error = await ToolLab(tmp_path, [reader(spy)]).refusal("file.peek", path="a", limit=value)
    assert error.code == "invalid_params"
    assert "limit" in str(error.detail)


@pytest.mark.parametrize("params", [None, [], "path", 7])
async def test_parameters_that_are_no_object_are_refused(
    tmp_path: Path, spy: Spy, params: Any
) -> None:
    error = await ToolLab(tmp_path, [reader(spy)]).refusal_with("file.peek", params)
    assert error.code == "invalid_params"


@requirement("AT-DISP-14")
async def test_a_default_is_decided_like_a_value_that_was_sent(tmp_path: Path, spy: Spy) -> None:
    run = make_tool(
        "shell.run",
        handler=spy,
        properties={"cwd": {"type": "string", "default": "."}},
        paths=["cwd"],
        requires=[RW],
    )
    lab = ToolLab(tmp_path, [run], cage("rw ./src", root=tmp_path), CODER)
    assert (await lab.refusal("shell.run")).detail == "rw:fs:."
    (tmp_path / "src").mkdir()
    await lab.call("shell.run", cwd="./src")
    whole = ToolLab(tmp_path, [run], cage("rw .", root=tmp_path), CODER)
    await whole.call("shell.run")
    assert spy.calls[-1].args == {"cwd": "."}
    assert spy.calls[-1].paths[0].resolved == str(tmp_path.resolve())


async def test_a_tools_own_check_speaks_after_the_schema(tmp_path: Path, spy: Spy) -> None:
    def check(args: Any) -> None:
        if args["limit"] > 10:
            raise InvalidToolParams.of_field("limit", "is too much")

    lab = ToolLab(tmp_path, [reader(spy, check=check)], cage(root=tmp_path), CODER)
    assert (await lab.refusal("file.peek", path="a", limit=11)).code == "invalid_params"
    assert (await lab.refusal("file.peek", path="a", limit=1)).code == "capability_denied"


async def test_requirements_may_depend_on_the_arguments(tmp_path: Path, spy: Spy) -> None:
    edit = make_tool(
        "edit.some",
        handler=spy,
        paths=["path"],
        properties={"dry_run": {"type": "boolean", "default": True}},
        requires=[RO],
        requires_for=lambda args: (RO,) if args["dry_run"] else (RW,),
        changes=lambda args: not args["dry_run"],
    )
    lab = ToolLab(tmp_path, [edit], cage("ro .", root=tmp_path), CODER)
    await lab.call("edit.some", path="a")
    assert (await lab.refusal("edit.some", path="a", dry_run=False)).code == "capability_denied"


# -- context ---------------------------------------------------------------------------------------


@requirement("AT-CTX-01")
@pytest.mark.parametrize("caller", ["primary", CODER, "primary.subagents.builder.subagents.linter"])
async def test_a_handler_sees_the_whole_context(tmp_path: Path, spy: Spy, caller: str) -> None:
    policy = cage("ro .", root=tmp_path)
    lab = ToolLab(tmp_path, [reader(spy)], policy, caller)
    await lab.call("file.peek", path="a")
    context = spy.calls[0].context
    assert context == replace(lab.context, request_id="req_1")
    assert context.cage_policy is policy
    assert context.caller == caller
    assert lab.audit.of("tool.called")[0]["caller"] == caller


@requirement("AT-CTX-01")
@pytest.mark.parametrize(
    "field",
    [
        one.name
        for one in fields(ToolCallContext)
        if one.name not in {"operator_id", "model", "turn", "asked"}
        and one.name not in {"reach_person", "ask_host", "granted_tools"}
    ],
)
async def test_a_context_that_lacks_something_is_refused_before_anything(
    tmp_path: Path, spy: Spy, field: str
) -> None:
    lab = ToolLab(tmp_path, [reader(spy)])
    bad: Any = "x" if field == "cage_policy" else ""
    with raises_code("tool_context_invalid", ToolError, match=field):
        await lab.dispatcher.dispatch(
            "file.peek", {"path": "a"}, replace(lab.context, **{field: bad})
        )
    assert spy.calls == []
    assert lab.audit.events == []


@requirement("AT-CTX-04")
async def test_paths_are_relative_to_the_resolved_root(tmp_path: Path, spy: Spy) -> None:
    real = tmp_path / "real"
    (real / "src").mkdir(parents=True)
    (tmp_path / "link").symlink_to(real)
    lab = ToolLab(tmp_path / "link", [reader(spy)], cage("ro ./src", root=real), CODER)
    assert lab.context.project_root == str(real.resolve())
    await lab.call("file.peek", path="src/a")
    await lab.call("file.peek", path=f"{real.resolve()}/src/b")
    assert [call.paths[0].relative for call in spy.calls] == ["./src/a", "./src/b"]


@requirement("AT-CTX-05", "AT-AMB-21")
async def test_a_root_with_a_cage_is_checked_like_any_other(tmp_path: Path, spy: Spy) -> None:
    write = make_tool("file.put", handler=spy, paths=["path"], requires=[RW])
    caged = ToolLab(tmp_path, [write], cage("ro ./src", root=tmp_path), "primary")
    assert (await caged.refusal("file.put", path="src/a")).code == "capability_denied"
    child = ToolLab(tmp_path, [write], cage("ro ./src", root=tmp_path), CODER)
    await child.refusal("file.put", path="src/a")
    (own,), (other,) = (lab.audit.of("tool.denied") for lab in (caged, child))
    assert (own["denied_capability"], own["error_code"]) == ("rw:fs:src/a", "capability_denied")
    assert own["rule"] == "tool.fs"
    assert {**own, "caller": ""} == {**other, "caller": ""}  # as a child's is, word for word
    free = ToolLab(tmp_path, [write], None, CODER)
    await free.call("file.put", path="src/a")
    assert spy.calls[0].policy is None


async def test_the_records_of_a_call_share_its_request_id(tmp_path: Path, spy: Spy) -> None:
    lab = ToolLab(tmp_path, [reader(spy)], cage("ro ./src", root=tmp_path), CODER)
    await lab.call("file.peek", path="src/a")
    await lab.refusal("file.peek", path="b")
    allowed, denied = (
        {name for name, data in lab.audit.events if data["request_id"] == one}
        for one in ("req_1", "req_2")
    )
    assert allowed == {"tool.called", "tool.completed"}
    assert denied == {"tool.called", "tool.denied"}
    assert [one.context.request_id for one in lab.outcomes] == ["req_1", "req_2"]


# -- failures --------------------------------------------------------------------------------------


@requirement("AT-DISP-11")
async def test_a_tool_that_breaks_ends_its_own_call_only(tmp_path: Path, spy: Spy) -> None:
    lab = ToolLab(tmp_path, [reader(spy)])
    spy.fails_with = ZeroDivisionError(f"division by zero in {lab.root}/secret/place.py")
    error = await lab.refusal("file.peek", path="a")
    assert (error.code, error.number) == ("internal_error", -32603)
    shown = json.dumps(error.as_json())
    assert str(lab.root) not in shown
    assert "Traceback" not in shown
    assert "division" not in shown
    spy.fails_with = None
    assert await lab.call("file.peek", path="a") == {"ok": True}
    assert lab.audit.of("tool.completed")[0]["error_code"] == "internal_error"


class _StoreDown(KagedError):
    code = "store_unavailable"


class _Lost(KagedError):
    code = "file_not_found"


@requirement("AT-CTX-10")
async def test_a_caged_caller_never_sees_where_its_project_lies(tmp_path: Path, spy: Spy) -> None:
    root = str(tmp_path.resolve())
    errors: list[KagedError] = [
        _Lost(f"no {root}/a/b", fix=f"look in {root}", path=f"{root}/a/b", seen=[root, 1]),
        _StoreDown(f"{root}/.kaged/db is gone"),
        ToolError(f"{root}", code="tool_not_found", detail={root: [f"{root}/x"]}),
    ]
    for error in errors:
        spy.fails_with = error
        lab = ToolLab(tmp_path, [reader(spy)], cage("ro .", root=tmp_path), CODER)
        seen = await lab.refusal("file.peek", path="a")
        assert seen.code == error.code
        assert root not in json.dumps(seen.as_json())
        assert root not in str(seen)
    lab = ToolLab(tmp_path, [reader(spy)], cage("ro ./src", root=tmp_path), CODER)
    for path in ("a", "../x", f"{root}/a", f"{root}/../x", "/etc/passwd", "~", "a\0b"):
        assert root not in str(await lab.refusal("file.peek", path=path)).replace(path, "")


async def test_what_the_host_trips_over_is_not_told_to_agents(tmp_path: Path, spy: Spy) -> None:
    spy.fails_with = _StoreDown("/var/lib/kaged/db.sqlite is locked", fix="stop /usr/bin/x")
    error = await ToolLab(tmp_path, [reader(spy)]).refusal("file.peek", path="a")
    assert error.code == "store_unavailable"
    assert "/" not in error.message


@requirement("AT-DISP-07")
async def test_every_failure_has_one_shape(tmp_path: Path, spy: Spy) -> None:
    lab = ToolLab(
        tmp_path,
        [reader(spy), issue(spy), make_tool("debug.x", requires=[SeccompRequirement()])],
        cage(root=tmp_path),
        CODER,
    )
    spy.fails_with = None
    seen: list[ToolError] = [
        await lab.refusal("no.such"),
        await lab.refusal("kaged.issue"),
        await lab.refusal("file.peek"),
        await lab.refusal("file.peek", path="a"),
        await lab.refusal("debug.x"),
    ]
    free = ToolLab(tmp_path, [reader(spy)])
    for raised in (ValueError("x"), _Lost("gone", path="a"), RpcError("busy", number=-32005)):
        spy.fails_with = raised
        seen.append(await free.refusal("file.peek", path="a"))
    for error in seen:
        shape = error.as_json()
        assert list(shape) == ["code", "number", "message", "detail"]
        assert isinstance(shape["code"], str)
        assert isinstance(shape["number"], int)
        assert isinstance(shape["message"], str)
        assert shape["detail"] is None or isinstance(shape["detail"], str | dict)
        json.dumps(shape, allow_nan=False)
    assert [one.error for one in free.outcomes] == [one.as_json() for one in seen[5:]]


@requirement("AT-DISP-09", "AT-AMB-18")
def test_the_vocabulary_is_complete() -> None:
    wanted = """tool_not_found, invalid_params, internal_error, capability_denied,
        seccomp_insufficient, principal_scope_violation, file_not_found, file_exists,
        file_not_read, file_changed_since_read, file_busy, old_string_not_found,
        multiple_matches, no_change, invalid_pattern, lsp_server_not_found,
        lsp_server_unavailable, lsp_timeout, rename_scope_exceeds_cage, rename_not_possible,
        dap_requires_relaxed_seccomp, dap_session_ended, dap_adapter_not_found,
        issue_not_found, invalid_transition, no_bound_issue, todo_not_found,
        content_addressing_hint, session_not_found, workflow_not_found, run_not_found,
        file_input_not_supported, invalid_assignment, shell_spawn_failed, tool_name_collision,
        parse_error, dap_session_active, dap_not_stopped, dap_unsupported,
        interaction_pending, plugin_unavailable"""
    codes = {word.strip() for word in wanted.replace("\n", " ").split(",")}
    assert codes <= {str(code) for code in ToolErrorCode}


@requirement("AT-DISP-08", "AT-AMB-35")
def test_every_code_has_its_number() -> None:
    special = {
        "tool_not_found": -32601,
        "invalid_params": -32602,
        "internal_error": -32603,
        "capability_denied": -32001,
        "seccomp_insufficient": -32001,
        "dap_requires_relaxed_seccomp": -32001,
        "principal_scope_violation": -32001,
    }
    for code in ToolErrorCode:
        assert number_of(code) == special.get(code, -32000)
    for kind in _subclasses(ToolError):
        assert number_of(kind.code) == special.get(kind.code, -32000)


def _subclasses(kind: type[ToolError]) -> list[type[ToolError]]:
    below = [one for child in kind.__subclasses__() for one in _subclasses(child)]
    return [kind, *below]


async def test_a_plugins_error_keeps_its_number_and_words(tmp_path: Path, spy: Spy) -> None:
    spy.fails_with = RpcError("try later", number=-32005, detail={"wait": 3})
    error = await ToolLab(tmp_path, [reader(spy)]).refusal("file.peek", path="a")
    assert (error.number, error.message, error.detail) == (-32005, "try later", {"wait": 3})
    assert tool_error_of(error) is error


async def test_a_cancelled_call_is_on_record_and_stays_cancelled(tmp_path: Path) -> None:
    entered = asyncio.Event()

    async def hangs(call: ToolInvocation) -> JsonValue:
        entered.set()
        await asyncio.Event().wait()
        return call.args

    lab = ToolLab(tmp_path, [make_tool("shell.wait", handler=hangs)])
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        task = group.create_task(lab.call("shell.wait"))
        await entered.wait()
        task.cancel()
    assert task.cancelled()
    assert lab.audit.of("tool.completed")[0]["error_code"] == "cancelled"


async def test_calls_run_side_by_side(tmp_path: Path, spy: Spy) -> None:
    go = asyncio.Event()

    async def waits(call: ToolInvocation) -> JsonValue:
        await go.wait()
        return {"when": "late"}

    lab = ToolLab(tmp_path, [make_tool("shell.wait", handler=waits), reader(spy)])
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        slow = group.create_task(lab.call("shell.wait"))
        assert await lab.call("file.peek", path="a") == {"ok": True}
        assert not slow.done()
        go.set()
    assert slow.result() == {"when": "late"}


# -- outcomes and quotas ---------------------------------------------------------------------------


async def test_outcomes_are_told_and_a_sink_that_breaks_harms_nobody(
    tmp_path: Path, spy: Spy
) -> None:
    class Broken:
        def tool_called(self, outcome: object) -> None:
            raise RuntimeError("no")

    lab = ToolLab(tmp_path, [reader(spy)], cage("ro ./src", root=tmp_path), CODER)
    lab.dispatcher._outcomes = (Broken(), lab)  # a second listener beside the lab's
    assert await lab.call("file.peek", path="src/a") == {"ok": True}
    await lab.refusal("file.peek", path="b")
    first, second = lab.outcomes
    assert (first.result, first.error, first.denied) == ({"ok": True}, None, False)
    assert second.error is not None
    assert (second.error["code"], second.denied) == ("capability_denied", True)
    assert first.tool_version == "1"
    assert first.schema_hash


@requirement("AT-BEY-08")
async def test_the_call_beyond_a_quota_is_refused_and_audited(
    tmp_path: Path, spy: Spy, clock: ManualClock
) -> None:
    def lab(span: QuotaSpan) -> ToolLab:
        quotas = CallQuotas([QuotaRule("file.*", 3, span)], clock)
        return ToolLab(tmp_path, [reader(spy), issue(spy)], quotas=quotas, clock=clock)

    per_run = lab(QuotaSpan.RUN)
    for _ in range(3):
        await per_run.call("file.peek", path="a")
    error = await per_run.refusal("file.peek", path="a")
    assert isinstance(error, QuotaExceeded)
    assert error.code == "quota_exceeded"
    assert per_run.audit.names()[-1] == "tool.denied"
    await per_run.call("kaged.issue", action="get")  # another namespace
    await per_run.call_with("file.peek", {"path": "a"}, run_id="run_2")
    per_session = lab(QuotaSpan.SESSION)
    for run in range(3):
        await per_session.call_with("file.peek", {"path": "a"}, run_id=f"run_{run}")
    await per_session.refusal_with("file.peek", {"path": "a"}, run_id="run_9")
    await per_session.call_with("file.peek", {"path": "a"}, session_id="ses_2")
    per_minute = lab(QuotaSpan.MINUTE)
    for _ in range(3):
        await per_minute.call("file.peek", path="a")
    await per_minute.refusal("file.peek", path="a")
    clock.advance(61)
    await per_minute.call("file.peek", path="a")


@requirement("AT-BEY-08")
async def test_every_matching_quota_counts_and_the_tightest_decides(
    tmp_path: Path, spy: Spy, clock: ManualClock
) -> None:
    rules = [
        QuotaRule("file.*", 5, QuotaSpan.RUN),
        QuotaRule("file.peek", 2, QuotaSpan.RUN),
        QuotaRule("*", 4, QuotaSpan.SESSION),
    ]
    tools = [reader(spy), reader(spy, "file.look")]
    lab = ToolLab(tmp_path, tools, quotas=CallQuotas(rules, clock), clock=clock)
    for _ in range(2):
        await lab.call("file.peek", path="a")
    assert (await lab.refusal("file.peek", path="a")).detail == "quota:file.peek:2/run"
    for _ in range(2):  # the refused call has used up nothing of the other rules
        await lab.call("file.look", path="a")
    assert (await lab.refusal("file.look", path="a")).detail == "quota:*:4/session"
    assert len(spy.calls) == 4


@requirement("AT-BEY-08")
async def test_without_quotas_nothing_is_counted(tmp_path: Path, spy: Spy) -> None:
    lab = ToolLab(tmp_path, [reader(spy)])
    for _ in range(50):
        await lab.call("file.peek", path="a")


@requirement("AT-PERM-01")
async def test_every_requirement_must_be_met(tmp_path: Path, spy: Spy) -> None:
    both = make_tool(
        "shell.run", handler=spy, paths=["path"], requires=[RW, CapabilityRequirement("shell")]
    )
    only_fs = ToolLab(tmp_path, [both], cage("rw .", root=tmp_path), CODER)
    assert (await only_fs.refusal("shell.run", path="a")).detail == "shell"
    only_shell = cage("ro .", root=tmp_path, capabilities=["shell"])
    error = await ToolLab(tmp_path, [both], only_shell, CODER).refusal("shell.run", path="a")
    assert error.detail == "rw:fs:a"
    assert spy.calls == []
    granted = cage("rw .", root=tmp_path, capabilities=["shell"])
    await ToolLab(tmp_path, [both], granted, CODER).call("shell.run", path="a")


async def test_an_empty_policy_is_no_missing_policy(tmp_path: Path, spy: Spy) -> None:
    lab = ToolLab(tmp_path, [reader(spy)], CagePolicy(), CODER)
    assert (await lab.refusal("file.peek", path="a")).code == "capability_denied"
