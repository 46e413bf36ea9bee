"""Capabilities in a running daemon: who sees which slot, and who may change it.

What the daemon leaves empty (headers, labels) is filled by a first policy that may. The views of
those behind it, and what comes of their changes, are in files that spies write.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.conversation import begin, say_to
from whole.harness.daemon import Daemon
from whole.harness.model import ModelServer, say
from whole.harness.policies import CAPABILITIES, PRE, SLOTS, PolicySite, changes, gives, spy
from whole.harness.project import Project

SUBJECT_READERS = {"read_subject", "read_roles", "read_teams", "read_claims", "read_permissions"}
SHOWN_BY = {
    "agent": {"read_agent"},
    "http": {"read_headers", "write_headers"},
    "delegation": {"read_delegation", "append_delegation"},
}
LABELS = {"read_labels", "append_labels"}
FILLS = changes(
    "http=HttpExtension(headers={'authorization': 'Bearer x'}),"
    " security=grown(ext, 'pii', 'confidential'), custom={'free': 1}",
    "write_headers",
    "append_labels",
    name="fills",
    hooks=[PRE, "cmf.llm_output"],
    priority=1,
)
HOP = "DelegationHop(subject_id='next', subject_type='agent')"


def one_call(site: PolicySite, shared: Project, *entries: dict[str, Any], source: str = "") -> None:
    """Put the filler and these policies in force and make one call."""
    site.put(FILLS, *entries, source=source)
    shared.call("file.read", path="a.txt")


@whole("EX-CAP-16", "EX-FILT-06", "EX-FILT-07")
@pytest.mark.parametrize("capability", [None, *CAPABILITIES])
def test_a_single_capability_opens_its_slot_and_no_other(
    site: PolicySite, shared: Project, model: ModelServer, capability: str | None
) -> None:
    own = [] if capability is None else [capability]
    hooks = [PRE, "cmf.llm_output"]
    site.put(FILLS, spy("all", *CAPABILITIES, hooks=hooks), spy("own", *own, hooks=hooks))
    model.play(f"wombat-{capability}", say("Yes."))
    shared.call("file.read", path="a.txt")
    assert say_to(shared, begin(shared), f"wombat-{capability}")["status"] == "completed"
    filled: set[str] = set()
    for hook in hooks:
        every, mine = site.view("all", hook), site.view("own", hook)
        filled |= {slot for slot in SLOTS if every[slot] is not None}
        for slot in SLOTS:
            if slot == "security":
                continue
            seen = slot not in SHOWN_BY or capability in SHOWN_BY[slot]
            assert mine[slot] == (every[slot] if seen else None), (hook, slot)
        labels = ["confidential", "pii"] if capability in LABELS else []
        assert mine["security"]["labels"] == labels
        subject = mine["security"]["subject"]
        assert (subject is not None) is (capability in SUBJECT_READERS)
        if subject is not None:
            assert (subject["id"], subject["type"]) == ("operator", "user")
    assert filled == set(SLOTS), "each slot was filled in one of the calls"


@whole("EX-CAP-02")
def test_read_subject_shows_who_it_is_and_of_which_kind(site: PolicySite, shared: Project) -> None:
    one_call(site, shared, spy("spy", "read_subject"))
    assert site.view()["security"]["subject"] == {
        "id": "operator",
        "type": "user",
        "roles": [],
        "permissions": [],
        "teams": [],
        "claims": {},
    }
    (row,) = site.seen("spy")
    assert row["user"] == "operator"


CHANGES = {
    "headers": "http=HttpExtension(headers={'x': 'mine'})",
    "labels": "security=(ext.security or SecurityExtension()).model_copy("
    "update={'labels': ext.security.labels | {'mine'}})",
    "delegation": f"delegation=(ext.delegation or DelegationExtension()).with_new_hop({HOP})",
}
MAY_CHANGE = {
    "headers": "write_headers",
    "labels": "append_labels",
    "delegation": "append_delegation",
}


@whole("EX-CAP-14", "EX-CAP-15")
@pytest.mark.parametrize("capability", [None, *CAPABILITIES])
def test_only_the_writing_capability_of_a_slot_changes_it_and_it_reads_too(
    site: PolicySite, shared: Project, capability: str | None
) -> None:
    own = [] if capability is None else [capability]
    asks = [changes(text, *own, name=name, on_error="ignore") for name, text in CHANGES.items()]
    one_call(site, shared, *asks, spy("own", *own), spy("after", *CAPABILITIES))
    after, mine = site.view("after"), site.view("own")
    changed = {
        "headers": after["http"]["headers"] == {"x": "mine"},
        "labels": after["security"]["labels"] == ["confidential", "mine", "pii"],
        "delegation": [one["subject_id"] for one in after["delegation"]["chain"]][1:] == ["next"],
    }
    assert changed == {name: capability == word for name, word in MAY_CHANGE.items()}
    reads = {
        "headers": mine["http"] is not None,
        "labels": bool(mine["security"]["labels"]),
        "delegation": mine["delegation"] is not None,
    }
    for name, writer in MAY_CHANGE.items():
        reader = writer.replace("append", "read").replace("write", "read")
        assert reads[name] is (capability in {reader, writer}), name


@whole("EX-CAP-15")
def test_there_are_twelve_names_and_each_implies_what_is_written_down(
    daemon: Daemon, site: PolicySite
) -> None:
    site.put(*(spy(name, name) for name in CAPABILITIES), spy("none"))
    (hook,) = daemon.cli("pipeline", "explain", "--json").json["hooks"]
    implied = {
        **{name: {"read_subject"} for name in SUBJECT_READERS},
        "write_headers": {"read_headers"},
        "append_labels": {"read_labels"},
        "append_delegation": {"read_delegation"},
    }
    found = {one["plugin"]: set(one["capabilities"]) for one in hook["steps"]}
    assert found == {
        "none": set(),
        **{name: {name} | implied.get(name, set()) for name in CAPABILITIES},
    }
    (problem,) = site.refused(spy("odd", "read_everything"))
    listed = set(re.findall(r"[a-z_]+", problem.partition("known are ")[2]))
    assert listed == set(CAPABILITIES)


@whole("EX-CAP-08", "EX-CAP-09")
@pytest.mark.parametrize("capability", ["read_headers", "write_headers"])
def test_headers_are_read_with_one_and_replaced_with_the_other(
    site: PolicySite, shared: Project, capability: str
) -> None:
    text = "http=HttpExtension(headers={**ext.http.headers, 'x-new': '1'})"
    one_call(
        site,
        shared,
        spy("own", capability),
        changes(text, capability),
        spy("after", "read_headers"),
    )
    before = {"authorization": "Bearer x"}
    assert site.view("own")["http"]["headers"] == before
    now = {**before, "x-new": "1"} if capability == "write_headers" else before
    assert site.view("after")["http"]["headers"] == now


@whole("EX-CAP-10", "EX-CAP-11")
@pytest.mark.parametrize(
    ("capability", "labels", "found"),
    [
        ("read_labels", "ext.security.labels | {'more'}", {"pii", "confidential"}),
        ("append_labels", "ext.security.labels | {'more'}", {"pii", "confidential", "more"}),
        # Taken away: one, all, and one for another, so that their number stays.
        ("append_labels", "ext.security.labels - {'pii'}", {"pii", "confidential"}),
        ("append_labels", "frozenset()", {"pii", "confidential"}),
        ("append_labels", "ext.security.labels - {'pii'} | {'swap'}", {"pii", "confidential"}),
        ("append_labels", "ext.security.labels - {'pii'} | {'a', 'b'}", {"pii", "confidential"}),
        ("append_labels", "{'one', 'two'}", {"pii", "confidential"}),
    ],
)
def test_labels_are_added_by_who_may_and_taken_away_by_nobody(
    site: PolicySite, shared: Project, capability: str, labels: str, found: set[str]
) -> None:
    text = f"security=ext.security.model_copy(update={{'labels': {labels}}})"
    one_call(
        site,
        shared,
        spy("own", capability),
        changes(text, capability, on_error="ignore"),
        spy("after", "read_labels"),
    )
    assert set(site.view("own")["security"]["labels"]) == {"pii", "confidential"}
    assert set(site.view("after")["security"]["labels"]) == found


@whole("EX-CAP-11")
@pytest.mark.parametrize(
    "labels", ["ext.security.labels - {'pii'}", "ext.security.labels - {'pii'} | {'swap'}"]
)
def test_a_label_taken_away_or_swapped_ends_the_call(
    daemon: Daemon, site: PolicySite, shared: Project, labels: str
) -> None:
    text = f"security=ext.security.model_copy(update={{'labels': {labels}}})"
    site.put(FILLS, changes(text, "append_labels", name=f"thief-{len(labels)}"), spy("after"))
    assert shared.fail("file.read", path="a.txt")["code"] == "plugin_error"
    assert site.seen("after") == []
    (row,) = [
        one["data"]
        for one in daemon.audit("pipeline.plugin_failed")
        if one["data"]["plugin"] == f"thief-{len(labels)}"
    ]
    assert row["on_error"] == "fail"
    assert "1 label(s) were removed" in row["detail"]


@whole("EX-CAP-12", "EX-CAP-13")
@pytest.mark.parametrize(
    ("capability", "chain", "found"),
    [
        ("read_delegation", f"(*ext.delegation.chain, {HOP})", ["operator"]),
        ("append_delegation", f"(*ext.delegation.chain, {HOP})", ["operator", "next"]),
        ("append_delegation", "()", ["operator"]),
        ("append_delegation", f"({HOP},)", ["operator"]),
    ],
)
def test_the_chain_is_extended_by_who_may_and_shortened_by_nobody(
    site: PolicySite, shared: Project, capability: str, chain: str, found: list[str]
) -> None:
    text = f"delegation=ext.delegation.model_copy(update={{'chain': {chain}}})"
    one_call(
        site,
        shared,
        spy("own", capability),
        changes(text, capability, on_error="ignore"),
        spy("after", "read_delegation"),
    )
    for by, ids in (("own", ["operator"]), ("after", found)):
        chain_seen = site.view(by)["delegation"]["chain"]
        assert [one["subject_id"] for one in chain_seen] == ids, by


@whole("EX-CAP-01", "EX-AMB-09", "EX-FILT-02")
def test_capabilities_are_those_of_the_entry_and_none_without_a_list(
    site: PolicySite, shared: Project
) -> None:
    nothing: dict[str, Any] = {"capabilities": None}
    empty: dict[str, Any] = {"capabilities": []}
    one_call(
        site,
        shared,
        spy("without"),
        {**spy("null"), **nothing},
        {**spy("empty"), **empty},
        spy("two", "read_agent", "read_labels"),
    )
    for by in ("without", "null", "empty"):
        seen = site.view(by)
        assert (seen["agent"], seen["http"], seen["delegation"]) == (None, None, None)
        assert (seen["security"]["labels"], seen["security"]["subject"]) == ([], None)
    two = site.view("two")
    assert two["agent"]["agent_id"] == "primary"
    assert two["security"]["labels"] == ["confidential", "pii"]
    assert (two["http"], two["delegation"], two["security"]["subject"]) == (None, None, None)


@whole("EX-AMB-09")
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (["read_header"], ["'misspelt'", "read_header", *CAPABILITIES]),
        (["read_labels", "READ_LABELS"], ["'misspelt'", "READ_LABELS"]),
        ("read_headers", ["'misspelt'", "list"]),
        ({"read_headers": True}, ["'misspelt'", "list"]),
        (["read:fs:/"], ["'misspelt'", "read:fs:/"]),
        (["exec"], ["'misspelt'", "exec"]),
    ],
)
def test_an_unknown_capability_and_a_bare_word_are_refused_at_load(
    site: PolicySite, shared: Project, value: object, words: list[str]
) -> None:
    site.put(spy("good"))
    (problem,) = site.refused({**spy("misspelt"), "capabilities": value})
    assert [word for word in words if word not in problem] == [], problem
    site.seen_file.write_text("", encoding="utf-8")
    shared.call("file.read", path="a.txt")
    assert [one["by"] for one in site.seen()] == ["good"], "the plan before stays in force"


@whole("EX-FILT-01", "EX-FILT-03", "EX-FILT-04")
def test_each_policy_has_a_view_of_its_own_and_looking_changes_nothing(
    site: PolicySite, shared: Project
) -> None:
    source = """
