"""The protocol with a plugin as a state machine: every message in every state, without I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.base import JsonObject, KagedError
from kaged.config.manifest import parse_manifest
from kaged.peer.errors import PeerGone, PeerStalled, PeerTimeout
from kaged.plugins.conversation_commands import (
    Audit,
    AwaitExit,
    Command,
    Commands,
    DeliverConfig,
    Fail,
    FetchConfig,
    Forward,
    Initialize,
    Kill,
    KillUnlessExited,
    LogLine,
    Notify,
)
from kaged.plugins.conversation_machine import ConversationMachine, ConversationState
from kaged.plugins.errors import PluginConfigInvalid, StartFailed
from kaged.plugins.notifications import LIMIT_PER_S
from kaged.wire.correlator import Correlator, Ignored, OpenRequest
from kaged.wire.errors import ErrorCode, MethodNotFound, NotInitialized, RpcError
from kaged.wire.framing import FramingError, OversizeMessage
from kaged.wire.messages import (
    Batch,
    Invalid,
    InvalidReason,
    Noise,
    Notification,
    Refused,
    Request,
    Response,
    failure,
)
from kaged.wire.methods import RATE_LIMITED
from requirements import requirement

STARTING, HANDSHAKE, ANSWERED, CONFIGURING, READY, DRAINING, CLOSED = ConversationState
STATES = list(ConversationState)
BEFORE_ANSWER = [STARTING, HANDSHAKE]
IN_HANDSHAKE = [*BEFORE_ANSWER, ANSWERED]
OVER = [DRAINING, CLOSED]

MANIFEST = parse_manifest(
    """\
