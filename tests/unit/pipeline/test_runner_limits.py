from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kaged.pipeline import (
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
    ToolPostInvokePayload,
    ToolPreInvokePayload,
    UserContext,
)
from kaged.pipeline.edits import MAX_PAYLOAD_CHARS, DefaultHookPolicy, HookPayloadPolicy
from kaged.pipeline.payloads.base import HOST, PluginPayload
from kaged.pipeline.payloads.calls import HttpAuthResolveUserPayload, HttpPreRequestPayload
from raising import has_code
from requirements import requirement
from unit.pipeline.lab import CALL, HOOK, Lab, entry, outcome
from unit.pipeline.material import ALL_CAPABILITIES, full_extensions
from unit.pipeline.runner_plugins import (
    ORDER,
    Both,
)


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


class Verdict(PluginPayload):
    """What plugins of a hook of their own give back in place of what they were given."""

    granted: bool = True


@pytest.mark.parametrize("given_back", [Verdict(), {"email": "ada@example.org"}])
async def test_another_kind_of_payload_goes_on_to_the_next_plugin_and_not_where_edits_are_denied(
    given_back: Any,
) -> None:
    seen: list[Any] = []

    class Decides(Plugin):
        async def odd_hook(self, payload: Any, context: Any) -> PluginResult[Any]:
            return PluginResult(modified_payload=given_back)

    class Looks(Plugin):
        async def odd_hook(self, payload: Any, context: Any) -> None:
            seen.append(payload)

    chain = entry(Decides, hooks=["odd_hook"]), entry(Looks, hooks=["odd_hook"])
    cases: list[tuple[dict[str, Any], Any]] = [
        ({}, given_back),
        ({"hook_policies": {"odd_hook": HookPayloadPolicy(frozenset())}}, given_back),
        ({"default_hook_policy": DefaultHookPolicy.DENY}, None),
    ]
    for options, arrives in cases:
        lab = await Lab.of(*chain, **options)
        result = await lab.call(hook="odd_hook")
        assert result.modified_payload == arrives
        assert seen.pop() == (CALL if arrives is None else given_back)
        await lab.pipeline.close()


async def test_where_edits_are_denied_a_hook_of_the_host_is_given_none_of_its_own_either() -> None:
    class Invents(Plugin):
        async def http_auth_resolve_user(self, payload: Any, context: Any) -> PluginResult[Any]:
            return PluginResult(modified_payload={"email": "root@example.org"})

    asked = HttpAuthResolveUserPayload.model_validate({"headers": {}}, context={HOST: True})
    made = entry(Invents, hooks=["http_auth_resolve_user"])
    cases: list[tuple[dict[str, Any], Any]] = [
        ({}, {"email": "root@example.org"}),
        ({"default_hook_policy": DefaultHookPolicy.DENY}, None),
    ]
    for options, arrives in cases:
        lab = await Lab.of(made, **options)
        result = await lab.call(asked, hook="http_auth_resolve_user")
        assert result.modified_payload == arrives
        await lab.pipeline.close()


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
