"""What comes of the changes that policies give back: tiers, merging, and what is left out.

Spies before and behind a policy write down the whole view with every capability; the difference
is what was accepted. What was left out is in the audit trail, counted and without values.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.conversation import begin, say_to
from whole.harness.daemon import Daemon, exactly
from whole.harness.model import ModelServer, say
from whole.harness.plugin import PluginFolder
from whole.harness.policies import CAPABILITIES, PRE, PolicySite, changes, gives, spy
from whole.harness.project import Project

OUTPUT = "cmf.llm_output"
BOTH = [PRE, OUTPUT]
HOP = "DelegationHop(subject_id='next', subject_type='agent')"
FILLS = changes(
    "http=HttpExtension(headers={'a': '1', 'b': '2'}), security=grown(ext, 'pii', 'secret'),"
    " custom={'mine': 1}",
    "write_headers",
    "append_labels",
    name="fills",
    hooks=BOTH,
)
FORGED = {
    "request": "RequestExtension(environment='forged', request_id='forged')",
    "agent": "AgentExtension(agent_id='forged')",
    "provenance": "ProvenanceExtension(source='forged')",
    "completion": "CompletionExtension(model='forged')",
    "llm": "LLMExtension(model_id='forged')",
    "framework": "FrameworkExtension(framework='forged')",
    "mcp": "MCPExtension()",
    "meta": "MetaExtension(scope='forged')",
}
SECURITY = {
    "subject": "SubjectExtension(id='forged', type='user')",
    "classification": "'forged'",
    "objects": "{'forged': ObjectSecurityProfile()}",
    "data": "{'forged': DataPolicy()}",
}
WRITABLE = {
    "http": ("HttpExtension(headers={'new': '1'})", "write_headers"),
    "labels": ("", "append_labels"),
    "delegation": (
        f"(ext.delegation or DelegationExtension()).with_new_hop({HOP})",
        "append_delegation",
    ),
    "custom": ("{'other': 2}", None),
}
EVERYTHING = (
    ", ".join(f"{slot}={value}" for slot, value in FORGED.items())
    + f", http={WRITABLE['http'][0]}, delegation={WRITABLE['delegation'][0]}"
    + f", custom={WRITABLE['custom'][0]}"
    + ", security=SecurityExtension(labels=ext.security.labels | {'new'}, "
    + ", ".join(f"{part}={value}" for part, value in SECURITY.items())
    + ")"
)
_names = itertools.count(1)


def around(
    site: PolicySite, shared: Project, *entries: dict[str, Any], source: str = ""
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make a call with these policies between two spies; returns what the spies saw."""
    site.put(
        FILLS, spy("before", *CAPABILITIES), *entries, spy("after", *CAPABILITIES), source=source
    )
    shared.call("file.read", path="a.txt")
    return site.view("before"), site.view("after")


def discarded(daemon: Daemon, name: str) -> list[dict[str, Any]]:
    """Return the audit rows about what a policy tried without the right to."""
    rows = daemon.audit("pipeline.changes_discarded")
    return [one for one in rows if one["data"]["plugin"] == name]


@whole("EX-TIER-02", "EX-MERGE-02", "EX-AMB-03", "EX-AMB-01")
@pytest.mark.parametrize(
    ("slot", "hook"), [*((slot, PRE) for slot in FORGED), ("completion", OUTPUT), ("llm", OUTPUT)]
)
def test_nobody_changes_what_the_daemon_set(
    daemon: Daemon, site: PolicySite, shared: Project, model: ModelServer, slot: str, hook: str
) -> None:
    name = f"forger-{next(_names)}"
    forger = changes(f"{slot}={FORGED[slot]}", *CAPABILITIES, name=name, hooks=[hook])
    spies = [spy(by, *CAPABILITIES, hooks=[hook]) for by in ("before", "after")]
    site.put(FILLS, spies[0], forger, spies[1])
    if hook == PRE:
        assert shared.call("file.read", path="a.txt")["content"] == "1: one"
    else:
        model.play(name, say("Fine."))
        assert say_to(shared, begin(shared), name)["status"] == "completed"
    before, after = site.view("before"), site.view("after")
    assert before == after
    assert (after[slot] is None) is (hook == PRE and slot in {"completion", "llm"})
    (row,) = exactly(1, lambda: discarded(daemon, name))
    assert row["data"] == {"plugin": name, "hook": hook, "slots": {slot: 1}}
    assert "forged" not in str(row).replace(name, "")


