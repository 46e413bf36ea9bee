from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from kaged.wire.correlator import (
    Admission,
    Correlator,
    Ignored,
    Inbound,
    OpenRequest,
    TooManyOpen,
)
from kaged.wire.errors import number_of_error
from kaged.wire.messages import Invalid, InvalidReason, MessageId, Response


def test_ids_count_up_from_one() -> None:
    correlator: Correlator[str] = Correlator()
    assert [correlator.open("a.b", "w").id for _ in range(5)] == [1, 2, 3, 4, 5]
    assert len(correlator) == 5


@given(st.permutations(range(1, 11)))
def test_answers_in_any_order_find_their_own_request(order: list[int]) -> None:
    correlator: Correlator[str] = Correlator()
    for number in range(1, 11):
        correlator.open(f"m.{number}", f"caller {number}")
    for number in order:
        settled = correlator.settle(Response(number, "r"))
        assert isinstance(settled, OpenRequest)
        assert (settled.method, settled.waiter) == (f"m.{number}", f"caller {number}")
    assert len(correlator) == 0


def test_answers_that_match_nothing_are_told_apart() -> None:
    correlator: Correlator[None] = Correlator()
    first = correlator.open("a.b", None)
    correlator.open("a.c", None)
    correlator.settle(Response(first.id))
    correlator.give_up(2)

    assert correlator.settle(Response(None)) is Ignored.NULL_ID
    assert correlator.settle(Response(0)) is Ignored.UNKNOWN
    assert correlator.settle(Response(-1)) is Ignored.UNKNOWN
    assert correlator.settle(Response(3)) is Ignored.UNKNOWN
    assert correlator.settle(Response(9999)) is Ignored.UNKNOWN
    assert correlator.settle(Response("1")) is Ignored.UNKNOWN
    assert correlator.settle(Response(1)) is Ignored.ANSWERED
    assert correlator.settle(Response(2)) is Ignored.LATE
    assert correlator.settle(Response(2)) is Ignored.ANSWERED


def test_a_late_answer_never_reaches_a_newer_request() -> None:
    correlator: Correlator[str] = Correlator()
    old = correlator.open("hook", "old")
    correlator.give_up(old.id)
    new = correlator.open("hook", "new")
    assert correlator.settle(Response(old.id, "late")) is Ignored.LATE
    assert correlator.settle(Response(new.id, "fresh")) is new


def test_giving_up_twice_or_after_the_answer_does_nothing() -> None:
    correlator: Correlator[None] = Correlator()
    request = correlator.open("a.b", None)
    assert correlator.give_up(request.id) is request
    assert correlator.give_up(request.id) is None
    other = correlator.open("a.b", None)
    correlator.settle(Response(other.id))
    assert correlator.give_up(other.id) is None
    assert correlator.settle(Response(other.id)) is Ignored.ANSWERED


def test_memory_of_what_was_given_up_is_bounded() -> None:
    correlator: Correlator[None] = Correlator(remembered_limit=3)
    for _ in range(5):
        correlator.give_up(correlator.open("a.b", None).id)
    outcomes = [correlator.settle(Response(number)) for number in range(1, 6)]
    assert outcomes == [Ignored.ANSWERED] * 2 + [Ignored.LATE] * 3


def test_the_cap_on_open_requests_refuses_without_using_an_id() -> None:
    correlator: Correlator[None] = Correlator(open_limit=2)
    correlator.open("a.b", None)
    correlator.open("a.b", None)
    with pytest.raises(TooManyOpen) as raised:
        correlator.open("a.b", None)
    assert number_of_error(raised.value) == -32005
    correlator.settle(Response(1))
    assert correlator.open("a.b", None).id == 3


def test_the_default_cap_is_64() -> None:
    correlator: Correlator[None] = Correlator()
    for _ in range(64):
        correlator.open("a.b", None)
    with pytest.raises(TooManyOpen):
        correlator.open("a.b", None)


def test_deadlines_expire_in_order_of_sending_and_leave_the_rest() -> None:
    correlator: Correlator[str] = Correlator()
    correlator.open("slow", "a", deadline_s=30.0)
    correlator.open("for ever", "b")
    correlator.open("quick", "c", deadline_s=10.0)
    correlator.open("quick", "d", deadline_s=5.0)

    assert correlator.next_deadline_s() == 5.0
    assert correlator.expire(4.99) == []
    assert [request.waiter for request in correlator.expire(10.0)] == ["c", "d"]
    assert correlator.next_deadline_s() == 30.0
    assert correlator.settle(Response(3)) is Ignored.LATE
    correlator.expire(30.0)
    assert correlator.next_deadline_s() is None
    assert len(correlator) == 1


