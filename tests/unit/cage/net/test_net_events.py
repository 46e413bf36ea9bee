from __future__ import annotations

from kaged.base import ManualClock
from kaged.cage.net.events import (
    ConnectionEnd,
    ConnectVia,
    DenialLog,
    NetEvent,
    Recorder,
    shown_host,
)


def recorder(clock: ManualClock, sink: list[NetEvent], limit: int = 3) -> Recorder:
    denials = DenialLog(sink.append, clock, limit=limit, window_s=10)
    return Recorder("plugin:x", "c1", sink.append, clock, denials)


def deny(records: Recorder, host: str) -> None:
    records.denied(ConnectVia.DIRECT, host, 443, "net.host", f"net:{host}:443")


def test_a_connection_is_recorded_with_bytes_and_duration_and_a_denial_with_its_reason(
    clock: ManualClock,
) -> None:
    sent = list[NetEvent]()
    records = recorder(clock, sent)
    started = records.now_s()
    clock.advance(1.5)
    records.connected(
        ConnectVia.CONNECT,
        "api.test",
        443,
        started,
        ConnectionEnd.CLOSED,
        address="9.9.9.9",
        bytes_up=3,
        bytes_down=5,
    )
    assert sent[0].name == "cage.net.connected"
    assert sent[0].data() == {
        "cage_id": "c1",
        "what": "plugin:x",
        "protocol": "connect",
        "host": "api.test",
        "port": 443,
        "address": "9.9.9.9",
        "outcome": "closed",
        "detail": "",
        "bytes_up": 3,
        "bytes_down": 5,
        "duration_ms": 1500,
    }
    deny(records, "evil.test")
    assert sent[1].data() == {
        "cage_id": "c1",
        "what": "plugin:x",
        "protocol": "direct",
        "host": "evil.test",
        "port": 443,
        "address": None,
        "outcome": "denied",
        "reason": "net:evil.test:443",
        "rule": "net.host",
        "count": 1,
    }


def test_the_first_denial_of_a_kind_is_sent_at_once_and_repeats_are_counted(
    clock: ManualClock,
) -> None:
    sent = list[NetEvent]()
    records = recorder(clock, sent)
    for _ in range(1000):
        deny(records, "evil.test")
    assert [(one.host, one.count) for one in sent] == [("evil.test", 1)]
    clock.advance(10)
    deny(records, "evil.test")
    assert [(one.host, one.count) for one in sent] == [
        ("evil.test", 1),
        ("evil.test", 999),
        ("evil.test", 1),
    ]


def test_many_different_denials_are_counted_together_beyond_the_limit(clock: ManualClock) -> None:
    sent = list[NetEvent]()
    records = recorder(clock, sent)
    for number in range(100):
        deny(records, f"h{number}.test")
    assert len(sent) == 3
    records.flush()
    assert len(sent) == 4
    assert (sent[3].host, sent[3].count) == ("", 97)
    records.flush()
    assert len(sent) == 4


def test_no_denial_is_lost_from_the_count(clock: ManualClock) -> None:
    sent = list[NetEvent]()
    records = recorder(clock, sent)
    for number in range(500):
        deny(records, f"h{number % 7}.test")
        clock.advance(0.1)
    records.over_limit(ConnectVia.PROXY, "handshakes")
    records.flush()
    assert sum(one.count for one in sent) == 501
    assert sent[-1].rule == "net.limit" or any(one.ending is ConnectionEnd.LIMIT for one in sent)


def test_text_from_a_cage_is_escaped_and_bounded() -> None:
    assert shown_host("a\n\x1b[31mb\0é") == "a\\n\\x1b[31mb\\x00\\xe9"
    assert len(shown_host("\0" * 10_000)) <= 255
