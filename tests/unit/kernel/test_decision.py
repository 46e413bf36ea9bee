from __future__ import annotations

import pytest

from kaged.kernel.decision import Decision, fail_closed


def test_a_check_that_breaks_says_no_and_tells_the_caller_nothing() -> None:
    @fail_closed("some.rule")
    def check(secret: str) -> Decision:
        raise KeyError(secret)

    decision = check("hunter2")

    assert not decision.allowed
    assert decision.rule == "some.rule"
    assert "hunter2" not in decision.detail + decision.remedy
    assert "KeyError: 'hunter2'" in decision.fault


def test_a_check_that_works_is_left_alone() -> None:
    yes = Decision.allow("some.rule")

    assert fail_closed("other.rule")(lambda: yes)() is yes


def test_cancellation_passes_through_a_check() -> None:
    @fail_closed("some.rule")
    def check() -> Decision:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check()