kept = []


class Keeps(Plugin):
    async def tool_pre_invoke(self, payload, context, extensions):
        noted(self.name, "tool_pre_invoke", payload, context, extensions)
        note(self.name + "-ids", same=[one is extensions for one in kept],
             parts=[one.request is extensions.request for one in kept])
        kept.append(extensions)
"""

    def keeps(name: str, *capabilities: str) -> dict[str, Any]:
        return {
            "name": name,
            "kind": "Keeps",
            "hooks": [PRE],
            "capabilities": list(capabilities),
        }

    one_call(
        site,
        shared,
        keeps("before", *CAPABILITIES),
        keeps("few", "read_labels"),
        keeps("none"),
        keeps("after", *CAPABILITIES),
        source=source,
    )
    assert site.view("before") == site.view("after")
    assert site.view("few") != site.view("none") != site.view("after")
    assert site.view("few")["security"]["labels"] == ["confidential", "pii"]
    assert site.view("none")["security"]["labels"] == []
    for by, before in (("before", 0), ("few", 1), ("none", 2), ("after", 3)):
        (ids,) = site.seen(f"{by}-ids")
        assert ids["same"] == ids["parts"] == [False] * before


@whole("EX-AMB-04")
def test_what_is_hidden_looks_empty_and_keeps_its_type(site: PolicySite, shared: Project) -> None:
    types = (
        "note('types', labels=type(ext.security.labels).__name__, count=len(ext.security.labels),"
        " subject=ext.security.subject, parts={name: type(getattr(ext.security.subject, name))"
        ".__name__ for name in ('roles', 'teams', 'permissions')} if ext.security.subject else {},"
        " claims=None if ext.security.subject is None else dict(ext.security.subject.claims))"
    )
    one_call(site, shared, gives(types, name="none"), gives(types, "read_subject", name="some"))
    none, some = site.seen("types")
    assert (none["labels"], none["count"], none["subject"]) == ("frozenset", 0, None)
    assert some["parts"] == dict.fromkeys(("roles", "teams", "permissions"), "frozenset")
    assert some["claims"] == {}
    assert (some["labels"], some["count"]) == ("frozenset", 0)


@whole("EX-CFG-04")
def test_a_policy_cannot_give_itself_capabilities(site: PolicySite, shared: Project) -> None:
    source = """