def test_a_malformed_answer_ends_the_call_it_names() -> None:
    correlator: Correlator[str] = Correlator()
    request = correlator.open("a.b", "w")
    sent_by_them = Invalid(InvalidReason.PARAMS, request.id)
    assert correlator.settle_invalid(sent_by_them) is None
    answer = Invalid(InvalidReason.BOTH, request.id, is_answer=True)
    assert correlator.settle_invalid(answer) is request
    assert correlator.settle_invalid(answer) is None
    assert correlator.settle(Response(request.id)) is Ignored.ANSWERED


def test_a_reset_gives_back_the_lost_calls_and_counts_from_one_again() -> None:
    correlator: Correlator[str] = Correlator()
    correlator.give_up(correlator.open("a.b", "given up").id)
    correlator.open("a.b", "lost 1")
    correlator.open("a.b", "lost 2")
    assert [request.waiter for request in correlator.reset()] == ["lost 1", "lost 2"]
    assert correlator.settle(Response(1)) is Ignored.UNKNOWN
    assert correlator.open("initialize", "new").id == 1


def test_both_directions_may_use_the_same_number_at_once() -> None:
    ours: Correlator[str] = Correlator()
    theirs = Inbound()
    request = ours.open("a.b", "w")
    assert theirs.admit(request.id) is Admission.ADMITTED
    assert ours.settle(Response(request.id)) is request
    assert len(theirs) == 1
    theirs.answered()
    assert len(theirs) == 0


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([1, 2, 3], [Admission.ADMITTED] * 3),
        ([7, 7, "a"], [Admission.OUT_OF_STEP, Admission.ADMITTED, Admission.ADMITTED]),
        ([1, 1, 2], [Admission.ADMITTED, Admission.OUT_OF_STEP, Admission.ADMITTED]),
        ([1, 3], [Admission.ADMITTED, Admission.OUT_OF_STEP]),
        (["1"], [Admission.OUT_OF_STEP]),
        ([0], [Admission.OUT_OF_STEP]),
    ],
)
def test_ids_that_do_not_count_up_are_taken_and_reported_once(
    ids: list[MessageId], expected: list[Admission]
) -> None:
    inbound = Inbound()
    assert [inbound.admit(message_id) for message_id in ids] == expected
    assert len(inbound) == len(ids)


def test_too_many_requests_of_the_other_side_are_busy_until_one_is_answered() -> None:
    inbound = Inbound(open_limit=2)
    assert inbound.admit(1) is Admission.ADMITTED
    assert inbound.admit(2) is Admission.ADMITTED
    assert inbound.admit(3) is Admission.BUSY
    inbound.answered()
    assert inbound.admit(4) is Admission.ADMITTED


def test_more_answers_than_requests_is_a_mistake_of_ours() -> None:
    with pytest.raises(RuntimeError):
        Inbound().answered()


def test_a_reset_of_the_inbound_side_expects_one_again() -> None:
    inbound = Inbound()
    inbound.admit(5)
    inbound.reset()
    assert len(inbound) == 0
    assert inbound.admit(1) is Admission.ADMITTED
    assert inbound.admit(3) is Admission.OUT_OF_STEP


class CorrelatorMachine(RuleBasedStateMachine):
    """Any interleaving of sending, answering, giving up and respawning, against a plain model."""

    requests: Bundle[int] = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.correlator: Correlator[int] = Correlator(open_limit=5, remembered_limit=3)
        self.open: set[int] = set()
        self.sent = 0
        self.generation = 0

    @rule(target=requests)
    def send(self) -> int:
        if len(self.open) == 5:
            with pytest.raises(TooManyOpen):
                self.correlator.open("m", 0)
            return self.sent
        self.sent += 1
        assert self.correlator.open("m", self.sent).id == self.sent
        self.open.add(self.sent)
        return self.sent

    @rule(number=requests)
    def answer(self, number: int) -> None:
        settled = self.correlator.settle(Response(number))
        if number in self.open:
            assert isinstance(settled, OpenRequest)
            assert settled.waiter == number
            self.open.discard(number)
        else:
            assert isinstance(settled, Ignored)

    @rule(number=consumes(requests))
    def give_up(self, number: int) -> None:
        assert (self.correlator.give_up(number) is not None) == (number in self.open)
        self.open.discard(number)

    @rule()
    def respawn(self) -> None:
        assert {request.id for request in self.correlator.reset()} == self.open
        self.open.clear()
        self.sent = 0

    @invariant()
    def the_count_is_right(self) -> None:
        assert len(self.correlator) == len(self.open)


TestCorrelatorMachine = CorrelatorMachine.TestCase
