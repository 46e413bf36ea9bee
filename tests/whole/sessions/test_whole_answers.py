"""What counts as a model's answer, what goes back to it, and what is counted, by `kaged run`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon
from whole.harness.model import PROTOCOLS, VENDORS, ModelServer, call, refuse, say
from whole.harness.model_relay import ModelRelay
from whole.harness.project import Project
from whole.harness.talk import Talk, fresh, listening

SIGNATURE = "c2lnbmF0dXJlLW9mLXRoZS10aG91Z2h0"


@pytest.fixture(scope="module")
def relay(model: ModelServer) -> Iterator[ModelRelay]:
    """Yield what stands before the model server and sees every request as it is."""
    with ModelRelay(model.url) as made:
        yield made


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer, relay: ModelRelay) -> Iterator[Daemon]:
    """Yield a daemon with a model of each vendor, named after it.

    Those of `direct-…` stand with the server itself, which sends pieces as they come.
    """
    sections = [model.local_toml(one, one, retries=0) for one in VENDORS]
    # The server does not know the marks of Bedrock, so that these are switched off.
    sections.append("[models.bedrock.settings]\ncache = false\n")
    sections.append(model.local_toml("other", "anthropic", name="claude-opus-4-1"))
    # Without a key, credentials of the machine are taken, as people have them for AWS.
    local = "".join(sections).replace(model.url, relay.url)
    bedrock = local.index("[models.bedrock]")
    local = local[:bedrock] + local[bedrock:].replace('api_key = "sk-test"\n', "", 1)
    local += "".join(model.local_toml(f"direct-{one}", one) for one in PROTOCOLS)
    local += "[models.direct-anthropic.usd_per_million]\ninput = 1000\noutput = 1000\n"
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    made = Daemon(module_path / "h", local=local + model.local_toml(), env=keys)
    made.start()
    yield made
    made.close()


@pytest.fixture
def talk(project: Project, model: ModelServer) -> Talk:
    """Return a session in a project of the test's own."""
    return Talk(project, model)


@pytest.mark.parametrize("vendor", [one for one in VENDORS if one != "bedrock"])
def test_each_vendor_answers_and_calls_tools_from_the_normal_installation(
    talk: Talk, relay: ModelRelay, vendor: str
) -> None:
    talk.project.write("a.txt", "alpha-content\n")
    run = talk.hear(call("file.read", path="a.txt"), say("It says alpha."), model=vendor)
    assert (run["status"], run["steps"]) == ("completed", 2), (run["error"], relay.seen[-1][0])
    [made] = talk.calls()
    assert "alpha-content" in json.dumps(made["result"])
    said = talk.entries()[-1]["content"]["content"]
    assert [one["text"] for one in said if one["type"] == "text"] == ["It says alpha."]


def test_bedrock_answers_and_calls_tools_from_the_normal_installation(
    talk: Talk, relay: ModelRelay
) -> None:
    word = fresh()
    talk.project.write("a.txt", "bedrock-content\n")
    talk.model.play(word, call("file.read", path="a.txt"))
    # The server writes the beginning of a text as the library of AWS does not take it. The word is
    # first in what the tool answers.
    relay.stream_as_aws(
        "bedrock-content",
        ("messageStart", {"role": "assistant"}),
        ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "It says alpha."}}),
        ("contentBlockStop", {"contentBlockIndex": 0}),
        ("messageStop", {"stopReason": "end_turn"}),
        ("metadata", {"usage": {"inputTokens": 9, "outputTokens": 3, "totalTokens": 12}}),
    )
    run = talk.end(talk.tell(f"{word} please", model="bedrock"))
    assert (run["status"], run["steps"]) == ("completed", 2), run["error"]
    said = talk.entries()[-1]["content"]["content"]
    assert [one["text"] for one in said if one["type"] == "text"] == ["It says alpha."]


CUT = {**say("Half of an ans"), "finishReason": "length"}
FILTERED = {**say("I would say that"), "finishReason": "content_filter"}
REFUSED = {**say("I would say that"), "finishReason": "refusal"}


@pytest.mark.parametrize(
    ("vendor", "turn", "code"),
    [
        ("openai", CUT, "model_answer_cut"),
        ("openai-responses", CUT, "model_answer_cut"),
        ("anthropic", CUT, "model_answer_cut"),
        ("google", CUT, "model_answer_cut"),
        ("openai", FILTERED, "model_answer_filtered"),
        ("anthropic", REFUSED, "model_answer_filtered"),
    ],
)
def test_what_is_no_whole_answer_is_not_completed(
    talk: Talk, vendor: str, turn: dict[str, Any], code: str
) -> None:
    word = fresh()
    talk.model.play(word, turn)
    done = talk.project.daemon.cli(
        "run", f"{word} please", "--model", vendor, cwd=talk.project.root, code=1
    )
    assert code in done.err
    assert turn["content"] == done.out.strip(), "what there is of it is shown"
    # The record says the same, and the next run of the session is none the worse for it.
    again = talk.hear(turn, model=vendor)
    assert (again["status"], again["error"]["code"]) == ("failed", code)
    assert talk.hear(say("Fine."), model=vendor)["status"] == "completed"


