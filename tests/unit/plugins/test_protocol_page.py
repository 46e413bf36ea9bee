"""The page about the plugin protocol has every method and hook of the code, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from kaged.config import parse_manifest
from kaged.config.manifestrules import SYSTEM_METHODS
from kaged.config.pluginwords import PRIMARY_ONLY_HOOKS, Hook, PluginRole
from kaged.peer import connection
from kaged.plugins.conversation_machine import EVENTS_METHODS, STORAGE_METHODS
from kaged.plugins.handshake import greeting_params
from kaged.plugins.hooks import CompactionEvent, _compaction
from kaged.wire.methods import RATE_LIMITED, SystemMethod

PAGE = (Path(__file__).parents[3] / "docs/reference/plugin-protocol.md").read_text("utf-8")
CANCEL = "kaged.cancel"


def rows(heading: str) -> dict[str, list[str]]:
    """Return the rows of the table under a heading, by what stands first in them."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:3] == "| `"]
    return {re.findall(r"`([^`]+)`", row[0])[0]: row for row in found}


def words(cell: str) -> set[str]:
    return set(re.findall(r"`([a-z_]+)`", cell))


def test_the_page_has_every_method_that_the_host_sends_and_no_other() -> None:
    assert set(rows("From the host")) == {*map(str, SystemMethod), RATE_LIMITED, CANCEL}
    assert set(rows("From the host")) >= SYSTEM_METHODS
    source = Path(str(connection.__file__)).read_text(encoding="utf-8")
    assert re.findall(r'notify\("([a-z_.]+)"', source) == [CANCEL]


def test_the_page_has_every_method_that_the_host_answers_and_no_other() -> None:
    assert set(rows("From the plugin")) == STORAGE_METHODS | EVENTS_METHODS


def test_the_page_has_every_hook_and_no_other_and_says_whose_they_are() -> None:
    table = rows("Hooks")
    assert set(table) == set(map(str, Hook))
    assert {name for name, row in table.items() if row[2] == "primary"} == PRIMARY_ONLY_HOOKS


def test_the_page_has_the_parameters_of_initialize_and_of_compaction() -> None:
    text = (
        "name: a\nversion: 1.0.0\nkaged_api: 1\ndescription: d\n"
        "command: [/bin/true]\ncapabilities: []\n"
    )
    manifest = parse_manifest(text).value
    greeting = greeting_params(manifest, "1", storage=True, projects=[])
    assert words(rows("From the host")["initialize"][2]) == set(greeting)
    sent = _compaction(CompactionEvent((), (), "drop", "asked"), PluginRole.OBSERVER)
    assert words(rows("Hooks")["pre_compact"][3]) == set(sent)
