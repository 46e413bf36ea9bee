from __future__ import annotations

import pytest

from requirements import requirement
from unit.config.trials import OperatorFiles


@requirement("LC-GRANT-04")
def test_the_documented_grant_gives_exactly_its_two_names(operator: OperatorFiles) -> None:
    loaded = operator.config('[plugins.capabilities]\nrewind = ["session_write", "exec"]\n')
    grants = loaded.value.plugins.capabilities
    assert grants.of("rewind") == {"session_write", "exec"}
    assert grants.of("undo") == frozenset()
    assert grants.problems == ()


def test_one_unknown_word_grants_nothing_to_anyone_and_says_so(operator: OperatorFiles) -> None:
    loaded = operator.config('[plugins.capabilities]\nrewind = ["exce"]\nundo = ["exec"]\n')
    grants = loaded.value.plugins.capabilities
    assert grants.of("undo") == grants.of("rewind") == frozenset()
    (problem,) = grants.problems
    assert problem in loaded.warnings
    assert problem.line == 2
    for word in ("rewind", "exce", "session_write", "exec", "context"):
        assert word in problem.message
    assert problem.fix == "did you mean 'exec'?"


@requirement("LC-AMB-02")
def test_only_a_wrong_type_stops_the_grants(operator: OperatorFiles) -> None:
    absent = operator.config('[plugins.capabilities]\nnot-installed = ["exec"]\n')
    assert absent.warnings == ()
    double = operator.config('[plugins.capabilities]\nrewind = ["exec", "exec", "net"]\n')
    assert double.value.plugins.capabilities.grants["rewind"] == ("exec", "net")
    for wrong in ('"exec"', "5", "[5]", "true", "{ exec = true }"):
        loaded = operator.config(f'[plugins.capabilities]\nrewind = {wrong}\nundo = ["exec"]\n')
        grants = loaded.value.plugins.capabilities
        assert grants.of("undo") == frozenset()
        assert grants.problems[0].key_path.startswith("plugins.capabilities.rewind")


@pytest.mark.parametrize("text", ["plugins.capabilities = 5", "plugins.capabilities = []"])
def test_grants_that_are_no_table_grant_nothing(operator: OperatorFiles, text: str) -> None:
    grants = operator.config(text).value.plugins.capabilities
    assert grants.grants == {}
    assert grants.problems
