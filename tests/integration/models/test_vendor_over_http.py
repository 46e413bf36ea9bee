"""A vendor's model over real HTTP: streams, tool calls, and everything that goes wrong there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from fakes.openai_server import (
    Answers,
    Flood,
    OpenAIServer,
    Raw,
    Reply,
    Says,
    Silence,
    Status,
    in_turn,
)
from kaged.base import Ids, SystemClock
from kaged.config.localconfig import ModelEntry
from kaged.config.secret import Secret
from kaged.config.sections import Sections
from kaged.models import answer as answers
from kaged.models import wire
from kaged.models.catalogue import ModelCatalogue
from kaged.models.errors import (
    ModelBadAnswer,
    ModelContextExceeded,
    ModelError,
    ModelRateLimited,
    ModelRefused,
    ModelUnavailable,
)
from kaged.models.turn import (
    AssistantMessage,
    ModelEvent,
    ModelMessage,
    ModelRequest,
    ModelToolCall,
    ModelTurn,
    SystemMessage,
    TextDelta,
    ThinkingDelta,
    ToolResultMessage,
    ToolSpec,
    TurnFinished,
    TurnRetried,
    UserMessage,
)
from kaged.models.vendor_layer import open_model

KEY = "sk-very-secret-key-of-the-operator"
HELLO = (UserMessage("hello"),)
READ = ToolSpec(
    "file_read",
    "Reads a file.",
    {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)


class Lab:
    """A server, a catalogue that knows it as `m`, and a sleep that takes no time."""

    def __init__(self, catalogue: ModelCatalogue, server: OpenAIServer) -> None:
        self.catalogue = catalogue
        self.server = server
        self.slept: list[float] = []

    async def ask(
        self, messages: tuple[ModelMessage, ...] = HELLO, **more: Any
    ) -> tuple[list[ModelEvent], ModelTurn]:
        request = ModelRequest(messages, **more)
        events = [event async for event in self.catalogue.get("m").stream(request)]
        last = events[-1]
        assert isinstance(last, TurnFinished)
        return events, last.turn


Make = Callable[..., Lab]


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncGenerator[Make]:
    made: list[tuple[ModelCatalogue, OpenAIServer]] = []

    def make(answer: Answers | Reply, **entry: Any) -> Lab:
        replies = in_turn(answer) if isinstance(answer, Reply) else answer
        server = OpenAIServer(replies).__enter__()
        given: dict[str, Any] = {
            "model": "acme:tiny",
            "base_url": server.url,
            "api_key": Secret(KEY),
            **entry,
        }
        sections = Sections(MappingProxyType({"m": ModelEntry(**given)}))
        clock = SystemClock()
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            await asyncio.sleep(0)

        catalogue = ModelCatalogue(
            lambda: sections, folder=tmp_path, clock=clock, ids=Ids(clock), sleep=sleep
        )
        found = Lab(catalogue, server)
        found.slept = slept
        made.append((catalogue, server))
        return found

    yield make
    for catalogue, server in made:
        await catalogue.close()
        server.__exit__(None, None, None)


async def test_a_whole_conversation_goes_over_the_wire_as_it_is_meant(lab: Make) -> None:
    found = lab(Says("All calm.", think="Let me see."))
    window = (
        SystemMessage("You fold."),
        UserMessage("read it"),
        AssistantMessage("I read.", (ModelToolCall("c1", "file_read", {"path": "a"}),), "hm"),
        ToolResultMessage("c1", "file_read", "rocks"),
        AssistantMessage("", (ModelToolCall("c2", "file_read", None, "{oops"),)),
        ToolResultMessage("c2", "file_read", "no JSON", is_error=True),
        UserMessage("and?"),
    )
    events, turn = await found.ask(window, tools=[READ], settings={"temperature": 0.5})
    assert replace(turn.message, parts=None) == AssistantMessage("All calm.", (), "Let me see.")
    assert turn.message.parts is not None
    assert [one.kind for one in turn.message.parts.parts][-1] == "text"
    assert [e.text for e in events if isinstance(e, TextDelta)] == ["All ", "calm."]
    assert "".join(e.text for e in events if isinstance(e, ThinkingDelta)) == "Let me see."
    assert (turn.usage.input_tokens, turn.usage.output_tokens) == (11, 7)
    assert (turn.model, turn.finish_reason) == ("acme:tiny", "stop")
    (asked,) = found.server.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.headers["accept-encoding"] == "identity"
    assert asked.body["temperature"] == 0.5
    assert asked.body["stream"] is True
    assert asked.tools == ["file_read"]
    assert asked.body["tools"][0]["function"]["parameters"]["required"] == ["path"]
    roles = [one["role"] for one in asked.messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool", "user"]
    function = asked.messages[2]["tool_calls"][0]["function"]
    assert json.loads(function["arguments"]) == {"path": "a"}
    assert asked.messages[3]["tool_call_id"] == "c1"
    assert json.loads(asked.messages[4]["tool_calls"][0]["function"]["arguments"])
    assert "hm" not in json.dumps(asked.body)  # thinking stays here


async def test_parallel_tool_calls_come_out_whole(lab: Make) -> None:
    calls = [
        ("c1", "file_read", '{"path": "a/b/c.txt"}'),
        ("c2", "file_read", "this is no JSON"),
        ("c2", "no_such_tool", ""),
    ]
    _, turn = await lab(Says("Reading.", calls=calls)).ask(tools=[READ])
    one, two, three = turn.message.tool_calls
    assert (one.id, one.name, one.arguments) == ("c1", "file_read", {"path": "a/b/c.txt"})
    assert (two.arguments, two.raw) == (None, "this is no JSON")
    assert (three.name, three.arguments) == ("no_such_tool", {})
    assert len({one.id, two.id, three.id}) == 3
    assert turn.finish_reason == "tool_calls"


async def test_stop_beside_tool_calls_counts_as_tool_calls(lab: Make) -> None:
    reply = Says(calls=[("c1", "file_read", "{}")], finish="stop")
    _, turn = await lab(reply).ask()
    assert turn.finish_reason == "tool_calls"


async def test_a_rate_limit_is_waited_out_as_the_vendor_wants(lab: Make) -> None:
    found = lab(in_turn(Status(429, headers={"retry-after": "7"}), Status(503), Says("Hi.")))
    events, turn = await found.ask()
    assert turn.message.text == "Hi."
    retried = [event for event in events if isinstance(event, TurnRetried)]
    assert [one.reason.split(":")[0] for one in retried] == [
        "model_rate_limited",
        "model_unavailable",
    ]
    assert found.slept[0] >= 7
    assert len(found.server.asked) == 3


@pytest.mark.parametrize("cut", [0, 1, 3])
async def test_a_stream_that_is_cut_is_made_anew(lab: Make, cut: int) -> None:
    found = lab(in_turn(Says("One two three four.", cut=cut), Says("Whole.")))
    events, turn = await found.ask()
    assert turn.message.text == "Whole."
    assert sum(isinstance(event, TurnRetried) for event in events) == 1


async def test_an_answer_that_just_stops_counts_as_cut(lab: Make) -> None:
    chunk = json.dumps(
        {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m",
         "choices": [{"index": 0, "delta": {"content": "Half a sen"}, "finish_reason": None}]}
    )  # fmt: skip
    half = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {chunk}\n\n".encode()
    found = lab(Raw(half), retries=1)
    with pytest.raises(ModelUnavailable, match="cut off"):
        await found.ask()
    assert len(found.server.asked) == 2


GARBAGE = [
    b"not http at all\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 13\r\n\r\n<html></html>",
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {nonsense\n\n",
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: [1,2]\n\n",
    b'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {"choices": 7}\n\n',
    b'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {"choices": [{}]}\n\n',
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: [DONE]\n\n",
    b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n\x1f\x8b",
    b"",
]


@pytest.mark.parametrize("data", GARBAGE)
async def test_garbage_is_an_error_of_the_model_and_nothing_else(lab: Make, data: bytes) -> None:
    with pytest.raises((ModelBadAnswer, ModelUnavailable)) as caught:
        await lab(Raw(data), retries=0).ask()
    assert caught.value.retryable
    assert KEY not in repr(caught.value.data)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (Status(401, {"error": {"message": f"bad key {KEY}"}}), ModelRefused),
        (Status(402), ModelRefused),
        (Status(403), ModelRefused),
        (Status(404), ModelRefused),
        (Status(400), ModelRefused),
        (Status(302, headers={"location": "http://127.0.0.1:1/"}), ModelRefused),
        (Status(400, {"error": {"code": "context_length_exceeded", "message": "too long"}}),
         ModelContextExceeded),
        (Status(500, "<html>oops</html>"), ModelUnavailable),
        (Status(529), ModelUnavailable),
        (Status(429, headers={"retry-after": "86400"}), ModelRateLimited),
    ],
)  # fmt: skip
async def test_statuses_become_errors_with_codes(
    lab: Make, reply: Status, expected: type[ModelError]
) -> None:
    found = lab(reply, retries=0)
    with pytest.raises(expected) as caught:
        await found.ask()
    assert type(caught.value) is expected
    assert KEY not in str(caught.value) + repr(caught.value.data)
    assert caught.value.__cause__ is None  # nothing that a traceback could show the key with
    assert len(found.server.asked) == 1  # a redirect is not followed either


async def test_an_error_within_the_stream_is_tried_again(lab: Make) -> None:
    error = json.dumps({"error": {"message": "overloaded", "type": "server_error", "code": None}})
    broken = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {error}\n\n"
    _, turn = await lab(in_turn(Raw(broken.encode()), Says("Hi."))).ask()
    assert turn.message.text == "Hi."


async def test_a_silent_server_is_given_up_on(lab: Make) -> None:
    with pytest.raises(ModelUnavailable, match="too long"):
        await lab(Silence(), retries=0, idle_timeout_s=0.2).ask()


async def test_a_dripping_answer_is_given_up_on_as_a_whole(lab: Make) -> None:
    """Each piece comes soon enough; the answer as a whole never ends."""
    found = lab(Says("word " * 10_000, pace_s=0.05), retries=0, timeout_s=1.0)
    with pytest.raises(ModelUnavailable, match="too long"):
        await found.ask()


async def test_no_server_at_all_is_unavailable(lab: Make) -> None:
    with pytest.raises(ModelUnavailable, match="connection failed"):
        await lab(Silence(), retries=0, base_url="http://127.0.0.1:9/v1").ask()


async def test_an_endless_line_is_cut_at_the_limit(
    lab: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MAX_ANSWER_BYTES", 1_000_000)
    found = lab(Flood(b"x" * 65_536, 64), retries=0)
    with pytest.raises(ModelBadAnswer, match="bytes"):
        await found.ask()


async def test_an_endless_answer_is_cut_at_the_limit(
    lab: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "MAX_TEXT_CHARS", 100)
    with pytest.raises(ModelBadAnswer, match="100 characters"):
        await lab(Says("word " * 100), retries=0).ask()


async def test_leaving_a_stream_closes_the_connection(lab: Make) -> None:
    found = lab(Says("word " * 10_000, pace_s=0.01))
    stream = found.catalogue.get("m").stream(ModelRequest(HELLO))
    assert isinstance(stream, AsyncGenerator)
    assert isinstance(await anext(stream), TextDelta)
    await stream.aclose()
    assert await asyncio.to_thread(found.server.idle.wait, 20)


async def test_agents_cannot_reach_headers_or_bodies(lab: Make) -> None:
    found = lab(Says("Hi."), settings={"temperature": 0.1})
    await found.ask(
        settings={"extra_headers": {"x": "y"}, "extra_body": {"a": 1}, "max_tokens": 5, "odd": 1}
    )
    (asked,) = found.server.asked
    assert "x" not in asked.headers
    assert "a" not in asked.body
    assert asked.body["temperature"] == 0.1
    assert 5 in {asked.body.get("max_tokens"), asked.body.get("max_completion_tokens")}


async def test_keys_of_the_environment_are_not_used(
    lab: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-somebody-else")
    found = lab(Says("Hi."), api_key=None)
    await found.ask()
    assert "sk-of-somebody-else" not in found.server.asked[0].headers.get("authorization", "")
    with pytest.raises(ModelRefused, match="api_key"):
        await lab(Says("Hi."), model="openai:gpt-5", base_url=None, api_key=None).ask()


async def test_the_environment_does_not_say_where_the_key_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/elsewhere")
    async with wire.vendor_client(1.0) as client:
        entry = ModelEntry(model="openai:gpt-5", api_key=Secret(KEY))
        assert open_model("m", entry, client).base_url == "https://api.openai.com/v1/"


async def test_a_vendor_without_its_library_says_what_to_install(lab: Make) -> None:
    with pytest.raises(ModelRefused) as caught:
        await lab(Says("Hi."), model="mistral:some-model").ask()
    assert "pydantic-ai-slim[mistral]" in str(caught.value.data["vendor_says"])


async def test_known_models_have_a_price_and_a_window(lab: Make) -> None:
    found = lab(Says("Hi.", usage=(1000, 100)), model="openai:gpt-5")
    _, turn = await found.ask()
    assert turn.usage.cost_usd == pytest.approx(0.00225)
    assert found.catalogue.get("m").context_tokens == 400_000
    _, turn = await lab(Says("Hi.")).ask()
    assert turn.usage.cost_usd is None


@pytest.mark.filterwarnings("ignore:Failed to extract usage")
async def test_nonsense_about_usage_counts_as_nothing(lab: Make) -> None:
    _, turn = await lab(Says("Hi.", usage=(-5, 10**15))).ask()
    assert (turn.usage.input_tokens, turn.usage.output_tokens) == (0, 0)


async def test_check_says_how_it_went(lab: Make) -> None:
    good = await lab(Says("ready")).catalogue.check("m")
    assert (good["ok"], good["says"]) == (True, "ready")
    bad = await lab(Status(401, {"error": {"message": f"no {KEY}"}})).catalogue.check("m")
    assert bad["ok"] is False
    assert isinstance(bad["error"], dict)
    assert bad["error"]["code"] == "model_refused"
    assert KEY not in json.dumps(bad)


async def test_twenty_sessions_at_once_share_one_alias(lab: Make) -> None:
    found = lab(Says("word " * 20), parallel=4)
    turns = await asyncio.gather(*(found.ask() for _ in range(20)))
    assert {turn.message.text for _, turn in turns} == {"word " * 20}
    assert len(found.server.asked) == 20
