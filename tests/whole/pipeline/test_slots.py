"""The twelve slots as policies see them in a running daemon, filled by the daemon itself.

One run of an agent, made once, passes every hook around tools, prompts, agents and models. Two
spies stand on all of them: one holds every capability, one none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.conversation import begin, read_resource, say_to
from whole.harness.daemon import Daemon
from whole.harness.model import ModelServer, call, say
from whole.harness.policies import (
    CAPABILITIES,
    FIRED,
    POST,
    PRE,
    SLOTS,
    PolicySite,
    changes,
    gives,
    spy,
)
from whole.harness.project import Project

MODELS = {
    "request": "RequestExtension",
    "agent": "AgentExtension",
    "http": "HttpExtension",
    "security": "SecurityExtension",
    "delegation": "DelegationExtension",
    "mcp": "MCPExtension",
    "completion": "CompletionExtension",
    "provenance": "ProvenanceExtension",
    "llm": "LLMExtension",
    "framework": "FrameworkExtension",
    "meta": "MetaExtension",
}


@dataclass(frozen=True, slots=True)
class Passed:
    """What both spies wrote down about one run of an agent."""

    session: str
    seeing: list[dict[str, Any]]
    blind: list[dict[str, Any]]

    def pair(self, hook: str, number: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the views of both spies in one call of a hook."""
        found = [
            [one["extensions"] for one in rows if one["hook"] == hook]
            for rows in (self.seeing, self.blind)
        ]
        return found[0][number], found[1][number]


@pytest.fixture(scope="module")
def passed(daemon: Daemon, site: PolicySite, shared: Project, model: ModelServer) -> Passed:
    """Let an agent read a file, a subagent too, and an MCP client a resource."""
    site.put(spy("seeing", *CAPABILITIES, hooks=[*FIRED]), spy("blind", hooks=[*FIRED]))
    model.play("quokka-reads", call("file.read", path="a.txt"), say("Read."))
    session = begin(shared)
    say_to(shared, session, "quokka-reads")
    shared.call("file.read", "primary.subagents.reader", path="a.txt")
    assert "quokka-reads" in read_resource(daemon, shared, f"kaged://sessions/{session}")
    return Passed(session, site.seen("seeing"), site.seen("blind"))


def test_the_run_passed_every_hook(passed: Passed) -> None:
    assert {one["hook"] for one in passed.seeing} == set(FIRED)
    assert [one["hook"] for one in passed.blind] == [one["hook"] for one in passed.seeing]


@whole("EX-SLOT-04", "EX-SLOT-11", "EX-SLOT-13", "EX-SLOT-14")
@pytest.mark.parametrize("hook", FIRED)
def test_request_provenance_framework_and_meta_are_open_to_everybody(
    passed: Passed, shared: Project, hook: str
) -> None:
    seeing, blind = passed.pair(hook)
    (row,) = [one for one in passed.blind if one["hook"] == hook][:1]
    for slot in ("request", "provenance", "framework", "meta"):
        assert blind[slot] == seeing[slot]
    assert blind["request"]["request_id"] == row["request_id"]
    assert blind["request"]["timestamp"].endswith("Z")
    assert set(blind["request"]) == {
        "environment",
        "request_id",
        "timestamp",
        "trace_id",
        "span_id",
    }
    assert blind["provenance"]["source"]
    assert blind["framework"]["framework"] == "kaged"
    assert blind["meta"]["properties"]["project_id"] == shared.get("")["id"]
    if not hook.startswith("resource"):
        runs = shared.get(f"/sessions/{passed.session}/runs")["items"]
        assert [one["id"] for one in runs] == [blind["meta"]["properties"]["run_id"]]
    if hook.startswith("tool"):
        (made,) = shared.get(f"/sessions/{passed.session}/tool-calls")["items"]
        assert made["request_id"] == blind["request"]["request_id"]


@whole("EX-SLOT-05", "EX-CAP-07", "EX-FILT-02")
def test_the_agent_and_its_lineage_are_seen_with_read_agent_only(
    passed: Passed, shared: Project
) -> None:
    seeing, blind = passed.pair(PRE)
    session = shared.get("/sessions/current")["id"]
    assert (seeing["agent"]["session_id"], seeing["agent"]["agent_id"]) == (session, "primary")
    assert seeing["agent"]["parent_agent_id"] is None
    below, hidden = passed.pair(PRE, 1)
    assert (below["agent"]["agent_id"], below["agent"]["parent_agent_id"]) == (
        "primary/reader",
        "primary",
    )
    assert below["agent"]["session_id"] != passed.session
    assert blind["agent"] is hidden["agent"] is None