class Climbs(Plugin):
    capabilities = ["read_agent", "append_labels"]

    async def initialize(self):
        self.climb()

    def climb(self):
        self.capabilities = frozenset({"read_agent", "append_labels"})
        self._capabilities = {"read_agent"}
        for holder in (self.config, self._config):
            for value in (["read_agent", "append_labels"], frozenset({"read_agent"})):
                try:
                    object.__setattr__(holder, "capabilities", value)
                except Exception:
                    pass

    async def tool_pre_invoke(self, payload, context, extensions):
        self.climb()
        noted(self.name, "tool_pre_invoke", payload, context, extensions)
        return PluginResult(
            modified_extensions=extensions.model_copy(update={"security": grown(extensions, "up")}),
            metadata={"capabilities": ["append_labels"]})
"""
    climbs = {"name": "climbs", "kind": "Climbs", "hooks": [PRE], "on_error": "ignore"}
    site.put(FILLS, climbs, spy("after", "read_labels"), source=source)
    for _ in range(2):
        shared.call("file.read", path="a.txt")
    for seen in site.seen("climbs"):
        assert seen["extensions"]["agent"] is None
        assert seen["extensions"]["security"]["labels"] == []
    assert len(site.seen("climbs")) == 2
    for seen in site.seen("after"):
        assert seen["extensions"]["security"]["labels"] == ["confidential", "pii"]
