"""What guests cause beyond their share is counted, exactly, and told in one event."""

from __future__ import annotations

import pytest

from kaged.audit.event import AuditEvent
from kaged.audit.events import EVENT_TYPES, FieldKind
from kaged.audit.events.causes import CAUSES, CauseKind
from kaged.audit.folding import OTHERS, FoldingGate, FoldingLimits
from kaged.base import JsonObject, JsonValue, ManualClock

LIMITS = FoldingLimits(burst=5, per_s=0.1, details=3, guests=4)
SAMPLES: dict[FieldKind, JsonValue] = {
    FieldKind.INTEGER: 1,
    FieldKind.NUMBER: 1.0,
    FieldKind.FLAG: True,
    FieldKind.LIST: [],
    FieldKind.OBJECT: {},
    FieldKind.TAIL: [],
}


class _Lab:
    """A gate, and the events that it hands out."""

    def __init__(self, limits: FoldingLimits = LIMITS) -> None:
        self.clock = ManualClock()
        self.began = 0
        self.gate = FoldingGate(self.clock, self._begin, limits)

    def _begin(self) -> None:
        self.began += 1

    def noise(self, plugin: str, count: int) -> int:
        """Let a plugin write so many lines; returns how many become rows."""
        made = AuditEvent("plugin.stdout_noise", {"name": plugin, "line": "x"})
        return sum(not self.gate.fold(made) for _ in range(count))

    def drained(self) -> list[JsonObject]:
        """Return what was counted."""
        found: list[JsonObject] = []

        def write(event: AuditEvent) -> bool:
            found.append(event.data)
            return True

        self.gate.drain(write)
        return found


def _sample(name: str, **more: JsonValue) -> AuditEvent:
    fields = {one.name: SAMPLES.get(one.kind, "x") for one in EVENT_TYPES[name].fields}
    only = CAUSES[name].only
    return AuditEvent(name, {**fields, **(dict([only]) if only else {}), **more})


def test_the_catalogue_says_of_each_event_whether_a_guest_can_cause_it() -> None:
    assert CAUSES.keys() == EVENT_TYPES.keys()


@pytest.mark.parametrize("name", sorted(CAUSES))
def test_a_decision_fits_its_event(name: str) -> None:
    cause, declared = CAUSES[name], EVENT_TYPES[name]
    assert {*cause.guest, *cause.detail, *cause.sums} <= declared.by_name.keys()
    if declared.gates:
        assert cause.kind in {CauseKind.HOST, CauseKind.EFFECT}, "what gates is never folded"
    if cause.kind in {CauseKind.EFFECT, CauseKind.CALL}:
        assert cause.limit, "what is never folded is bounded by something else"


@pytest.mark.parametrize(
    "name", sorted(name for name, one in CAUSES.items() if one.kind is CauseKind.GUEST)
)
def test_a_flood_of_each_kind_is_bounded_and_counted(name: str) -> None:
    lab = _Lab(FoldingLimits())
    rows = sum(not lab.gate.fold(_sample(name)) for _ in range(10_000))
    assert rows == 100
    [folded] = lab.drained()
    assert (folded["kind"], folded["count"]) == (name, 9900)


@pytest.mark.parametrize("name", ["file.written", "cage.started", "plugin.crashed"])
def test_what_was_done_is_never_folded(name: str) -> None:
    lab = _Lab()
    assert not any(lab.gate.fold(_sample(name)) for _ in range(1000))


def test_an_operation_that_was_carried_out_is_never_folded() -> None:
    lab = _Lab()
    done = _sample("capability_invoke", outcome="ok")
    assert not any(lab.gate.fold(done) for _ in range(1000))


def test_each_guest_has_a_share_of_its_own_and_it_comes_back() -> None:
    lab = _Lab()
    assert lab.noise("a", 20) == 5
    assert lab.noise("b", 20) == 5
    lab.clock.advance(10)
    assert lab.noise("a", 20) == 1
    lab.clock.advance(1000)
    assert lab.noise("a", 20) == 5
    counts = {str(one["guest"]): one["count"] for one in lab.drained()}
    assert counts == {"a": 15 + 19 + 15, "b": 15}
    assert lab.drained() == []


def test_the_first_of_another_kind_is_not_hidden_and_the_rest_is_told_apart() -> None:
    lab = _Lab()

    def denied(table: str) -> bool:
        fields: JsonObject = {"name": "a", "sql": "select", "table": table}
        return not lab.gate.fold(AuditEvent("plugin.storage_denied", fields))

    assert sum(denied("t1") for _ in range(100)) == 5
    assert denied("t2")
    assert denied("t3")
    assert not denied("t4")  # as many as are told apart
    assert not denied("t2")
    [folded] = lab.drained()
    assert folded["count"] == 97
    assert folded["details"] == [
        {"table": "t1", "count": 95},
        {"table": "t2", "count": 1},
        {"count": 1},
    ]


def test_numbers_are_added_up() -> None:
    lab = _Lab()
    sent = _sample("cage.net.connected", bytes_up=10, bytes_down=2)
    for _ in range(8):
        lab.gate.fold(sent)
    [folded] = lab.drained()
    [detail] = folded["details"]  # type: ignore[misc]
    assert detail["sums"] == {"bytes_up": 30, "bytes_down": 6}  # type: ignore[index, call-overload]


def test_what_cannot_be_written_stays_counted() -> None:
    lab = _Lab()
    lab.noise("a", 15)
    lab.gate.drain(lambda _event: False)
    assert lab.gate.has_folded
    lab.noise("a", 10)
    [folded] = lab.drained()
    assert folded["count"] == 20


def test_guests_beyond_as_many_as_are_remembered_share_what_is_left() -> None:
    lab = _Lab()
    for number in range(50):
        lab.noise(f"guest-{number}", 10)
    told = {str(one["guest"]): one["count"] for one in lab.drained()}
    assert set(told) == {"guest-0", "guest-1", "guest-2", "guest-3", OTHERS}
    assert told[OTHERS] == 46 * 10 - 5


def test_the_first_count_is_told_once_until_it_is_drained() -> None:
    lab = _Lab()
    lab.noise("a", 20)
    lab.noise("b", 20)
    assert lab.began == 1
    lab.drained()
    lab.noise("a", 1)
    assert lab.began == 2


def test_a_closed_gate_counts_nothing() -> None:
    lab = _Lab()
    lab.noise("a", 20)
    lab.gate.close()
    assert lab.noise("a", 20) == 20
