"""`ConversationMachine`: the protocol with one plugin process, without I/O, tasks or a clock.

Every method but the questions is an event: it changes the state and returns the commands that the
driver (`PluginConversation`) carries out in that order.

    starting → handshake → answered → configuring → ready → draining → closed

Any state may go to draining. Which answer belongs to which call is decided in `wire.correlator`.
"""

from __future__ import annotations

from enum import StrEnum

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.config.manifest import Manifest
from kaged.peer.errors import PeerGone, PeerTimeout
from kaged.plugins import handshake
from kaged.plugins.conversation_commands import (
    Audit,
    AwaitExit,
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
from kaged.plugins.errors import PluginConfigInvalid, StartFailed
from kaged.plugins.handshake import HandshakeFault, HandshakeResult
from kaged.plugins.notifications import NotificationGate, NotificationVerdict
from kaged.wire.correlator import Ignored
from kaged.wire.errors import ErrorCode, MethodNotFound, NotInitialized, RpcError
from kaged.wire.framing import OversizeMessage
from kaged.wire.messages import Batch, Noise, Notification, Refused, Request, Response
from kaged.wire.methods import RATE_LIMITED, EventsMethod, StorageMethod, SystemMethod

EVENTS_METHODS = frozenset(method.value for method in EventsMethod)
STORAGE_METHODS = frozenset(method.value for method in StorageMethod) | {
    "kaged.storage.begin",
    "kaged.storage.commit",
    "kaged.storage.rollback",
}
VIOLATION = "plugin.protocol_violation"


class ConversationState(StrEnum):
    """Where the conversation stands."""

    STARTING = "starting"  # the process is being started; initialize was not sent
    HANDSHAKE = "handshake"  # waiting for the answer to initialize
    ANSWERED = "answered"  # the answer has arrived and is not judged yet
    CONFIGURING = "configuring"  # accepted; config.update was sent, initialized was not
    READY = "ready"  # calls can be made
    DRAINING = "draining"  # being stopped; calls under way may still be answered
    CLOSED = "closed"


class _Delivery(StrEnum):
    """Which delivery of the first config has no answer yet."""

    NONE = "none"
    EARLY = "early"  # ahead of initialized
    LATE = "late"  # ahead of initialized, which was sent without waiting any longer
    AGAIN = "again"  # after initialized, because the plugin wanted it so


# Until initialize was answered, nothing else may arrive (PH-HAND-23).
_AHEAD_OF_ANSWER = frozenset({ConversationState.STARTING, ConversationState.HANDSHAKE})
_HANDSHAKE = _AHEAD_OF_ANSWER | {ConversationState.ANSWERED}
_OVER = frozenset({ConversationState.DRAINING, ConversationState.CLOSED})


class ConversationMachine:
    """Decides what every event of one plugin process means in the present state."""

    def __init__(
        self, manifest: Manifest, *, daemon_version: str, initialize_timeout_s: float
    ) -> None:
        self.state = ConversationState.STARTING
        self.greeting: HandshakeResult | None = None
        self.end_reason: str | None = None
        self._manifest = manifest
        self._daemon_version = daemon_version
        self._initialize_timeout_s = initialize_timeout_s
        self._gate = NotificationGate()
        self._fault: StartFailed | None = None
        self._config: JsonObject = {}
        self._delivery = _Delivery.NONE
        self._awaits_exit = False

    @property
    def dropped_notifications(self) -> int:
        """How many notifications were dropped for their rate."""
        return self._gate.dropped

    def require_ready(self) -> None:
        """Raise PeerGone unless a call may be sent now."""
        if self.state is not ConversationState.READY:
            raise PeerGone(f"{self._manifest.name} takes no calls ({self.state})")

    # -- the handshake -------------------------------------------------------------------------

    def started(
        self, *, storage: bool, projects: list[str], files: JsonObject | None = None
    ) -> Commands:
        """Called when the process runs. `storage` says whether it can use its tables."""
        if self.state is not ConversationState.STARTING:
            return ()
        if self._fault is not None:
            return (Fail(self._fault),)
        self.state = ConversationState.HANDSHAKE
        params = handshake.greeting_params(
            self._manifest, self._daemon_version, storage=storage, projects=projects, files=files
        )
        return (Initialize(params),)

    def initialize_settled(self) -> None:
        """Called when the answer to initialize was read, ahead of the event that tells which.

        The driver wakes a turn of its loop later, and what the plugin wrote behind the answer is
        not ahead of it.
        """
        if self.state is ConversationState.HANDSHAKE:
            self.state = ConversationState.ANSWERED

    def initialize_answered(self, response: Response) -> Commands:
        """Called when the plugin answered initialize with a result."""
        if self.state not in _HANDSHAKE or self.greeting is not None:
            return ()
        self.state = ConversationState.ANSWERED
        checked = handshake.check_greeting(response, self._manifest)
        if isinstance(checked, HandshakeFault):
            failed = StartFailed("initialize", checked.reason, event=checked.event)
            return Audit(checked.event, checked.data), Fail(failed)
        if self._fault is not None:
            return (Fail(self._fault),)
        self.greeting = checked
        warnings = [
            LogLine("warning", "plugin.handshake_warned", {"detail": text})
            for text in checked.warnings
        ]
        return *warnings, FetchConfig()

    def handshake_lost(self, error: KagedError) -> Commands:
        """Called when initialize got an error or no answer, or initialized could not be sent."""
        if self.state in _OVER or self.state is ConversationState.STARTING:
            return ()
        if self._fault is not None:
            return (Fail(self._fault),)
        if isinstance(error, PeerTimeout):
            timeout_s = self._initialize_timeout_s
            event, reason = (
                "plugin.initialize_timeout",
                f"no answer to initialize in {timeout_s:g} s",
            )
            return (
                Audit(event, {"reason": "initialize.timeout", "timeout_sec": timeout_s}),
                Fail(StartFailed("initialize", reason, retry=True, event=event)),
            )
        if isinstance(error, RpcError):
            reason = f"answered with {error.number}: {error.message}"
            return (Fail(StartFailed("initialize", reason)),)
        if not isinstance(error, PeerGone):
            return (Fail(StartFailed("initialize", error.message, retry=True)),)
        self._awaits_exit = True
        return (AwaitExit(),)

    def exited(self, detail: str, last_line: str | None) -> Commands:
        """Called when the process is gone that `AwaitExit` waits for, with its last stderr line."""
        if not self._awaits_exit or self.state in _OVER:
            return ()
        self._awaits_exit = False
        said = "" if last_line is None else f"; it said: {last_line}"
        return (Fail(StartFailed("initialize", f"it {detail}{said}", retry=True)),)

    def config_fetched(self, config: JsonObject | None) -> Commands:
        """Called when the host has a first config for the plugin, or none."""
        if self.state is not ConversationState.ANSWERED or self.greeting is None:
            return ()
        if self._fault is not None:
            return (Fail(self._fault),)
        if config is None:
            return self._be_ready()
        self.state = ConversationState.CONFIGURING
        self._config = config
        self._delivery = _Delivery.EARLY
        return (DeliverConfig(config, overdue=True),)

    def config_overdue(self) -> Commands:
        """Called when the config has waited: the plugin may take it after initialized only."""
        if self.state is not ConversationState.CONFIGURING:
            return ()
        self._delivery = _Delivery.LATE
        return self._be_ready()

    def config_answered(self, error: KagedError | None) -> Commands:
        """Called when the plugin took its first config (None), refused it or did not answer."""
        delivery, self._delivery = self._delivery, _Delivery.NONE
        if self.state in _OVER:
            return ()
        too_early = isinstance(error, RpcError) and error.number == ErrorCode.NOT_INITIALIZED
        match delivery:
            case _Delivery.EARLY if too_early:
                self._delivery = _Delivery.AGAIN
                return *self._be_ready(), DeliverConfig(self._config, overdue=False)
            case _Delivery.EARLY:
                return self._be_ready() if error is None else (Fail(_config_fault(error)),)
            case _Delivery.AGAIN if too_early:
                reason = "it answers not_initialized even after initialized"
                return (Fail(StartFailed("config", reason)),)
            case _Delivery.AGAIN:
                return () if error is None else (Fail(_config_fault(error)),)
            case _Delivery.LATE if error is not None and not too_early:
                fault = _config_fault(error)
                line = LogLine("warning", "plugin.config_failed_late", {"problem": fault.reason})
                return (line,) if fault.retry else (line, *self.end("config_refused"))
            case _Delivery.LATE | _Delivery.NONE:
                return ()

    def _be_ready(self) -> Commands:
        self.state = ConversationState.READY
        return (Notify(SystemMethod.INITIALIZED),)

    # -- what the plugin sends unasked ---------------------------------------------------------

    def requested(self, request: Request) -> Commands:
        """Called when a request arrives; `require_servable` decides about it in its turn."""
        if self.state in _AHEAD_OF_ANSWER:
            return self._violate("message_before_initialize", f"request {request.method[:100]}")
        return ()

    def require_servable(self, request: Request, *, storage: bool) -> None:
        """Raise NotInitialized or MethodNotFound unless the host answers it now."""
        if self.state in _OVER:
            raise NotInitialized("the plugin is being stopped")
        if self.state is not ConversationState.READY:
            raise NotInitialized("the handshake is not complete")
        if request.method in EVENTS_METHODS:
            return
        if not storage or request.method not in STORAGE_METHODS:
            raise MethodNotFound(f"the host has no method {request.method[:100]}")

    def notified(self, notification: Notification, now_s: float) -> Commands:
        """Called when a notification arrives, at `now_s` on the monotonic clock."""
        kind = notification.method
        if self.state in _AHEAD_OF_ANSWER:
            return self._violate("message_before_initialize", f"notification {kind[:100]}")
        if self.state is not ConversationState.READY:
            return (LogLine("info", "plugin.notification_dropped", {"kind": kind[:100]}),)
        judged = self._gate.judge(kind, now_s)
        match judged.verdict:
            case NotificationVerdict.ILLEGAL:
                return _violation("notification_name", f"{kind[:100]!r} is no legal name")
            case NotificationVerdict.FLOOD:
                data: JsonObject = {"rate": judged.rate, "dropped": judged.dropped}
                return (
                    LogLine("warning", "plugin.notifications_dropped", {"rate": judged.rate}),
                    Audit("plugin.notification_flood", data),
                    Notify(RATE_LIMITED),
                )
            case NotificationVerdict.ACCEPT:
                return self._accept(kind, notification.params)
            case NotificationVerdict.DROP:
                return ()

    def _accept(self, kind: str, params: JsonValue) -> Commands:
        said = self.greeting.notifications if self.greeting is not None else ()
        declared = kind in self._manifest.notifications or kind in said
        data: JsonObject = {"notification_type": kind, "declared": declared}
        accepted = (Audit("plugin.notification", data), Forward(kind, params))
        if declared:
            return accepted
        return LogLine("warning", "plugin.notification_undeclared", {"kind": kind}), *accepted

    def refused(self, refused: Refused) -> Commands:
        """Called when a line arrives that is no message."""
        if isinstance(refused, Noise):
            line: JsonObject = {"line": refused.excerpt()}
            return LogLine("warning", "plugin.stdout_noise", line), Audit(
                "plugin.stdout_noise", line
            )
        batch = isinstance(refused, Batch)
        detail = "a batch" if batch else f"not JSON-RPC ({refused.reason})"
        if self.state in _HANDSHAKE:
            return self._violate("initialize.malformed", detail)
        return _violation("batch" if batch else "invalid_message", detail)

    def ignored(self, response: Response, why: Ignored) -> Commands:
        """Called when an answer arrives that belongs to no open call."""
        if self.state in _AHEAD_OF_ANSWER and why is not Ignored.LATE:
            return self._violate("message_before_initialize", f"an answer to request {response.id}")
        return (LogLine("info", "plugin.answer_ignored", {"id": response.id, "why": why.value}),)

    # -- the end -------------------------------------------------------------------------------

    def broke(self, error: KagedError) -> Commands:
        """Called when the framing is broken, or the plugin does not read or closed its input."""
        if isinstance(error, PeerGone):
            return self.stream_closed("input_closed")
        if not isinstance(error, OversizeMessage):
            return self.end(error.code)
        if self.state in _HANDSHAKE and self._fault is None:
            self._fault = StartFailed("initialize", error.message, event=VIOLATION)
        return *_violation(error.code, error.message), *self.end(error.code)

    def stream_closed(self, reason: str) -> Commands:
        """Called when one of its pipes ended; a process that lives on without one is of no use.

        Mostly this is the first sign of an exit, whose own code says more than the host could.
        """
        if self.state in _OVER or self.end_reason is not None:
            return ()
        return (KillUnlessExited(reason),)

    def end(self, reason: str) -> Commands:
        """Called to end a process that is sick or breaks the protocol; the first reason counts."""
        running = self.state not in _OVER and self.state is not ConversationState.STARTING
        if not running or self.end_reason is not None:
            return ()
        self.end_reason = reason
        return (Kill(reason),)

    def drain(self) -> None:
        """Called when the process is about to be stopped or cleared away."""
        if self.state is not ConversationState.CLOSED:
            self.state = ConversationState.DRAINING

    def close(self) -> None:
        """Called when the pipes are closed: nothing more can arrive."""
        self.state = ConversationState.CLOSED

    def _violate(self, kind: str, detail: str) -> Commands:
        """Report the first breach of the handshake and end the process for it."""
        if self._fault is not None:
            return ()
        reason = f"it broke the protocol ({kind}: {detail})"
        self._fault = StartFailed("initialize", reason, event=VIOLATION)
        return *_violation(kind, detail), *self.end(kind)


def _violation(kind: str, detail: str) -> Commands:
    return (
        LogLine("warning", "plugin.protocol_violated", {"kind": kind, "detail": detail}),
        Audit(VIOLATION, {"violation_type": kind, "detail": detail}),
    )


def _config_fault(error: KagedError) -> StartFailed:
    """Return why the start fails: a refusal is final, a lost answer is worth another try."""
    failed = StartFailed("config", error.message, retry=not isinstance(error, PluginConfigInvalid))
    failed.__cause__ = error
    return failed