@whole("EX-TIER-02", "EX-AMB-03")
@pytest.mark.parametrize("part", SECURITY)
def test_nobody_changes_the_fixed_parts_of_security(
    daemon: Daemon, site: PolicySite, shared: Project, part: str
) -> None:
    name = f"forger-{next(_names)}"
    text = f"security=ext.security.model_copy(update={{'{part}': {SECURITY[part]}}})"
    before, after = around(site, shared, changes(text, *CAPABILITIES, name=name))
    assert before == after
    assert "forged" not in str(after)
    (row,) = discarded(daemon, name)
    assert row["data"]["slots"] == {f"security.{part}": 1}


@whole("EX-TIER-01", "EX-MERGE-01", "EX-MERGE-05")
@pytest.mark.parametrize(
    "capabilities",
    [
        [],
        ["write_headers"],
        ["append_labels"],
        ["append_delegation"],
        ["write_headers", "append_delegation"],
        [one for one in CAPABILITIES if one.startswith("read")],
        list(CAPABILITIES),
    ],
    ids=lambda some: "+".join(some) if len(some) < 3 else str(len(some)),
)
def test_a_policy_that_changes_every_slot_at_once_gets_what_it_may(
    site: PolicySite, shared: Project, capabilities: list[str]
) -> None:
    # The label it adds has to come on top of those it may not see.
    text = EVERYTHING.replace("ext.security.labels |", "{'pii', 'secret'} |")
    before, after = around(site, shared, changes(text, *capabilities))
    expected = {**before, "custom": {"other": 2}}
    if "write_headers" in capabilities:
        expected["http"] = {"headers": {"new": "1"}}
    if "append_labels" in capabilities:
        expected["security"] = {**before["security"], "labels": ["new", "pii", "secret"]}
    if "append_delegation" in capabilities:
        assert [one["subject_id"] for one in after["delegation"]["chain"]] == ["operator", "next"]
        expected["delegation"] = after["delegation"]
    assert after == expected


@whole("EX-TIER-03", "EX-MERGE-03")
@pytest.mark.parametrize(
    ("labels", "grown"),
    [
        ("{'pii', 'secret', 'new'}", ["new", "pii", "secret"]),
        ("{'pii', 'secret'}", None),
        ("{'pii'}", None),
        ("{'new', 'newer'}", None),
        ("{'pii', 'new'}", None),
        ("frozenset()", None),
    ],
)
def test_labels_only_grow(
    site: PolicySite, shared: Project, labels: str, grown: list[str] | None
) -> None:
    text = f"security=ext.security.model_copy(update={{'labels': frozenset({labels})}})"
    before, after = around(site, shared, changes(text, "append_labels", on_error="ignore"))
    expected = {**before["security"], "labels": grown or ["pii", "secret"]}
    assert after == {**before, "security": expected}


@whole("EX-TIER-05")
@pytest.mark.parametrize(
    ("capabilities", "rebuilt"),
    [
        (["append_labels"], "SecurityExtension(labels=frozenset({'mine'}))"),
        ([], "SecurityExtension(labels=frozenset({'mine'}))"),
        (["read_labels"], "SecurityExtension(labels=frozenset({'mine'}))"),
        ([], "SecurityExtension()"),
    ],
)
def test_rebuilding_security_with_its_own_label_removes_no_other(
    site: PolicySite, shared: Project, capabilities: list[str], rebuilt: str
) -> None:
    entry = changes(f"security={rebuilt}", *capabilities, on_error="ignore")
    before, after = around(site, shared, entry)
    assert before == after
    assert after["security"]["labels"] == ["pii", "secret"]


@whole("EX-TIER-05", "EX-TIER-03")
def test_growth_is_measured_against_the_daemons_value_and_not_an_older_view(
    site: PolicySite, shared: Project
) -> None:
    source = """
kept = {}


class First(Plugin):
    async def tool_pre_invoke(self, payload, context, extensions):
        kept["view"] = extensions
        return change(extensions, security=grown(extensions, "late"))


class Stale(Plugin):
    async def tool_pre_invoke(self, payload, context, extensions):
        return change(kept["view"], security=grown(kept["view"], "stale"))
"""
    made: dict[str, Any] = {"hooks": [PRE], "capabilities": ["append_labels"]}
    first = {"name": "first", "kind": "First", **made}
    stale = {"name": "stale", "kind": "Stale", **made, "on_error": "ignore"}
    _, after = around(site, shared, first, stale, source=source)
    assert after["security"]["labels"] == ["late", "pii", "secret"]


