from __future__ import annotations

from typing import ClassVar

import pytest

from kaged.kernel.decision import CapabilityDenied, Decision, SeccompInsufficient, fail_closed


class TeapotDenied(CapabilityDenied):
    code: ClassVar[str] = "teapot"


def test_an_allowed_decision_lets_the_caller_go_on() -> None:
    Decision.allow("tool.fs", "ro:fs:./x").require()


def test_a_denial_raises_with_rule_detail_and_remedy() -> None:
    with pytest.raises(CapabilityDenied) as caught:
        Decision.deny("tool.fs", "rw:fs:./x", "grant rw on ./x").require()

    assert caught.value.code == "capability_denied"
    assert caught.value.message == "rw:fs:./x"
    assert caught.value.fix == "grant rw on ./x"
    assert caught.value.data == {"rule": "tool.fs", "detail": "rw:fs:./x"}


def test_a_denial_without_words_names_its_rule() -> None:
    with pytest.raises(CapabilityDenied, match=r"denied by tool\.fs") as caught:
        Decision.deny("tool.fs", "").require()

    assert caught.value.fix is None


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("capability_denied", CapabilityDenied),
        ("seccomp_insufficient", SeccompInsufficient),
        ("teapot", TeapotDenied),
        ("a code without a class", CapabilityDenied),
    ],
)
def test_the_code_of_a_denial_chooses_its_error(code: str, kind: type[CapabilityDenied]) -> None:
    with pytest.raises(CapabilityDenied) as caught:
        Decision.deny("r", "d", code=code).require()

    assert type(caught.value) is kind


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
