from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from kaged.base import Ids, JsonObject, JsonValue, KagedError, ManualClock
from kaged.pipeline import (
    Extensions,
    GlobalContext,
    HttpExtension,
    Pipeline,
    PluginConfig,
    PluginContext,
    PluginError,
    PluginResult,
    PluginViolation,
    PluginViolationError,
    ToolPreInvokePayload,
    UserContext,
    filter_extensions,
)
from kaged.pipeline.external import ExternalKind
from kaged.pipeline.payloads.base import StructuredData
from kaged.pipeline.payloads.registry import HookRegistry
from kaged.pipeline.remote import (
    NotSendable,
    decode_answer,
    decode_call,
    encode_call,
    encode_error,
    encode_result,
)
from kaged.pipeline.worker import Worker
from raising import raises_code
from unit.pipeline.lab import HOOK
from unit.pipeline.material import ALL_CAPABILITIES, full_extensions

KIND = HookRegistry().kind(HOOK)
CALL = ToolPreInvokePayload(name="t", args={"a": [1, {"b": None}]})


def a_context() -> PluginContext:
    shared = GlobalContext(
        "r", user="u", user_context=UserContext(user_id="u"), state={"s": 1}, metadata={"m": 2}
    )
    return PluginContext(shared, {"mine": 1}, {"also": 2})


def over_the_wire(data: JsonObject) -> Any:
    return json.loads(json.dumps(data))


def test_a_call_arrives_as_it_was_sent() -> None:
    view = filter_extensions(full_extensions(), ALL_CAPABILITIES)
    sent = over_the_wire(encode_call(HOOK, CALL, a_context(), view))
    payload, context, extensions = decode_call(sent, KIND)
    assert payload == CALL
    assert context == a_context()
    assert extensions == full_extensions()
    bare = over_the_wire(encode_call("made.up", {"x": 1}, a_context(), None))
    payload, _, extensions = decode_call(bare, None)
    assert payload == StructuredData.model_validate({"x": 1})
    assert extensions is None
    assert decode_call({"payload": 5}, None)[0] == 5


def test_what_is_hidden_is_not_sent() -> None:
    view = filter_extensions(full_extensions(), frozenset())
    sent = json.dumps(encode_call(HOOK, CALL, PluginContext(GlobalContext("r")), view))
    for secret in ("Bearer abc", "alice", "payroll", "ses-1", "confidential"):
        assert secret not in sent


def test_what_has_no_json_form_is_not_sent_at_all() -> None:
    with pytest.raises(NotSendable, match="JSON form"):
        encode_call(HOOK, ToolPreInvokePayload(name="t", args={"x": object()}), a_context(), None)


def test_an_answer_carries_changed_slots_only() -> None:
    shown = full_extensions()
    result = PluginResult(
        continue_processing=False,
        modified_payload=CALL,
        modified_extensions=shown.model_copy(
            update={"http": HttpExtension(headers={"a": "b"}), "custom": {"o": object()}}
        ),
        violation=PluginViolation("r", "d", "c"),
        metadata={"k": 1},
        retry_delay_ms=4,
    )
    context = a_context()
    context.state["new"] = 1
    context.global_context.state["new"] = 2
    answer = over_the_wire(encode_result(result, context, shown))
    assert answer["result"]["modified_extensions"] == {"http": {"headers": {"a": "b"}}}
    assert answer["result"]["unsendable_slots"] == ["custom"]

    mine = a_context()
    view = filter_extensions(shown, ALL_CAPABILITIES)
    back = decode_answer(answer, KIND, mine, view)
    assert (back.continue_processing, back.modified_payload) == (False, CALL)
    assert back.violation is not None
    assert (back.metadata, back.retry_delay_ms) == ({"k": 1}, 4)
    assert back.modified_extensions is not None
    assert back.modified_extensions.http == HttpExtension(headers={"a": "b"})
    assert not isinstance(back.modified_extensions.custom, dict), "the merge will note it"
    assert mine.state == {"mine": 1, "new": 1}
    assert mine.global_context.state == {"s": 1, "new": 2}

    nothing = over_the_wire(encode_result(None, a_context(), None))
    assert decode_answer(nothing, KIND, a_context(), None) == PluginResult()
    foreign: Any = PluginResult(modified_extensions="x")  # pyright: ignore[reportArgumentType] - a lie
    with raises_code("plugin_answer_invalid", match="modified_extensions"):
        decode_answer(encode_result(foreign, a_context(), None), KIND, a_context(), None)


def test_a_slot_that_does_not_fit_is_passed_on_for_the_merge_to_refuse() -> None:
    answer = {"result": {"modified_extensions": {"http": 5, "no_such_slot": 1}}}
    back = decode_answer(answer, KIND, a_context(), None)
    assert back.modified_extensions is not None
    assert back.modified_extensions.http == 5


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        {},
        {"result": 5},
        {"result": {"modified_payload": {"name": 5}}},
        {"result": {"violation": {"reason": "r"}}},
        {"error": "text"},
    ],
)
def test_nonsense_is_refused(answer: Any) -> None:
    with raises_code("plugin_answer_invalid"):
        decode_answer(answer, KIND, a_context(), None)


