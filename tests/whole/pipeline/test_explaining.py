"""`kaged tool explain` asks the policies that say they are pure, and tells what others depend on.

Nothing comes of it: no call on record, no trace, no use of a rate.
"""

from __future__ import annotations

from typing import Any

from whole.harness.daemon import Daemon
from whole.harness.policies import PRE, PolicySite, entry
from whole.harness.project import Project

HOUSE = "kaged.pipeline.policies."
RULES = entry(
    "rules",
    f"{HOUSE}DenyRules",
    config={
        "rules": [{"deny": "file.*", "when": {"args": {"path": "b*"}}, "because": "b is for later"}]
    },
)
RATE = entry("rate", f"{HOUSE}SubjectRateLimit", "read_subject", config={"rate": "1/h"}, priority=1)
SOURCE = """
class Looks(Plugin):
    depends_on = "the weather"

    async def tool_pre_invoke(self, payload, context, extensions):
        note(self.name, hook="looked")


class Moves(Plugin):
    pure = True

    async def tool_pre_invoke(self, payload, context, extensions):
        note(self.name, hook="moved")
        path = self.config.config["to"]
        return PluginResult(modified_payload=payload.model_copy(
            update={"args": {**payload.args, "path": path}}))


class Heir(Moves):
    pass


class Claims(Moves):
    edits = False
"""


def explain(daemon: Daemon, project: Project, path: str) -> tuple[bool, list[dict[str, Any]]]:
    """Explain a call by command; returns whether it would be allowed, and what policies say."""
    asked = ("tool", "explain", "file.read", f"path={path}", "--json")
    done = daemon.cli(*asked, cwd=project.root, code=None)
    found = done.json
    assert done.code == (0 if found["allowed"] else 4)
    return found["allowed"], [one for one in found["gates"] if one["rule"].startswith("policy ")]


def test_a_pure_policy_is_asked_and_of_others_it_is_said_what_they_depend_on(
    daemon: Daemon, shared: Project, site: PolicySite
) -> None:
    shared.write("b.txt", "two\n")
    site.put(RATE, RULES, source=SOURCE)
    before = len(daemon.audit("tool.*", "pipeline.plugin_denied"))
    for _ in range(3):
        allowed, gates = explain(daemon, shared, "b.txt")
        assert not allowed
        rate, rules = gates
        assert (rate["passed"], rate["rule"]) == (None, "policy rate")
        assert rate["detail"] == "depends on the calls that the subject made before"
        assert (rules["passed"], rules["rule"], rules["step"]) == (False, "policy rules", PRE)
        assert "b is for later" in rules["detail"]
    allowed, gates = explain(daemon, shared, "a.txt")
    assert allowed
    assert [one["passed"] for one in gates] == [None, True]
    shown = daemon.cli("tool", "explain", "file.read", "path=b.txt", cwd=shared.root, code=4)
    assert "would be refused" in shown.out
    assert "b is for later" in shown.out
    # Nothing is on record, and the one call of the hour is still free; the second is not.
    assert len(daemon.audit("tool.*", "pipeline.plugin_denied")) == before
    daemon.cli("tool", "call", "file.read", "path=a.txt", cwd=shared.root)
    assert daemon.cli("tool", "call", "file.read", "path=a.txt", cwd=shared.root, code=None).code


def test_only_a_class_that_declares_it_itself_is_asked(
    daemon: Daemon, shared: Project, site: PolicySite
) -> None:
    inside = {"to": "a.txt"}
    site.put(
        entry("looks", "Looks"),
        entry("heir", "Heir", config=inside),
        entry("moves", "Moves", config=inside, mode="audit"),
        source=SOURCE,
    )
    allowed, gates = explain(daemon, shared, "a.txt")
    assert allowed
    assert [(one["rule"], one["passed"], one["detail"]) for one in gates] == [
        ("policy looks", None, "depends on the weather"),
        ("policy heir", None, "depends on what it keeps to itself"),
        ("policy moves", True, ""),
    ]
    assert [one["by"] for one in site.seen()] == ["moves"]


def test_a_call_that_a_policy_changes_is_decided_again(
    daemon: Daemon, shared: Project, site: PolicySite
) -> None:
    site.put(entry("moves", "Moves", config={"to": "/etc/passwd"}), source=SOURCE)
    asked = ("tool", "explain", "file.read", "path=a.txt", "--json")
    found = daemon.cli(*asked, cwd=shared.root, code=4).json
    assert not found["allowed"]
    moved, again = found["gates"][-2:]
    assert (moved["rule"], moved["passed"]) == ("policy moves", True)
    assert moved["detail"] == "changes the call"
    assert again["step"].startswith("changed: ")
    assert again["passed"] is False
    # A denial behind somebody who may change the call first is not certain.
    changes = entry("heir", "Heir", config={"to": "a.txt"}, priority=1)
    site.put(changes, RULES, source=SOURCE)
    allowed, gates = explain(daemon, shared, "b.txt")
    assert allowed
    assert gates[-1]["passed"] is None
    assert gates[-1]["detail"].startswith("depends on heir: ")


def test_what_declares_that_it_changes_nothing_changes_nothing(
    daemon: Daemon, shared: Project, site: PolicySite
) -> None:
    shared.write("b.txt", "two\n")
    for kind, text in (("Heir", "one"), ("Claims", "two")):
        site.put(entry("moves", kind, config={"to": "a.txt"}), source=SOURCE)
        done = daemon.cli("tool", "call", "file.read", "path=b.txt", cwd=shared.root)
        assert text in done.out
        assert [one["by"] for one in site.seen()] == ["moves"]
