from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.wire.methods import (
    SystemMethod,
    is_method_name,
    is_plugin_method_name,
    is_reserved_name,
)
from requirements import requirement


@requirement("PH-METH-15")
def test_method_names_follow_the_grammar() -> None:
    for name in ("presets.list", "a.b.c.d", "a1_.b_2", "preset.install", "models.pull"):
        assert is_method_name(name)
    for name in (
        "list",
        "a.b.c.d.e",
        "Presets.list",
        "pre-sets.list",
        "a..b",
        "1a.b",
        "",
        ".a.b",
        "a.b.",
        "a.b\n",
        "ä.b",
        "a. b",
        "a.1b",
        "_a.b",
        "a.٣",
        "a." + "b" * 300,
    ):
        assert not is_method_name(name)


@given(st.text(alphabet="abz019_.A-\n", max_size=20))
def test_the_grammar_is_the_documents_expression(name: str) -> None:
    pattern = r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*){1,3}"
    assert is_method_name(name) == bool(re.fullmatch(pattern, name, re.ASCII))


@pytest.mark.parametrize("name", ["kaged.foo", "system.foo", "kaged.storage.exec"])
def test_reserved_namespaces_are_not_for_plugins(name: str) -> None:
    assert is_method_name(name)
    assert is_reserved_name(name)
    assert not is_plugin_method_name(name)


@pytest.mark.parametrize("name", ["kagedx.foo", "systems.foo", "search.run", "catalog.updated"])
def test_other_namespaces_are_free(name: str) -> None:
    assert is_plugin_method_name(name)


def test_the_system_methods_are_the_seven_of_the_contract() -> None:
    assert {str(method) for method in SystemMethod} == {
        "initialize",
        "initialized",
        "shutdown",
        "ping",
        "config.update",
        "projects.activated",
        "projects.deactivated",
    }