def test_errors_come_back_as_what_they_were() -> None:
    class Unshowable(Exception):
        def __repr__(self) -> str:
            raise RuntimeError

    for error, message in ((ValueError("x"), "ValueError('x')"), (Unshowable(), "Unshowable")):
        with raises_code("plugin_raised", match="^" + message.replace("(", r"\(")[:8]):
            decode_answer(encode_error(error, a_context()), KIND, a_context(), None)
    violated = PluginViolationError("stop", PluginViolation("r", "d", "c"))
    with pytest.raises(PluginViolationError, match="stop") as caught:
        decode_answer(over_the_wire(encode_error(violated, a_context())), KIND, a_context(), None)
    assert caught.value.violation is not None
    for words in ({"reason": 5}, {"x": 1}, "text"):
        forged = {"error": {"code": "plugin_violation", "message": "m", "violation": words}}
        with pytest.raises(PluginViolationError) as odd:
            decode_answer(forged, KIND, a_context(), None)
        assert odd.value.violation is None


def test_floods_of_memory_are_not_taken_over() -> None:
    flood = {str(n): n for n in range(5000)}
    mine = a_context()
    decode_answer(
        {"result": {}, "context": {"state": flood, "metadata": "x", "global_context": 5}},
        KIND,
        mine,
        None,
    )
    decode_answer({"result": {}, "context": 5}, KIND, mine, None)
    assert mine == a_context()


# -- the worker ----------------------------------------------------------------------------------


