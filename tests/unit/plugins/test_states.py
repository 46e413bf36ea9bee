from __future__ import annotations

import itertools

import pytest

from kaged.plugins.states import TRANSITIONS, PluginState, require_transition
from raising import raises_code
from requirements import requirement

S = PluginState
ALLOWED = {
    (S.DISABLED, S.SPAWNING),
    (S.SPAWNING, S.RUNNING),
    (S.RUNNING, S.CRASHED),
    (S.CRASHED, S.SPAWNING),
    (S.CRASHED, S.FAILED),
    (S.FAILED, S.SPAWNING),
    (S.RUNNING, S.STOPPED),
    (S.SPAWNING, S.FAILED),
    (S.SPAWNING, S.CRASHED),
    (S.SPAWNING, S.STOPPED),
    (S.CRASHED, S.STOPPED),
    (S.CRASHED, S.DISABLED),
    (S.FAILED, S.DISABLED),
    (S.STOPPED, S.DISABLED),
    (S.STOPPED, S.SPAWNING),
}


@requirement("PH-SUP-37")
@pytest.mark.parametrize(("old", "new"), list(itertools.product(S, S)))
def test_only_the_listed_transitions_exist(old: S, new: S) -> None:
    if (old, new) in ALLOWED:
        require_transition("p", old, new)
    else:
        with raises_code("plugin_state_refused", match=f"p is {old} and cannot become {new}"):
            require_transition("p", old, new)


def test_every_state_can_be_left() -> None:
    assert set(TRANSITIONS) == set(S)
    assert {state.value for state in S} == {
        "disabled",
        "spawning",
        "running",
        "crashed",
        "failed",
        "stopped",
    }
