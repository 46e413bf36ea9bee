"""The reference page says what the code has, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kaged.base.errors import KagedError
from kaged.kernel.bindings import BindingInvalid
from kaged.kernel.capabilities import FORMS, CapabilityInvalid, parse_capability
from kaged.kernel.decision import CapabilityDenied, SeccompInsufficient
from kaged.kernel.describe import describe_grant
from kaged.kernel.describe.grants import GrantWarning
from kaged.kernel.extension_caps import ExtensionCapability, ExtensionCapabilityInvalid, closure
from kaged.kernel.hosts import NetTargetInvalid
from kaged.kernel.lua_powers import LuaPower, LuaPowerInvalid
from kaged.kernel.paths import PathInvalid
from kaged.kernel.request_paths import PathPatternInvalid, RequestPathInvalid
from kaged.kernel.requirements import RequirementInvalid
from kaged.kernel.service_ids import ServiceIdInvalid

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "capabilities.md"
ERRORS: list[type[KagedError]] = [
    CapabilityDenied,
    SeccompInsufficient,
    CapabilityInvalid,
    NetTargetInvalid,
    PathInvalid,
    RequirementInvalid,
    ExtensionCapabilityInvalid,
    LuaPowerInvalid,
    ServiceIdInvalid,
    BindingInvalid,
    RequestPathInvalid,
    PathPatternInvalid,
]


def rows(heading: str, below: str = "") -> list[list[str]]:
    """Return the cells of the first table under a heading, without its header."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1]
    if below:
        text = text.split(f"\n### {below}\n")[1]
    table = re.search(r"^\|.*(?:\n\|.*)*", text, re.MULTILINE)
    assert table is not None
    return [[c.strip() for c in line.split("|")[1:-1]] for line in table[0].splitlines()[2:]]


def names(cells: list[str]) -> list[str]:
    return [word for cell in cells for word in re.findall(r"`([^`]+)`", cell)]


def test_every_manifest_form_is_in_the_reference() -> None:
    assert names([row[0] for row in rows("Manifest capabilities")]) == list(FORMS)


def test_the_reference_says_what_a_grant_allows_in_the_words_of_the_prompt() -> None:
    for _, example, allows in rows("Manifest capabilities"):
        sentence = describe_grant(parse_capability(names([example])[0]))
        assert allows == sentence.words + (" (**dangerous**)" if sentence.dangerous else "")


def test_the_reference_shows_every_warning_of_a_grant() -> None:
    listed = rows("Manifest capabilities", "What is flagged as dangerous")
    for example, warning in listed:
        assert describe_grant(parse_capability(names([example])[0])).warning == warning
    assert [warning for _, warning in listed] == [str(warning) for warning in GrantWarning]


def test_every_extension_capability_is_in_the_reference_with_what_it_includes() -> None:
    listed = {names([row[0]])[0]: set(names([row[2]])) for row in rows("Extension capabilities")}

    assert listed == {
        str(cap): set(map(str, closure(frozenset({cap})) - {cap})) for cap in ExtensionCapability
    }


def test_every_lua_power_is_in_the_reference() -> None:
    assert names([row[0] for row in rows("Lua powers")]) == list(map(str, LuaPower))


def test_every_error_code_of_the_kernel_is_in_the_reference() -> None:
    listed = names([row[0] for row in rows("Error codes")])

    assert listed == [error.code for error in ERRORS]


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_of_the_kernel_is_looked_at(error: type[KagedError]) -> None:
    defined = {
        kind for kind in _all_errors(KagedError) if kind.__module__.startswith("kaged.kernel.")
    }
    assert error in defined
    assert defined == set(ERRORS)


def _all_errors(kind: type[KagedError]) -> set[type[KagedError]]:
    return {kind}.union(*map(_all_errors, kind.__subclasses__()))