class Conversation:
    """A worker on a stream in memory."""

    def __init__(self) -> None:
        self._lines = asyncio.StreamReader()
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        worker = Worker(lambda data: self._answers.put_nowait(json.loads(data)))
        self.running = asyncio.get_running_loop().create_task(worker.run(self._lines))

    def say(self, **message: Any) -> None:
        self._lines.feed_data(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def ask(self, method: str, params: Any = None, identity: int = 1) -> Any:
        self.say(id=identity, method=method, params=params)
        async with asyncio.timeout(5):
            return await self._answers.get()

    async def load(self, act: str, class_name: str = "fakes.pipeline_plugins.Everything") -> Any:
        config = {"name": "p", "kind": "caged", "hooks": [HOOK], "config": {"act": act}}
        return await self.ask("load", {"class_name": class_name, "config": config})

    async def end(self) -> None:
        self._lines.feed_eof()
        async with asyncio.timeout(5):
            await self.running


async def test_a_worker_loads_a_class_and_answers_calls() -> None:
    talk = Conversation()
    assert (await talk.load("edit"))["result"] == {"hooks": [HOOK]}
    params = encode_call(HOOK, CALL, a_context(), Extensions())
    answer = await talk.ask("invoke", params, 2)
    assert answer["id"] == 2
    assert answer["result"]["result"]["metadata"] == {"edited": True}
    assert answer["result"]["context"]["state"]["calls"] == 1
    assert (await talk.ask("ping"))["result"] == {}
    assert (await talk.ask("dance"))["error"]["code"] == -32601
    assert "KeyError" in (await talk.ask("invoke", {"hook_type": "none"}))["error"]["message"]
    await talk.end()


@pytest.mark.parametrize(
    ("act", "message"),
    [("raise", "ValueError('boom')"), ("foreign", "returned dict")],
)
async def test_a_worker_tells_what_went_wrong(act: str, message: str) -> None:
    talk = Conversation()
    await talk.load(act)
    params = encode_call(HOOK, CALL, a_context(), None)
    answer = await talk.ask("invoke", params)
    assert message in answer["result"]["error"]["message"]
    await talk.end()


async def test_a_worker_refuses_a_class_that_is_no_plugin() -> None:
    talk = Conversation()
    answer = await talk.load("nothing", "fakes.pipeline_plugins.NotAPlugin")
    assert "not a Plugin class" in answer["error"]["message"]
    await talk.end()


@pytest.mark.parametrize(
    "class_name", ["fakes.pipeline_plugins.Tagger", "fakes.pipeline_plugins.ByKeyword"]
)
async def test_a_worker_calls_hooks_of_every_signature(class_name: str) -> None:
    talk = Conversation()
    await talk.load("nothing", class_name)
    answer = await talk.ask("invoke", encode_call(HOOK, CALL, a_context(), Extensions()))
    assert answer["result"]["result"]["metadata"] == {"tagged": "p"}
    await talk.end()


async def test_a_cancelled_call_ends_and_a_shutdown_ends_all() -> None:
    talk = Conversation()
    await talk.load("hang")
    params = encode_call(HOOK, CALL, a_context(), None)
    talk.say(id=2, method="invoke", params=params)
    talk.say(id=3, method="invoke", params=params)
    assert (await talk.ask("ping", identity=4))["id"] == 4
    talk.say(method="kaged.cancel", params={"id": 2})
    talk.say(method="kaged.cancel", params={"id": 99})
    talk.say(method="kaged.other")
    assert (await talk.ask("ping", identity=5))["id"] == 5
    talk.say(method="shutdown")
    async with asyncio.timeout(5):
        await talk.running


# -- external ------------------------------------------------------------------------------------


class Server:
    """An MCP server with one plugin, as far as a client sees it."""

    def __init__(self, answer: Any = None, hooks: Any = None) -> None:
        self.answer: Any = {"result": {}} if answer is None else answer
        self.known: JsonValue = {"name": "p", "hooks": [HOOK] if hooks is None else hooks}
        self.calls: list[tuple[str, JsonObject]] = []
        self.closed = False

    async def call_tool(self, name: str, arguments: JsonObject) -> JsonValue:
        self.calls.append((name, arguments))
        if name == "get_plugin_config":
            if isinstance(self.known, str):
                raise KagedError(self.known)
            return self.known
        if isinstance(self.answer, Exception):
            raise self.answer
        answer: Any = self.answer(arguments) if callable(self.answer) else self.answer
        return answer

    async def close(self) -> None:
        self.closed = True


async def external(server: Server, *capabilities: str, hooks: Any = (HOOK,)) -> Any:
    async def connect(name: str, table: dict[str, Any]) -> Server:
        if table.get("url") == "down":
            raise KagedError("connection refused", fix="start it")
        return server

    clock = ManualClock()
    pipeline = Pipeline(clock, Ids(clock), kinds={"external": ExternalKind(connect)})
    report = await pipeline.load_configs(
        [
            PluginConfig(
                name="p",
                kind="external",
                hooks=list(hooks),
                mcp={"url": "down" if "down" in capabilities else "up"},
                capabilities=frozenset(capabilities) - {"down"},
            )
        ]
    )
    return pipeline, report


async def run(pipeline: Pipeline, extensions: Extensions) -> PluginResult[Any]:
    result, _ = await pipeline.invoke_hook(HOOK, CALL, GlobalContext("r"), extensions=extensions)
    return result


async def test_an_external_plugin_gets_the_view_and_its_changes_are_merged() -> None:
    def answer(arguments: JsonObject) -> JsonValue:
        shown: Any = arguments["extensions"]
        return {
            "result": {
                "modified_extensions": {
                    **shown,
                    "http": {"headers": {"new": "1"}},
                    "request": {"environment": "forged"},
                }
            }
        }

    original = full_extensions()
    for capability, accepted in (("write_headers", True), ("read_headers", False)):
        server = Server(answer)
        pipeline, report = await external(server, capability)
        assert report.in_force
        result = await run(pipeline, original)
        merged = result.modified_extensions
        assert (merged is not None) is accepted
        if merged is not None:
            assert merged.http == HttpExtension(headers={"new": "1"})
            assert merged.agent is original.agent
            assert merged.custom is original.custom
        slots = {change.slot for change in result.executions[0].discarded}
        assert slots == ({"request"} if accepted else {"http", "request"})
        name, arguments = server.calls[-1]
        assert (name, arguments["plugin_name"]) == ("invoke_hook", "p")
        assert "alice" not in json.dumps(arguments)
        await pipeline.close()
        assert server.closed


@pytest.mark.parametrize(
    "answer", ["not json", "[]", 5, {"error": {"message": "boom"}}, KagedError("gone")]
)
async def test_an_external_plugin_that_answers_nonsense_is_a_failed_plugin(answer: Any) -> None:
    pipeline, _ = await external(Server(answer))
    with pytest.raises(PluginError):
        await run(pipeline, Extensions())


async def test_text_content_is_read_as_json() -> None:
    pipeline, _ = await external(Server(json.dumps({"result": {"metadata": {"a": 1}}})))
    assert (await run(pipeline, Extensions())).metadata == {"a": 1}


async def test_a_server_without_the_plugin_or_the_hook_refuses_the_load() -> None:
    silent = Server()
    silent.known = None
    broken = Server()
    broken.known = "no such tool"
    other = Server(hooks=["tool_post_invoke"])
    for server, word in (
        (silent, "not known"),
        (broken, "does not serve"),
        (other, "no hook"),
    ):
        _, report = await external(server)
        assert not report.in_force
        assert word in report.problems[0].message
        assert server.closed
    _, report = await external(Server(), "down")
    assert "cannot be reached" in report.problems[0].message
    unknown = Server()
    unknown.known = {"name": "p"}
    _, report = await external(unknown)
    assert report.in_force


@pytest.mark.parametrize(("kind", "word"), [("external", "MCP client"), ("isolated_venv", "made")])
async def test_kinds_that_are_not_available_say_so(kind: str, word: str) -> None:
    clock = ManualClock()
    pipeline = Pipeline(clock, Ids(clock))
    report = await pipeline.load_configs([PluginConfig(name="p", kind=kind, hooks=[HOOK])])
    assert word in report.problems[0].message
    assert "caged" in report.problems[0].fix