name: stub
version: 1.0.0
kaged_api: 1
description: Answers.
command: [./main]
capabilities: ["net:[]"]
methods: [a.b]
notifications: [a.told]
"""
).value
GOOD: JsonObject = {
    "name": "stub",
    "version": "1.0.0",
    "api_version": 1,
    "methods": ["a.b"],
    "notifications": ["a.said"],
}
TOO_EARLY = RpcError("later", number=ErrorCode.NOT_INITIALIZED)
VIOLATION = "plugin.protocol_violation"


def new_machine() -> ConversationMachine:
    return ConversationMachine(MANIFEST, daemon_version="1.2.3", initialize_timeout_s=10.0)


def in_state(state: ConversationState) -> ConversationMachine:
    """Return a machine that was led to `state` by events alone."""
    machine = new_machine()
    if state is STARTING:
        return machine
    machine.started(storage=False, projects=[])
    if state is ANSWERED:
        machine.initialize_settled()
    elif state in {CONFIGURING, READY, DRAINING, CLOSED}:
        machine.initialize_answered(Response(1, GOOD))
        machine.config_fetched({"a": 1} if state is CONFIGURING else None)
    if state in OVER:
        machine.drain()
    if state is CLOSED:
        machine.close()
    assert machine.state is state
    return machine


def audited(commands: Commands) -> list[str]:
    return [command.event for command in commands if isinstance(command, Audit)]


def violations(commands: Commands) -> list[object]:
    return [
        command.data["violation_type"]
        for command in commands
        if isinstance(command, Audit) and command.event == VIOLATION
    ]


def failure_of(commands: Commands) -> StartFailed:
    (error,) = [command.error for command in commands if isinstance(command, Fail)]
    return error


# -- the handshake -----------------------------------------------------------------------------


@requirement("PH-HAND-03", "PH-HAND-21")
def test_a_good_handshake_is_initialize_config_initialized() -> None:
    machine = new_machine()
    (initialize,) = machine.started(storage=True, projects=["one", "two"])
    assert initialize == Initialize(
        {
            "daemon_version": "1.2.3",
            "api_version": 1,
            "plugin_name": "stub",
            "storage_available": True,
            "projects": ["one", "two"],
        }
    )
    assert machine.initialize_answered(Response(1, GOOD)) == (FetchConfig(),)
    assert machine.config_fetched({"a": 1}) == (DeliverConfig({"a": 1}, overdue=True),)
    assert machine.state is CONFIGURING
    assert machine.config_answered(None) == (Notify("initialized"),)
    assert machine.state is READY
    assert machine.greeting is not None
    assert machine.greeting.methods == {"a.b"}


def test_without_a_config_initialized_follows_at_once() -> None:
    machine = new_machine()
    machine.started(storage=False, projects=[])
    machine.initialize_answered(Response(1, GOOD))
    assert machine.config_fetched(None) == (Notify("initialized"),)
    assert machine.state is READY


def test_what_the_manifest_and_the_answer_disagree_about_is_logged() -> None:
    machine = in_state(HANDSHAKE)
    *warnings, fetch = machine.initialize_answered(Response(1, {**GOOD, "methods": ["x.y"]}))
    assert fetch == FetchConfig()
    assert [isinstance(line, LogLine) and line.level for line in warnings] == ["warning"] * 2


@requirement("PH-HAND-22")
@pytest.mark.parametrize(
    ("answer", "event"),
    [
        ({**GOOD, "name": "other"}, "plugin.name_mismatch"),
        ({**GOOD, "version": "2.0.0"}, "plugin.version_mismatch"),
        ({**GOOD, "api_version": 2}, "plugin.api_mismatch"),
        ({**GOOD, "capabilities_used": ["net:*"]}, "plugin.capability_overreach"),
        ({**GOOD, "methods": "a.b"}, VIOLATION),
        ("hello", VIOLATION),
        (None, VIOLATION),
    ],
)
def test_a_bad_answer_is_audited_and_fails_the_start(answer: JsonObject, event: str) -> None:
    machine = in_state(HANDSHAKE)
    commands = machine.initialize_answered(Response(1, answer))
    assert audited(commands) == [event]
    failed = failure_of(commands)
    assert (failed.step, failed.event, failed.retry) == ("initialize", event, False)
    assert machine.greeting is None
    assert machine.config_fetched(None) == ()


def test_an_answer_without_result_and_error_fails_the_start() -> None:
    commands = in_state(HANDSHAKE).initialize_answered(Response(1, empty=True))
    assert failure_of(commands).event == VIOLATION


def test_an_error_as_the_answer_fails_the_start_for_good() -> None:
    commands = in_state(HANDSHAKE).handshake_lost(RpcError("no", number=-32000))
    failed = failure_of(commands)
    assert (failed.reason, failed.retry) == ("answered with -32000: no", False)


@requirement("PH-HAND-15")
def test_no_answer_in_time_is_audited_and_may_be_tried_again() -> None:
    commands = in_state(HANDSHAKE).handshake_lost(PeerTimeout("late"))
    assert audited(commands) == ["plugin.initialize_timeout"]
    failed = failure_of(commands)
    assert (failed.reason, failed.retry) == ("no answer to initialize in 10 s", True)


def test_an_exit_instead_of_an_answer_tells_how_it_ended_and_what_it_said() -> None:
    machine = in_state(HANDSHAKE)
    assert machine.exited("exited with 1", None) == ()  # nobody waits for it yet
    assert machine.handshake_lost(PeerGone("gone")) == (AwaitExit(),)
    failed = failure_of(machine.exited("exited with 1", "Traceback"))
    assert failed.reason == "it exited with 1; it said: Traceback"
    assert failed.retry
    assert machine.exited("exited with 1", "Traceback") == ()


def test_an_exit_between_the_answer_and_initialized_fails_the_start_too() -> None:
    machine = in_state(READY)
    assert machine.handshake_lost(PeerGone("gone")) == (AwaitExit(),)
    assert failure_of(machine.exited("exited with 0", None)).reason == "it exited with 0"


def test_a_plugin_that_does_not_read_fails_the_start_without_waiting_for_its_exit() -> None:
    failed = failure_of(in_state(READY).handshake_lost(PeerStalled("it does not read")))
    assert (failed.reason, failed.retry) == ("it does not read", True)


@pytest.mark.parametrize("state", [CONFIGURING, READY, DRAINING, CLOSED])
def test_a_second_answer_to_initialize_changes_nothing(state: ConversationState) -> None:
    machine = in_state(state)
    assert machine.initialize_answered(Response(1, {**GOOD, "name": "other"})) == ()
    assert machine.state is state


@pytest.mark.parametrize("state", [s for s in STATES if s is not STARTING])
def test_initialize_is_sent_once(state: ConversationState) -> None:
    machine = in_state(state)
    assert machine.started(storage=False, projects=[]) == ()
    assert machine.state is state


@pytest.mark.parametrize("state", [STARTING, *OVER])
def test_a_lost_handshake_means_nothing_where_there_is_none(state: ConversationState) -> None:
    assert in_state(state).handshake_lost(PeerGone("gone")) == ()


# -- the first config --------------------------------------------------------------------------


@requirement("PH-AMB-13")
def test_a_plugin_that_is_asked_too_early_gets_its_config_after_initialized() -> None:
    machine = in_state(CONFIGURING)
    commands = machine.config_answered(TOO_EARLY)
    assert commands == (Notify("initialized"), DeliverConfig({"a": 1}, overdue=False))
    assert machine.state is READY
    assert machine.config_answered(None) == ()


@requirement("PH-AMB-13")
def test_too_early_even_after_initialized_fails_the_start() -> None:
    machine = in_state(CONFIGURING)
    machine.config_answered(TOO_EARLY)
    failed = failure_of(machine.config_answered(TOO_EARLY))
    assert failed.reason == "it answers not_initialized even after initialized"


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(
    ("error", "retry"), [(PluginConfigInvalid("no"), False), (PeerTimeout("late"), True)]
)
def test_a_refused_config_fails_the_start_and_a_lost_one_may_be_tried_again(
    error: KagedError, *, retry: bool, again: bool
) -> None:
    machine = in_state(CONFIGURING)
    if again:
        machine.config_answered(TOO_EARLY)
    failed = failure_of(machine.config_answered(error))
    assert (failed.step, failed.retry) == ("config", retry)


@requirement("PH-AMB-13")
def test_a_plugin_that_holds_the_config_back_gets_initialized_without_it() -> None:
    machine = in_state(CONFIGURING)
    assert machine.config_overdue() == (Notify("initialized"),)
    assert machine.state is READY
    assert machine.config_overdue() == ()


@pytest.mark.parametrize(
    ("error", "killed"),
    [
        (None, False),
        (TOO_EARLY, False),
        (PeerTimeout("late"), False),
        (PluginConfigInvalid("no"), True),
    ],
)
def test_a_late_refusal_ends_the_process(error: KagedError | None, *, killed: bool) -> None:
    machine = in_state(CONFIGURING)
    machine.config_overdue()
    assert (Kill("config_refused") in machine.config_answered(error)) is killed


@pytest.mark.parametrize("state", [s for s in STATES if s is not CONFIGURING])
def test_an_answer_about_the_config_that_nobody_waits_for_is_dropped(
    state: ConversationState,
) -> None:
    machine = in_state(state)
    assert machine.config_answered(PluginConfigInvalid("no")) == ()
    assert machine.config_overdue() == ()
    assert machine.state is state


@pytest.mark.parametrize("state", [s for s in STATES if s is not ANSWERED])
def test_a_config_is_only_taken_after_the_answer(state: ConversationState) -> None:
    assert in_state(state).config_fetched({}) == ()


def test_a_config_that_is_answered_while_it_drains_starts_nothing() -> None:
    machine = in_state(CONFIGURING)
    machine.drain()
    assert machine.config_answered(None) == ()
    assert machine.state is DRAINING


# -- what the plugin sends unasked -------------------------------------------------------------

Sent: TypeAlias = Callable[[ConversationMachine], Commands]
UNASKED: dict[str, Sent] = {
    "request": lambda m: m.requested(Request(1, "kaged.storage.query")),
    "notification": lambda m: m.notified(Notification("a.told"), 0.0),
    "unknown answer": lambda m: m.ignored(Response(77, 1), Ignored.UNKNOWN),
    "duplicate answer": lambda m: m.ignored(Response(1, 1), Ignored.ANSWERED),
    "answer to nothing": lambda m: m.ignored(Response(None, 1), Ignored.NULL_ID),
}


@requirement("PH-HAND-23")
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("sent", UNASKED)
def test_only_ahead_of_the_answer_a_message_ends_the_process(
    sent: str, state: ConversationState
) -> None:
    machine = in_state(state)
    commands = UNASKED[sent](machine)
    if state in BEFORE_ANSWER:
        assert violations(commands) == ["message_before_initialize"]
        assert (Kill("message_before_initialize") in commands) is (state is HANDSHAKE)
    else:
        assert violations(commands) == []
        assert machine.end_reason is None
    assert machine.state is state


@requirement("PH-HAND-23")
def test_a_message_from_before_the_start_fails_it_without_initialize() -> None:
    machine = in_state(STARTING)
    UNASKED["notification"](machine)
    assert failure_of(machine.started(storage=False, projects=[])).event == VIOLATION
    assert machine.state is STARTING


def test_only_the_first_breach_of_the_handshake_is_told_and_it_outlives_a_good_answer() -> None:
    machine = in_state(HANDSHAKE)
    first = UNASKED["request"](machine)
    assert len(violations(first)) == 1
    assert UNASKED["notification"](machine) == ()
    failed = failure_of(machine.initialize_answered(Response(1, GOOD)))
    assert "request kaged.storage.query" in failed.reason


@pytest.mark.parametrize("error", [PeerGone("gone"), PeerTimeout("late"), TOO_EARLY])
def test_a_breach_of_the_handshake_is_the_reason_whatever_else_goes_wrong(
    error: KagedError,
) -> None:
    machine = in_state(HANDSHAKE)
    UNASKED["request"](machine)
    assert failure_of(machine.handshake_lost(error)).event == VIOLATION


def test_a_breach_right_behind_a_good_answer_still_fails_the_start() -> None:
    machine = in_state(ANSWERED)
    machine.initialize_answered(Response(1, GOOD))
    machine.refused(Batch(2))
    assert failure_of(machine.config_fetched(None)).event == VIOLATION


def test_a_late_answer_is_only_logged_even_ahead_of_the_answer() -> None:
    machine = in_state(HANDSHAKE)
    commands = machine.ignored(Response(1, 1), Ignored.LATE)
    assert commands == (LogLine("info", "plugin.answer_ignored", {"id": 1, "why": "late"}),)


@requirement("PH-HAND-23", "PH-METH-12")
@pytest.mark.parametrize("state", STATES)
def test_requests_are_served_in_ready_and_in_no_other_state(state: ConversationState) -> None:
    machine = in_state(state)
    request = Request(1, "kaged.storage.query")
    if state is READY:
        machine.require_servable(request, storage=True)
        with pytest.raises(MethodNotFound):
            machine.require_servable(request, storage=False)
        with pytest.raises(MethodNotFound):
            machine.require_servable(Request(2, "kaged.other"), storage=True)
        return
    with pytest.raises(NotInitialized) as refusal:
        machine.require_servable(request, storage=True)
    assert refusal.value.number == ErrorCode.NOT_INITIALIZED
    assert ("stopped" in refusal.value.message) is (state in OVER)


@pytest.mark.parametrize("state", STATES)
def test_calls_are_sent_in_ready_and_in_no_other_state(state: ConversationState) -> None:
    machine = in_state(state)
    if state is READY:
        machine.require_ready()
    else:
        with pytest.raises(PeerGone):
            machine.require_ready()


@pytest.mark.parametrize("kind", ["a.told", "a.said"])
def test_a_declared_notification_is_audited_and_forwarded(kind: str) -> None:
    commands = in_state(READY).notified(Notification(kind, {"x": 1}), 0.0)
    audit = Audit("plugin.notification", {"notification_type": kind, "declared": True})
    assert commands == (audit, Forward(kind, {"x": 1}))


def test_an_undeclared_notification_is_forwarded_with_a_warning() -> None:
    line, audit, forward = in_state(READY).notified(Notification("a.other"), 0.0)
    assert isinstance(line, LogLine)
    assert line.event == "plugin.notification_undeclared"
    assert isinstance(audit, Audit)
    assert audit.data["declared"] is False
    assert forward == Forward("a.other", None)


def test_a_notification_under_a_name_of_the_host_is_a_violation() -> None:
    commands = in_state(READY).notified(Notification("kaged.cancel"), 0.0)
    assert violations(commands) == ["notification_name"]


@requirement("PH-NOTIF-05")
def test_a_flood_is_told_to_the_plugin_once() -> None:
    machine = in_state(READY)
    for _ in range(LIMIT_PER_S):
        machine.notified(Notification("a.told"), 0.0)
    flood = machine.notified(Notification("a.told"), 0.0)
    assert Notify(RATE_LIMITED) in flood
    assert audited(flood) == ["plugin.notification_flood"]
    assert machine.notified(Notification("a.told"), 0.0) == ()
    assert machine.dropped_notifications == 2


@pytest.mark.parametrize("state", [ANSWERED, CONFIGURING, *OVER])
def test_notifications_outside_ready_are_dropped_with_a_log_line(
    state: ConversationState,
) -> None:
    (line,) = in_state(state).notified(Notification("a.told"), 0.0)
    assert line == LogLine("info", "plugin.notification_dropped", {"kind": "a.told"})


@requirement("PH-AMB-32")
@pytest.mark.parametrize("state", STATES)
def test_noise_is_audited_and_never_more(state: ConversationState) -> None:
    machine = in_state(state)
    assert audited(machine.refused(Noise(b"hello"))) == ["plugin.stdout_noise"]
    assert (machine.state, machine.end_reason) == (state, None)


@requirement("PH-AMB-32")
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    ("refused", "kind"),
    [(Batch(2), "batch"), (Invalid(InvalidReason.VERSION, 1), "invalid_message")],
)
def test_an_invalid_message_is_fatal_in_the_handshake_only(
    refused: Refused, kind: str, state: ConversationState
) -> None:
    machine = in_state(state)
    commands = machine.refused(refused)
    if state in IN_HANDSHAKE:
        assert violations(commands) == ["initialize.malformed"]
    else:
        assert violations(commands) == [kind]
    assert any(isinstance(c, Kill) for c in commands) is (state in {HANDSHAKE, ANSWERED})


# -- the end -----------------------------------------------------------------------------------


@requirement("PH-WIRE-07")
@pytest.mark.parametrize("state", STATES)
def test_an_oversize_message_ends_the_process(state: ConversationState) -> None:
    machine = in_state(state)
    commands = machine.broke(OversizeMessage("too long"))
    assert violations(commands) == [OversizeMessage.code]
    killed = state not in {STARTING, *OVER}
    assert (Kill(OversizeMessage.code) in commands) is killed
    if state in {HANDSHAKE, ANSWERED}:
        assert failure_of(machine.handshake_lost(PeerGone("gone"))).reason == "too long"


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("error", [FramingError("broken"), PeerStalled("does not read")])
def test_a_broken_conversation_ends_the_process(
    error: KagedError, state: ConversationState
) -> None:
    expected = () if state in {STARTING, *OVER} else (Kill(error.code),)
    assert in_state(state).broke(error) == expected


@pytest.mark.parametrize("state", STATES)
def test_a_closed_pipe_gives_the_process_a_moment_to_exit(state: ConversationState) -> None:
    machine = in_state(state)
    expected = () if state in OVER else (KillUnlessExited("output_closed"),)
    assert machine.stream_closed("output_closed") == expected
    if state not in OVER:
        assert machine.broke(PeerGone("gone")) == (KillUnlessExited("input_closed"),)


def test_a_closed_pipe_of_a_process_that_is_being_ended_means_nothing() -> None:
    machine = in_state(READY)
    assert machine.end("hang") == (Kill("hang"),)
    assert machine.stream_closed("output_closed") == ()


@pytest.mark.parametrize("state", STATES)
def test_only_the_first_reason_ends_a_process(state: ConversationState) -> None:
    machine = in_state(state)
    if state in {STARTING, *OVER}:
        assert machine.end("hang") == ()
        assert machine.end_reason is None
    else:
        assert machine.end("hang") == (Kill("hang"),)
        assert machine.end("health") == ()
        assert machine.end_reason == "hang"


@pytest.mark.parametrize("state", STATES)
def test_a_conversation_can_be_closed_in_every_state_and_stays_closed(
    state: ConversationState,
) -> None:
    machine = in_state(state)
    machine.drain()
    assert machine.state is (CLOSED if state is CLOSED else DRAINING)
    machine.close()
    machine.drain()
    machine.close()
    assert machine.state is CLOSED
    assert machine.started(storage=False, projects=[]) == ()
    assert machine.initialize_answered(Response(1, GOOD)) == ()


# -- any sequence ------------------------------------------------------------------------------


class Playbook:
    """Plays the driver and its connection in memory: real call ids, no pipes and no tasks."""

    def __init__(self) -> None:
        self.machine = new_machine()
        self.ids: Correlator[list[str]] = Correlator(open_limit=8)
        self.calls: list[OpenRequest[list[str]]] = []
        self.sent: list[str] = []
        self.failures: list[StartFailed] = []
        self.kills: list[str] = []
        self.states: list[ConversationState] = [self.machine.state]
        self.fatal_in_handshake = False

    def carry_out(self, commands: Commands) -> None:
        in_handshake = self.machine.state in IN_HANDSHAKE
        self.fatal_in_handshake |= in_handshake and bool(violations(commands))
        for command in commands:
            self._do(command)
        self.states.append(self.machine.state)

    def _do(self, command: Command) -> None:
        match command:
            case Initialize():
                self.ask("initialize")
            case DeliverConfig():
                self.ask("config.update")
            case FetchConfig():
                self.carry_out(self.machine.config_fetched({"a": 1}))
            case Notify(method):
                self.sent.append(method)
            case AwaitExit():
                self.carry_out(self.machine.exited("exited with 1", None))
            case Kill(reason):
                assert self.machine.state not in OVER
                self.kills.append(reason)
            case Fail(error):
                self.failures.append(error)
                self.close()
            case KillUnlessExited() | Forward() | Audit() | LogLine():
                pass

    def ask(self, method: str) -> None:
        self.sent.append(method)
        self.calls.append(self.ids.open(method, []))

    def call(self) -> None:
        if len(self.ids) == 8:
            return
        try:
            self.machine.require_ready()
        except PeerGone:
            assert self.machine.state is not READY
        else:
            assert "initialized" in self.sent
            self.ask("a.b")

    def answer(self, nth: int, response: Response) -> None:
        """Let the plugin answer its `nth` call, whether it is open or not."""
        number = self.calls[nth].id if nth < len(self.calls) else 1000 + nth
        self.take(Response(number, response.result, response.error, response.empty))

    def take(self, response: Response) -> None:
        settled = self.ids.settle(response)
        if not isinstance(settled, OpenRequest):
            self.carry_out(self.machine.ignored(response, settled))
            return
        settled.waiter.append("answered")
        error = None if response.error is None else response.error.to_exception()
        if settled.method == "config.update":
            self.carry_out(self.machine.config_answered(error))
        elif settled.method == "initialize":
            self.machine.initialize_settled()
            if error is None:
                self.carry_out(self.machine.initialize_answered(response))
            else:
                self.carry_out(self.machine.handshake_lost(error))

    def lose(self, error: KagedError) -> None:
        """Let the oldest open call end without an answer."""
        waiting = [call for call in self.calls if not call.waiter]
        if not waiting or self.ids.give_up(waiting[0].id) is None:
            return
        waiting[0].waiter.append(error.code)
        if waiting[0].method == "initialize":
            self.carry_out(self.machine.handshake_lost(error))
        elif waiting[0].method == "config.update":
            self.carry_out(self.machine.config_answered(error))

    def close(self) -> None:
        self.machine.drain()
        for call in self.ids.reset():
            call.waiter.append("gone")
        self.machine.close()


Step: TypeAlias = Callable[[Playbook], None]


def told(event: Sent) -> Step:
    return lambda book: book.carry_out(event(book.machine))


responses = st.sampled_from(
    [
        Response(0, GOOD),
        Response(0, {**GOOD, "name": "other"}),
        Response(0, empty=True),
        failure(0, -32000, "no"),
        failure(0, ErrorCode.NOT_INITIALIZED, "later"),
    ]
)
answers = st.builds(
    lambda nth, response: lambda book: book.answer(nth, response), st.integers(0, 6), responses
)
losses = st.sampled_from([PeerTimeout("late"), PeerGone("gone"), PluginConfigInvalid("no")]).map(
    lambda error: lambda book: book.lose(error)
)
others: list[Step] = [
    *map(told, UNASKED.values()),
    told(lambda m: m.started(storage=False, projects=[])),
    told(lambda m: m.config_overdue()),
    told(lambda m: m.refused(Noise(b"x"))),
    told(lambda m: m.refused(Batch(1))),
    told(lambda m: m.broke(OversizeMessage("too long"))),
    told(lambda m: m.broke(PeerGone("gone"))),
    told(lambda m: m.stream_closed("output_closed")),
    told(lambda m: m.end("hang")),
    told(lambda m: m.exited("exited with 0", None)),
    lambda book: book.machine.drain(),
    lambda book: book.take(Response(None, 1)),
    lambda book: book.close(),
]
good_start: list[Step] = [
    told(lambda m: m.started(storage=False, projects=[])),
    lambda book: book.answer(0, Response(0, GOOD)),
    lambda book: book.answer(1, Response(0, {})),
]
steps = st.one_of(answers, losses, st.sampled_from(others), st.just(lambda book: book.call()))
scripts = st.builds(
    lambda known, rest: [*good_start[:known], *rest],
    st.integers(0, len(good_start)),
    st.lists(steps, max_size=25),
)


@requirement("PH-HAND-22", "PH-WIRE-26")
@given(script=scripts)
def test_any_sequence_of_messages_keeps_the_promises(script: list[Step]) -> None:
    book = Playbook()
    for step in script:
        step(book)
        assert all(len(call.waiter) <= 1 for call in book.calls)
    book.close()

    assert all(len(call.waiter) == 1 for call in book.calls)
    assert book.sent.count("initialize") <= 1
    assert book.sent.count("initialized") <= 1
    assert book.sent.count("config.update") <= 2
    first_call = book.sent.index("a.b") if "a.b" in book.sent else len(book.sent)
    assert "initialize" not in book.sent[first_call:]
    assert "a.b" not in book.sent or "initialized" in book.sent[:first_call]
    assert len(book.failures) <= 1
    assert len(book.kills) <= 1
    order = [STATES.index(state) for state in book.states]
    assert order == sorted(order)
    assert not (book.fatal_in_handshake and READY in book.states)


def test_the_playbook_reaches_calls_and_their_answers() -> None:
    """The property above is worth little if its scripts never get this far."""
    book = Playbook()
    for step in good_start:
        step(book)
    book.call()
    book.call()
    book.answer(3, Response(0, 1))
    book.answer(3, Response(0, 2))
    book.close()
    assert book.sent == ["initialize", "config.update", "initialized", "a.b", "a.b"]
    assert [call.waiter for call in book.calls[2:]] == [["gone"], ["answered"]]