@whole("EX-MERGE-04", "EX-AMB-17")
def test_a_change_without_the_right_is_left_out_without_a_word_to_policy_or_caller(
    daemon: Daemon, site: PolicySite, shared: Project
) -> None:
    name = f"quiet-{next(_names)}"
    text = "http=HttpExtension(headers={'forged': '1'}), security=grown(ext, 'forged')"
    before, after = around(site, shared, changes(text, "read_headers", name=name))
    assert before == after
    assert after["http"]["headers"] == {"a": "1", "b": "2"}
    (row,) = exactly(1, lambda: discarded(daemon, name))
    assert row["data"]["slots"] == {"http": 1, "security.labels": 1}
    assert row["request_id"] == after["request"]["request_id"]
    assert "forged" not in str(row)
    (seen,) = site.seen("after")
    assert name not in str({**seen, "by": ""}), "who comes next is shown nothing of it"
    failed = daemon.audit("pipeline.plugin_failed")
    assert name not in [one["data"]["plugin"] for one in failed]


@whole("EX-MERGE-05")
def test_of_changed_headers_agent_and_custom_the_agent_is_left_out(
    site: PolicySite, shared: Project
) -> None:
    text = (
        "http=HttpExtension(headers={**ext.http.headers, 'x': '3'}),"
        " agent=AgentExtension(agent_id='forged'), custom={**ext.custom, 'more': 2}"
    )
    before, after = around(site, shared, changes(text, "write_headers"))
    assert after == {
        **before,
        "http": {"headers": {"a": "1", "b": "2", "x": "3"}},
        "custom": {"mine": 1, "more": 2},
    }


@whole("EX-MERGE-07", "EX-MERGE-09", "EX-MERGE-10")
@pytest.mark.parametrize("capabilities", [[], ["read_labels"], list(CAPABILITIES)], ids=len)
@pytest.mark.parametrize(
    "result",
    [
        "PluginResult(modified_extensions=ext)",
        "PluginResult(modified_extensions=ext.model_copy())",
        "PluginResult(modified_extensions=Extensions(**dict(ext)))",
        "PluginResult()",
        "PluginResult(continue_processing=True, modified_extensions=None)",
        "None",
    ],
)
def test_a_view_given_back_as_it_was_changes_no_slot_and_blanks_no_hidden_one(
    daemon: Daemon, site: PolicySite, shared: Project, capabilities: list[str], result: str
) -> None:
    name = f"mirror-{next(_names)}"
    before, after = around(site, shared, gives(result, *capabilities, name=name))
    assert before == after
    assert discarded(daemon, name) == []


@whole("EX-AMB-02")
@pytest.mark.parametrize("on_error", ["fail", "ignore", "disable"])
def test_taking_a_label_away_voids_everything_that_the_policy_gave_back(
    daemon: Daemon, site: PolicySite, shared: Project, on_error: str
) -> None:
    name = f"thief-{next(_names)}"
    result = (
        "PluginResult(modified_payload=payload.model_copy(update={'args': {'path': 'b.txt'}}),"
        " modified_extensions=ext.model_copy(update={"
        "'security': ext.security.model_copy(update={'labels': frozenset({'pii'})}),"
        "'http': HttpExtension(headers={'x': '1'})}))"
    )
    shared.write("b.txt", "other\n")
    thief = gives(result, "append_labels", "write_headers", name=name, on_error=on_error)
    site.put(FILLS, thief, spy("after", *CAPABILITIES))
    for time in range(2):
        if on_error == "fail":
            refused = shared.fail("file.read", path="a.txt")
            assert refused["code"] == "plugin_error"
            assert site.seen("after") == []
            continue
        assert shared.call("file.read", path="a.txt")["content"] == "1: one"
        seen = site.seen("after")[time]
        assert seen["extensions"]["http"]["headers"] == {"a": "1", "b": "2"}
        assert seen["extensions"]["security"]["labels"] == ["pii", "secret"]
        assert seen["payload"]["args"]["path"] == "a.txt"
    rows = [one["data"] for one in daemon.audit("pipeline.plugin_failed")]
    mine = [one for one in rows if one["plugin"] == name]
    assert len(mine) == (1 if on_error == "disable" else 2), "switched off, it is not asked again"
    assert {(one["failure"], one["on_error"]) for one in mine} == {("plugin_error", on_error)}
    assert "security.labels" in mine[0]["detail"]
    assert "monotonic" in mine[0]["detail"]


