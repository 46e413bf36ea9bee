"""The declared events are those of the documents, and the reference page shows them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kaged.audit.credentials import is_secret_key
from kaged.audit.events import CHAPTERS, COMMON_FIELDS, EVENT_TYPES, FieldKind
from kaged.audit.reference import render_reference

ROOT = Path(__file__).parents[3]


def rows(document: str, prefix: str) -> dict[str, str]:
    """Return the `says` text of the rows of one area, by id."""
    text = (ROOT / "docs" / "requirements" / f"{document}.yaml").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for block in re.split(r"\n(?=- id:)", text):
        match = re.match(r"- id:\s*(\S+)", block)
        if match and match[1].startswith(prefix):
            says = block.split("says:", 1)[1].split("shows:", 1)[0]
            found[match[1]] = " ".join(says.split()).removeprefix(">- ")
    return found


def listed(text: str) -> list[str]:
    """Return the field names of a list such as `a, b (in some form) and c`."""
    bare = re.sub(r"\([^)]*\)", "", text).replace(" and ", ", ")
    words = [word.strip(" .") for word in bare.split(",")]
    return [word for word in words if re.fullmatch(r"[a-z_]+", word)]


def test_no_name_is_declared_twice() -> None:
    names = [event.name for chapter in CHAPTERS for event in chapter.events]
    assert len(names) == len(set(names)) == len(EVENT_TYPES)


def test_every_event_says_when_it_is_written() -> None:
    for event in EVENT_TYPES.values():
        assert event.doc.endswith("."), event.name
        assert event.fields, event.name
        names = [field.name for field in event.fields]
        assert len(names) == len(set(names)), event.name


def test_no_declared_field_has_the_name_of_a_secret() -> None:
    """Its value would be taken out of every event, so the name would be a mistake."""
    for event in EVENT_TYPES.values():
        for field in (*event.fields, *COMMON_FIELDS):
            assert not is_secret_key(field.name), f"{event.name}.{field.name}"


def test_the_plugin_hosts_table_is_declared_with_its_fields() -> None:
    checked = 0
    for row_id, says in rows("plugin-host", "PH-AUD-").items():
        match = re.match(r"(plugin\.[a-z_.]+) is emitted when .*; data fields: (.*)", says)
        if match is None:
            continue
        event = EVENT_TYPES[match[1]]
        assert set(listed(match[2])) <= set(event.required), row_id
        checked += 1
    assert checked == 30


@pytest.mark.parametrize("row_id", ["PH-AUD-31", "PH-AUD-34"])
def test_the_plugin_hosts_other_events_are_declared(row_id: str) -> None:
    says = rows("plugin-host", row_id)[row_id]
    names = re.findall(r"\b(?:plugin|compaction)\.[a-z_]+|compactor_dropped_always_keep", says)
    assert len(names) >= 4
    assert set(names) <= set(EVENT_TYPES)


def test_the_toolings_table_is_declared_with_its_fields() -> None:
    checked = 0
    for row_id, says in rows("agent-tooling", "AT-AUD-").items():
        match = re.match(
            r"'?((?:[a-z_]+\.)+[a-z_]+) carries ([^;.]*?)(?: for |,? one of|[.;:]|$)", says
        )
        if match is None:
            continue
        event = EVENT_TYPES[match[1]]
        assert set(listed(match[2])) <= set(event.required), row_id
        checked += 1
    assert checked >= 19


def test_calls_completions_and_denials_have_their_fields() -> None:
    assert EVENT_TYPES["tool.called"].required == {
        "tool_name",
        "caller",
        "session_id",
        "run_id",
        "request_id",
        "params",
    }
    assert EVENT_TYPES["tool.completed"].required == {
        "tool_name",
        "request_id",
        "duration_ms",
        "success",
    }
    assert EVENT_TYPES["tool.denied"].required == {
        "tool_name",
        "caller",
        "denied_capability",
        "cage_summary",
    }
    for name in ("kaged.interaction.requested", "kaged.interaction.answered"):
        assert EVENT_TYPES[name].required == {"request_id", "kind", "session_id"}


def test_the_service_capabilities_events_are_declared_with_their_fields() -> None:
    says = rows("service-capabilities", "SC-AMB-31")["SC-AMB-31"]
    names = re.findall(r"\bcapability_(?:invoke|auth|output|provider|token)[a-z_]*", says)
    assert len(names) == 7
    assert set(names) <= set(EVENT_TYPES)
    assert EVENT_TYPES["capability_invoke"].required >= {
        "request_id",
        "user_id",
        "chat_id",
        "chat_type",
        "skill",
        "token_id",
        "capability.id",
        "operation",
        "mutating",
        "account_ref",
        "input_keys",
        "duration_ms",
        "error.code",
        "outcome",
    }


def test_what_is_said_to_be_cut_is_cut() -> None:
    assert EVENT_TYPES["shell.executed"].by_name["command"].kind is FieldKind.CUT
    assert EVENT_TYPES["plugin.stdout_noise"].by_name["line"].kind is FieldKind.CUT
    assert EVENT_TYPES["plugin.crashed"].by_name["last_stderr"].kind is FieldKind.TAIL
    assert EVENT_TYPES["plugin.storage_denied"].by_name["sql"].kind is FieldKind.SQL


def test_the_reference_page_is_what_the_declarations_say() -> None:
    """Run `python -m kaged.audit.reference > docs/reference/audit-events.md` when this fails."""
    page = ROOT / "docs" / "reference" / "audit-events.md"
    assert page.read_text(encoding="utf-8") == render_reference()


def test_the_reference_page_names_every_event_and_field() -> None:
    page = render_reference()
    for event in EVENT_TYPES.values():
        line = next(line for line in page.splitlines() if line.startswith(f"| `{event.name}`"))
        assert all(f"`{field.name}`" in line for field in event.fields)
        assert ("**gates**" in line) == event.gates