def test_turn_and_input_are_told_with_calls_of_models_and_of_their_tools(
    passed: Passed,
) -> None:
    turns: dict[str, list[int | None]] = {}
    asked: dict[str, list[str | None]] = {}
    for one in passed.seeing:
        if (agent := one["extensions"]["agent"]) is not None:
            turns.setdefault(one["hook"], []).append(agent["turn"])
            asked.setdefault(one["hook"], []).append(agent["input"])
    assert turns["cmf.llm_output"] == [1, 2]
    assert sorted({one for one in turns["cmf.llm_input"] if one}) == [1, 2]
    assert turns[PRE] == turns[POST] == [1, None]  # the second was no model's
    assert turns["agent_pre_invoke"] == [None]
    assert asked["agent_pre_invoke"] == asked["agent_post_invoke"] == ["quokka-reads"]
    assert asked["cmf.llm_output"] == ["quokka-reads", "quokka-reads"]
    assert asked[PRE] == ["quokka-reads", None]


@whole("EX-SLOT-05", "EX-CAP-07")
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_no_other_capability_shows_the_agent(
    site: PolicySite, shared: Project, capability: str
) -> None:
    site.put(spy("spy", capability))
    shared.call("file.read", path="a.txt")
    assert (site.view()["agent"] is not None) is (capability == "read_agent")


@whole("EX-SLOT-09")
def test_the_tool_the_prompt_and_the_resource_are_described_to_everybody(
    passed: Passed, shared: Project
) -> None:
    for hook, part, name in (
        ("tool_pre_invoke", "tool", "file.read"),
        ("tool_post_invoke", "tool", "file.read"),
        ("prompt_pre_fetch", "prompt", "primary"),
        ("prompt_post_fetch", "prompt", "primary"),
    ):
        seeing, blind = passed.pair(hook)
        assert blind["mcp"] == seeing["mcp"]
        assert blind["mcp"][part]["name"] == name
        others = {"tool", "prompt", "resource"} - {part}
        assert [blind["mcp"][one] for one in others] == [None, None]
    tool = passed.pair(PRE)[1]["mcp"]["tool"]
    assert tool["annotations"] == {"net": False, "changes": False}
    (listed,) = [one for one in shared.get("/tools")["tools"] if one["name"] == "file.read"]
    assert tool["description"] == listed["description"]
    for hook in ("resource_pre_fetch", "resource_post_fetch"):
        seeing, blind = passed.pair(hook)
        assert blind["mcp"] == seeing["mcp"]
        uris = [one["payload"]["uri"] for one in passed.blind if one["hook"] == hook]
        assert blind["mcp"]["resource"]["uri"] == uris[0]


@whole("EX-SLOT-10", "EX-SLOT-12")
def test_the_models_answer_is_described_to_everybody(passed: Passed, shared: Project) -> None:
    stops: list[str] = []
    tokens = 0
    for number in range(2):
        seeing, blind = passed.pair("cmf.llm_output", number)
        assert blind["completion"] == seeing["completion"]
        assert blind["llm"] == seeing["llm"]
        assert (blind["llm"]["model_id"], blind["llm"]["provider"]) == ("gpt-4o", "openai")
        assert blind["meta"]["properties"]["model_alias"] == "default"
        assert blind["completion"]["model"] == "openai:gpt-4o"
        assert blind["completion"]["latency_ms"] >= 0
        stops.append(blind["completion"]["stop_reason"])
        tokens += blind["completion"]["tokens"]["total_tokens"]
    assert stops == ["call", "end"]
    (run,) = shared.get(f"/sessions/{passed.session}/runs")["items"]
    usage = run["usage"]
    assert tokens == usage["input_tokens"] + usage["output_tokens"]
    assert passed.pair("cmf.llm_input")[1]["completion"] is None
    assert passed.pair("cmf.llm_input")[1]["llm"]["model_id"] == "gpt-4o"