@whole("EX-AMB-05")
@pytest.mark.parametrize(
    ("chain", "grown"),
    [
        (f"({HOP}, *ext.delegation.chain)", None),
        ("ext.delegation.chain[::-1]", None),
        ("(ext.delegation.chain[0].model_copy(update={'audience': 'x'}), ext.delegation.chain[1])",
         None),
        ("(ext.delegation.chain[0], ext.delegation.chain[1].model_copy(update={'audience': 'x'}))",
         None),
        ("ext.delegation.chain[:1]", None),
        (f"(*ext.delegation.chain, {HOP})", ["operator", "primary", "next"]),
    ],
)  # fmt: skip
def test_the_chain_keeps_its_beginning_and_the_rest_is_derived(
    site: PolicySite, shared: Project, chain: str, grown: list[str] | None
) -> None:
    forged = (
        f"delegation=DelegationExtension(chain={chain}, depth=77, origin_subject_id='forged',"
        " actor_subject_id='me', delegated=False, age_seconds=5.0)"
    )
    site.put(
        spy("before", *CAPABILITIES),
        changes(forged, "append_delegation", on_error="ignore"),
        spy("after", *CAPABILITIES),
    )
    shared.call("file.read", "primary.subagents.reader", path="a.txt")
    before, after = site.view("before")["delegation"], site.view("after")["delegation"]
    if grown is None:
        assert before == after
        return
    assert [one["subject_id"] for one in after["chain"]] == grown
    assert after["chain"][:2] == before["chain"]
    assert (after["depth"], after["delegated"]) == (3, True)
    assert after["origin_subject_id"] == before["origin_subject_id"] == "operator"
    assert (after["actor_subject_id"], after["age_seconds"]) == ("me", 5.0)


@whole("EX-AMB-06")
@pytest.mark.parametrize("capability", [None, "write_headers", "append_delegation"])
def test_an_empty_slot_is_created_by_who_may_write_it(
    site: PolicySite, plugin: Any, capability: str | None
) -> None:
    # Nobody's agent: the call of a plugin's method has no delegation.
    folder: PluginFolder = plugin({"on": {"a.b": [{"echo": True}]}})
    own = [] if capability is None else [capability]
    text = (
        f"http=HttpExtension(headers={{'x': '1'}}),"
        f" delegation=DelegationExtension().with_new_hop({HOP}),"
        f" agent={FORGED['agent']}, llm={FORGED['llm']}, completion={FORGED['completion']}"
    )
    site.put(spy("before", *CAPABILITIES), changes(text, *own), spy("after", *CAPABILITIES))
    folder.run()
    assert folder.call("a.b", q=1)["q"] == 1
    before, after = site.view("before"), site.view("after")
    for slot in ("http", "delegation", "agent", "llm", "completion"):
        assert before[slot] is None, slot
    assert after["http"] == ({"headers": {"x": "1"}} if capability == "write_headers" else None)
    made = after["delegation"]
    assert (made is not None) is (capability == "append_delegation")
    if made is not None:
        assert [one["subject_id"] for one in made["chain"]] == ["next"]
        assert (made["depth"], made["origin_subject_id"]) == (1, "next")
    for slot in ("agent", "llm", "completion"):
        assert after[slot] is None, slot


@whole("EX-AMB-07")
def test_none_removes_nothing_but_clears_custom(site: PolicySite, shared: Project) -> None:
    nothing = changes("http=None, security=None, delegation=None", *CAPABILITIES)
    before, after = around(site, shared, nothing)
    assert before == after
    for value, left in (("None", None), ("{}", {})):
        _, after = around(site, shared, changes(f"custom={value}"))
        assert after["custom"] == left
    drop = "http=HttpExtension(headers={n: v for n, v in ext.http.headers.items() if n != 'a'})"
    _, after = around(site, shared, changes(drop, "write_headers"))
    assert after["http"]["headers"] == {"b": "2"}


@whole("EX-AMB-15")
@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ("{**ext.http.headers, 'X-Mixed-Case': 'As Written'}",
         {"a": "1", "b": "2", "X-Mixed-Case": "As Written"}),
        ("{'only': 'this'}", {"only": "this"}),
        ("{}", {}),
        ("{**ext.http.headers, 'x': 'a\\r\\nevil: 1'}", None),
        ("{**ext.http.headers, 'x': 'a\\nb'}", None),
        ("{**ext.http.headers, 'x': 'a\\rb'}", None),
        ("{**ext.http.headers, 'x': 'a\\0b'}", None),
        ("{**ext.http.headers, 'x\\n': 'a'}", None),
    ],
)  # fmt: skip
def test_given_headers_replace_the_map_whole_as_written_or_not_at_all(
    daemon: Daemon, site: PolicySite, shared: Project, headers: str, found: dict[str, str] | None
) -> None:
    name = f"headers-{next(_names)}"
    # Written with model_construct, so that no model stops it before the daemon does.
    text = f"http=HttpExtension.model_construct(headers={headers})"
    before, after = around(site, shared, changes(text, "write_headers", name=name))
    assert before["http"]["headers"] == {"a": "1", "b": "2"}
    assert after["http"]["headers"] == (before["http"]["headers"] if found is None else found)
    slots = [one["data"]["slots"] for one in discarded(daemon, name)]
    assert slots == ([{"http": 1}] if found is None else [])