def _nothing_of_openai() -> list[dict[str, Any]]:
    about = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}
    choice = {"index": 0, "delta": {"role": "assistant", "content": ""}}
    end = {"index": 0, "delta": {}, "finish_reason": "stop"}
    return [{**about, "choices": [choice]}, {**about, "choices": [end]}]


def _nothing_of_anthropic() -> list[dict[str, Any]]:
    usage = {"input_tokens": 9, "output_tokens": 1}
    message = {
        "id": "m1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
        "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    return [
        {"type": "message_start", "message": message},
        {"type": "message_delta", "delta": end, "usage": usage},
        {"type": "message_stop"},
    ]


@pytest.mark.parametrize("vendor", PROTOCOLS)
def test_an_answer_of_nothing_is_not_completed(talk: Talk, relay: ModelRelay, vendor: str) -> None:
    word = fresh()
    nothing = _nothing_of_openai() if vendor == "openai" else _nothing_of_anthropic()
    relay.stream(word, *nothing, named=vendor == "anthropic")
    run = talk.end(talk.tell(f"{word} please", model=vendor))
    assert (run["status"], run["error"]["code"]) == ("failed", "model_answer_empty"), run["error"]
    assert talk.hear(say("Here it is."), model=vendor)["status"] == "completed"


def test_a_subagent_whose_answer_is_cut_off_tells_its_caller_so_with_what_there_is(
    project: Project, model: ModelServer
) -> None:
    word = fresh()
    project.write(
        ".kaged/project.yaml",
        "version: 1\nprimary:\n  system_prompt: You lead.\n  model: default\n  subagents:\n"
        "    helper:\n      description: Helps.\n      system_prompt: You help.\n"
        "      model: anthropic\n",
    )
    project.reload()
    talk = Talk(project, model)
    inner = fresh("inner")
    model.play(inner, {**say("The first half"), "finishReason": "length"})
    talk.hear(call("agent-helper", message=f"{inner} now"), say("I see."), word=word)
    [asked] = [one for one in talk.calls() if one["tool_name"] == "agent-helper"]
    assert asked["error"]["code"] == "model_answer_cut"
    assert "The first half" in json.dumps(asked["error"])


@pytest.mark.parametrize("vendor", PROTOCOLS)
def test_what_the_vendor_says_is_shown_and_kept_without_the_key(talk: Talk, vendor: str) -> None:
    word = fresh()
    told = "your plan has no access to this model, see sk-test in the console"
    talk.model.play(word, refuse(403, told, type="permission_error"))
    done = talk.project.daemon.cli(
        "run", f"{word} please", "--model", vendor, cwd=talk.project.root, code=1
    )
    assert "your plan has no access" in done.err
    assert "sk-test" not in done.err
    run = talk.hear(refuse(403, told, type="permission_error"), model=vendor)
    assert "your plan has no access" in run["error"]["vendor_says"]


BROKEN = '{"path": "a.txt", oops'


def _broken_call_of_openai() -> list[dict[str, Any]]:
    about = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}
    function = {"name": "file_read", "arguments": BROKEN}
    made = {"index": 0, "id": "call_1", "type": "function", "function": function}
    choice = {"index": 0, "delta": {"role": "assistant", "tool_calls": [made]}}
    end = {"index": 0, "delta": {}, "finish_reason": "tool_calls"}
    return [{**about, "choices": [choice]}, {**about, "choices": [end]}]


def _broken_call_of_anthropic() -> list[dict[str, Any]]:
    start, _, stop = _nothing_of_anthropic()
    block = {"type": "tool_use", "id": "toolu_1", "name": "file_read", "input": {}}
    delta = {"type": "input_json_delta", "partial_json": BROKEN}
    end = {"stop_reason": "tool_use", "stop_sequence": None}
    return [
        start,
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": 9}},
        stop,
    ]


@pytest.mark.parametrize("vendor", PROTOCOLS)
def test_arguments_that_are_no_json_go_back_as_they_were(
    talk: Talk, relay: ModelRelay, vendor: str
) -> None:
    word = fresh()
    events = _broken_call_of_openai() if vendor == "openai" else _broken_call_of_anthropic()
    relay.stream(word, *events, named=vendor == "anthropic")
    # Only what the relay leaves to the server counts there.
    talk.model.play(word, say("I wrote that badly."))
    run = talk.end(talk.tell(f"{word} please", model=vendor))
    assert (run["status"], run["steps"]) == ("completed", 2), (run["error"], relay.seen[-1][0])
    second = relay.bodies(word)[-1]["messages"]
    [answer] = [one for one in second if one["role"] == "assistant"]
    if vendor == "openai":
        written = json.loads(answer["tool_calls"][0]["function"]["arguments"])
    else:
        written = answer["content"][0]["input"]
    assert written == {"not_json": BROKEN}