@whole("EX-SLOT-08", "EX-CAP-12")
def test_who_set_whom_to_work_is_seen_with_a_delegation_capability(
    site: PolicySite, shared: Project, passed: Passed
) -> None:
    below, hidden = passed.pair(PRE, 1)
    assert [one["subject_id"] for one in below["delegation"]["chain"]] == ["operator", "primary"]
    assert [one["audience"] for one in below["delegation"]["chain"]] == [
        "primary",
        "primary/reader",
    ]
    assert below["delegation"]["depth"] == 2
    assert hidden["delegation"] is None
    hop = "DelegationHop(subject_id='next', subject_type='agent')"
    grow = f"delegation=(ext.delegation or DelegationExtension()).with_new_hop({hop})"
    for capabilities, kept in (([], 1), (["read_delegation"], 1), (["append_delegation"], 2)):
        site.put(
            spy("own", *capabilities),
            changes(grow, *capabilities),
            spy("after", "read_delegation"),
        )
        shared.call("file.read", path="a.txt")
        assert (site.view("own")["delegation"] is not None) is bool(capabilities)
        assert len(site.view("after")["delegation"]["chain"]) == kept, capabilities


@whole("EX-SLOT-06")
@pytest.mark.parametrize("capability", [None, *CAPABILITIES])
def test_headers_are_seen_with_either_header_capability_and_changed_with_one(
    site: PolicySite, shared: Project, capability: str | None
) -> None:
    own = [] if capability is None else [capability]
    site.put(
        changes("http=HttpExtension(headers={'a': '1'})", "write_headers", name="fills"),
        spy("own", *own),
        changes("http=HttpExtension(headers={'b': '2'})", *own),
        spy("after", "read_headers"),
    )
    shared.call("file.read", path="a.txt")
    sees = capability in {"read_headers", "write_headers"}
    assert site.view("own")["http"] == ({"headers": {"a": "1"}} if sees else None)
    kept = {"b": "2"} if capability == "write_headers" else {"a": "1"}
    assert site.view("after")["http"] == {"headers": kept}


@whole("EX-SLOT-15", "EX-MERGE-06", "EX-TIER-04")
def test_custom_is_everybodys_to_read_replace_extend_and_empty(
    site: PolicySite, shared: Project
) -> None:
    steps = [
        ("{'a': [1]}", {"a": [1]}),
        ("{**ext.custom, 'b': 2}", {"a": [1], "b": 2}),
        ("{'c': 3}", {"c": 3}),
        ("{}", {}),
        ("None", None),
    ]
    entries: list[dict[str, Any]] = []
    for number, (value, _) in enumerate(steps):
        entries += [changes(f"custom={value}", name=f"g{number}"), spy(f"s{number}")]
    site.put(*entries)
    shared.call("file.read", path="a.txt")
    for number, (_, found) in enumerate(steps):
        assert site.view(f"s{number}")["custom"] == found, number


FIELDS = {
    "request": "environment request_id timestamp trace_id span_id",
    "agent": "input session_id conversation_id turn agent_id parent_agent_id conversation",
    "http": "headers",
    "security": "labels classification subject objects data",
    "subject": "id type roles permissions teams claims",
    "delegation": "chain depth origin_subject_id actor_subject_id delegated age_seconds",
    "mcp": "tool resource prompt",
    "completion": "stop_reason tokens model raw_format created_at latency_ms",
    "provenance": "source message_id parent_id",
    "llm": "model_id provider capabilities",
    "framework": "framework framework_version node_id graph_id metadata",
    "meta": "tags scope properties",
}
INTROSPECTS = f"""
import pydantic

SLOT_MODELS = {MODELS!r}
SLOT_MODELS = {{slot: globals()[name] for slot, name in SLOT_MODELS.items()}}


def refuses(action):
    try:
        action()
    except Exception as error:
        return type(error).__name__
    return None


class Looks(Plugin):
    async def tool_pre_invoke(self, payload, context, extensions):
        empty = Extensions()
        subject = SubjectExtension(id="i", type="user")
        models = {{**{{slot: one() for slot, one in SLOT_MODELS.items()}}, "subject": subject}}
        changed = empty.model_copy(update={{"custom": {{"trace_id": "abc-123"}}}})
        example = Extensions(
            request=RequestExtension(environment="production", request_id="req-001"),
            security=SecurityExtension(labels=frozenset({{"pii", "confidential"}})))
        note(self.name,
            pydantic=issubclass(Extensions, pydantic.BaseModel),
            slots={{name: getattr(empty, name) for name in Extensions.model_fields}},
            equal=[Extensions() == Extensions(), example == example.model_copy(),
                   example == empty, Extensions(custom={{}}) == Extensions(custom=None)],
            assigning={{name: refuses(lambda: setattr(one, list(type(one).model_fields)[0], None))
                       for name, one in {{**models, "extensions": empty,
                                          "given": extensions,
                                          "given.request": extensions.request}}.items()}},
            copied=[empty.custom, changed.custom, changed is empty],
            example=[example.request.environment, example.request.request_id,
                     sorted(example.security.labels), type(example.security.labels).__name__,
                     type(example.request).__name__, example.http],
            fields={{name: list(type(one).model_fields) for name, one in models.items()}},
            types={{name: type(getattr(extensions, name)).__name__
                   for name in Extensions.model_fields}},
            unknown=[refuses(lambda: one(no_such_field=1)) for one in SLOT_MODELS.values()]
                    + [refuses(lambda: Extensions(no_such_slot=1))],
            subject_needs=[refuses(lambda: SubjectExtension(id="i")),
                           refuses(lambda: SubjectExtension(type="user"))])
"""