def test_what_a_model_of_anthropic_thinks_goes_back_with_its_signature(
    talk: Talk, relay: ModelRelay
) -> None:
    talk.project.write("a.txt", "alpha\n")
    thinks = {**call("file.read", path="a.txt"), "reasoning": "I look into the file."}
    signed = {**thinks, "reasoningSignature": SIGNATURE}
    run = talk.hear(signed, say("Alpha."), model="anthropic")
    first, second = (one["messages"] for one in relay.bodies(run["word"]))
    assert SIGNATURE not in json.dumps(first)
    [answer] = [one for one in second if one["role"] == "assistant"]
    assert [one["type"] for one in answer["content"]] == ["thinking", "tool_use"]
    assert answer["content"][0]["signature"] == SIGNATURE
    assert answer["content"][0]["thinking"] == "I look into the file."
    # In the next run it is still there, for the model that thought it and for no other.
    again = talk.hear(say("Yes."), model="anthropic")
    assert SIGNATURE in json.dumps(relay.bodies(again["word"])[-1])
    for other in ("other", "openai"):
        elsewhere = talk.hear(say("Yes."), model=other)
        assert SIGNATURE not in json.dumps(relay.bodies(elsewhere["word"])[-1])


def test_reasoning_of_openai_goes_back_as_the_item_it_was(talk: Talk, relay: ModelRelay) -> None:
    talk.project.write("a.txt", "alpha\n")
    thinks = {**call("file.read", path="a.txt"), "reasoning": "I look into the file."}
    run = talk.hear(thinks, say("Alpha."), model="openai-responses")
    assert run["status"] == "completed", run["error"]
    first, second = relay.bodies(run["word"])
    assert "reasoning.encrypted_content" in first["include"]
    kinds = [one.get("type") for one in second["input"]]
    at = kinds.index("reasoning")
    assert kinds[at : at + 3] == ["reasoning", "function_call", "function_call_output"]
    assert second["input"][at]["encrypted_content"]
    assert second["input"][at]["id"].startswith("rs")


def test_google_gets_its_signature_of_a_call_back(talk: Talk, relay: ModelRelay) -> None:
    talk.project.write("a.txt", "alpha\n")
    run = talk.hear(call("file.read", path="a.txt"), say("Alpha."), model="google")
    assert run["status"] == "completed", run["error"]
    [answer] = [one for one in relay.bodies(run["word"])[-1]["contents"] if one["role"] == "model"]
    [made] = answer["parts"]
    assert made["functionCall"]["name"] == "file_read"


def test_a_vendor_that_keeps_prompts_when_asked_is_asked(talk: Talk, relay: ModelRelay) -> None:
    run = talk.hear(say("Yes."), model="anthropic")
    assert "cache_control" in json.dumps(relay.bodies(run["word"])[-1])
    plain = talk.hear(say("Yes."), model="openai")
    assert "cache_control" not in json.dumps(relay.bodies(plain["word"])[-1])


@pytest.mark.parametrize("vendor", PROTOCOLS)
def test_a_canceled_answer_counts_what_it_took(talk: Talk, vendor: str) -> None:
    word = fresh()
    slow = {**say("A long story that goes on. " * 50), "chunkSize": 8, "latency": 200}
    talk.model.play(word, slow)
    with listening(talk.project.daemon, f"session:{talk.id}") as listener:
        run_id = talk.tell(f"{word} please", model=f"direct-{vendor}")
        listener.until(lambda one: one["name"] == "text.delta")
        talk.post("/cancel")
    run = talk.end(run_id)
    assert run["status"] == "cancelled"
    assert run["usage"]["input_tokens"] > 0
    assert run["usage"]["output_tokens"] > 0
    if vendor == "anthropic":
        assert run["usage"]["cost_usd"] > 0
    whole = talk.hear(say("Short."), model=f"direct-{vendor}")
    assert whole["usage"]["output_tokens"] < 100


def test_the_tokens_of_an_attempt_that_broke_off_count_beside_those_of_the_next(
    project: Project, model: ModelServer
) -> None:
    text = say("words and words and words")
    broken = {**text, "truncateAfterChunks": 8, "chunkSize": 2, "latency": 20}
    # Each in a session of its own, so that both windows are the same.
    once = Talk(project, model).hear(text, model="direct-anthropic")
    twice = Talk(project, model).hear(broken, text, model="direct-anthropic")
    assert twice["steps"] == once["steps"] == 1
    for name in ("input_tokens", "output_tokens", "cost_usd"):
        assert twice["usage"][name] > once["usage"][name], name