def looked_at(site: PolicySite, shared: Project) -> dict[str, Any]:
    """Return what a policy found out about the models it works with in the daemon."""
    entry = {"name": "looks", "kind": "Looks", "hooks": [PRE], "capabilities": [*CAPABILITIES]}
    site.put(entry, source=INTROSPECTS)
    shared.call("file.read", path="a.txt")
    (found,) = site.seen("looks")
    return found


@whole("EX-SLOT-01", "EX-SLOT-02", "EX-SLOT-03")
def test_the_container_is_frozen_and_empty_until_somebody_fills_it(
    site: PolicySite, shared: Project
) -> None:
    looked = looked_at(site, shared)
    assert looked["pydantic"] is True
    assert looked["slots"] == dict.fromkeys(SLOTS)
    assert looked["equal"] == [True, True, False, False]
    assert set(looked["assigning"].values()) == {"ValidationError"}, looked["assigning"]
    assert set(looked["assigning"]) == {*MODELS, "subject", "extensions", "given", "given.request"}
    assert looked["copied"] == [None, {"trace_id": "abc-123"}, False]
    assert looked["example"] == [
        "production",
        "req-001",
        ["confidential", "pii"],
        "frozenset",
        "RequestExtension",
        None,
    ]


@whole("EX-AMB-14")
def test_every_slot_has_the_fields_that_are_written_down(site: PolicySite, shared: Project) -> None:
    looked = looked_at(site, shared)
    assert {name: set(found) for name, found in looked["fields"].items()} == {
        name: set(words.split()) for name, words in FIELDS.items()
    }
    for slot in ("request", "agent", "security", "delegation", "mcp", "provenance"):
        assert looked["types"][slot] == MODELS[slot]
    assert looked["unknown"] == [None] * (len(MODELS) + 1), "unknown keywords are ignored"
    assert looked["subject_needs"] == ["ValidationError"] * 2


ADDS_A_SLOT = """
class Wider(Extensions):
    secret: str | None = None


class Sees(Plugin):
    async def tool_pre_invoke(self, payload, context, extensions):
        note(self.name, fields=list(Extensions.model_fields),
             dumped=list(extensions.model_dump()), secret=getattr(extensions, "secret", "hidden"))
"""


@whole("EX-SLOT-16")
@pytest.mark.parametrize(
    "given",
    [
        "Wider(secret='marker', custom={'mine': 1})",
        "ext.model_copy(update={'secret': 'marker', 'custom': {'mine': 1}})",
    ],
)
def test_there_are_twelve_slots_and_nobody_adds_one(
    site: PolicySite, shared: Project, given: str
) -> None:
    result = f"PluginResult(modified_extensions={given})"
    sees = {"name": "sees", "kind": "Sees", "hooks": [PRE], "capabilities": [*CAPABILITIES]}
    site.put(gives(result, *CAPABILITIES), sees, spy("after"), source=ADDS_A_SLOT)
    shared.call("file.read", path="a.txt")
    (found,) = site.seen("sees")
    assert found["fields"] == found["dumped"] == [*SLOTS]
    assert found["secret"] == "hidden"
    assert site.view("after")["custom"] == {"mine": 1}, "the rest of what it gave back counts"
