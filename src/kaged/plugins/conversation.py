"""`PluginConversation`: one process of one plugin, from its spawn to its end.

open: spawn → initialize → check → config.update → initialized. Then calls, until it is stopped,
breaks the protocol or ends. A restart is a new conversation with fresh id counters (PH-WIRE-20).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from kaged.base import JsonObject, JsonValue, KagedError, Tasks
from kaged.cage import CageError, ExitReport, StopReport
from kaged.kernel.capabilities import CapabilityInvalid, StorageCapability
from kaged.peer import Connection, PeerGone, PeerProcess, PeerTimeout
from kaged.plugins import handshake
from kaged.plugins.environment import cage_request
from kaged.plugins.errors import PluginConfigInvalid, StartFailed
from kaged.plugins.handshake import Greeting, HandshakeFault
from kaged.plugins.installed import InstalledPlugin
from kaged.plugins.notifications import NotificationGate, Verdict
from kaged.plugins.parts import HostParts
from kaged.plugins.starts import waited_for_cpu_s
from kaged.wire.correlator import Ignored
from kaged.wire.errors import ErrorCode, MethodNotFound, NotInitialized, RpcError
from kaged.wire.framing import OversizeMessage
from kaged.wire.messages import Batch, MessageId, Noise, Notification, Refused, Request, Response
from kaged.wire.methods import RATE_LIMITED, StorageMethod, SystemMethod

EXIT_GRACE_S = 1.0
STORAGE_METHODS = frozenset(method.value for method in StorageMethod) | {
    "kaged.storage.begin",
    "kaged.storage.commit",
    "kaged.storage.rollback",
}


class Phase(StrEnum):
    """Where the conversation stands."""

    GREETING = "greeting"  # waiting for the answer to initialize
    CONFIGURING = "configuring"  # answered; config.update, not yet initialized
    READY = "ready"
    ENDING = "ending"


class PluginConversation:
    """The host's side of one plugin process. Owner of its connection."""

    def __init__(self, plugin: InstalledPlugin, parts: HostParts) -> None:
        self.plugin = plugin
        self.greeting: Greeting | None = None
        self.config: JsonObject | None = None
        self._parts = parts
        self._log = parts.log.bind(plugin=plugin.name)
        self._phase = Phase.GREETING
        self._greeting_sent = False
        self._gate = NotificationGate()
        self._fault: StartFailed | None = None
        self._fatal: str | None = None
        self._killed_by_force = False
        self._tasks = Tasks(f"plugin {plugin.name}", self._failed)
        self._peer: PeerProcess | None = None
        self._ended: asyncio.Task[ExitReport] | None = None

    # -- what it is ----------------------------------------------------------------------------

    @property
    def peer(self) -> PeerProcess:
        """The process and its connection; only after `open` began."""
        if self._peer is None:
            raise PeerGone(f"{self.plugin.name} has no process")
        return self._peer

    @property
    def pid(self) -> int | None:
        """The process id of the cage, None before the spawn."""
        return None if self._peer is None else self._peer.process.pid

    @property
    def ready(self) -> bool:
        """Whether calls can be made."""
        return self._phase is Phase.READY and self._peer is not None

    @property
    def dropped_notifications(self) -> int:
        """How many notifications were dropped for their rate."""
        return self._gate.dropped

    @property
    def ended_by_us(self) -> str | None:
        """Why the host ended it (health, hang, protocol), None when it ended by itself."""
        return self._fatal

    @property
    def killed_by_force(self) -> bool:
        """Whether SIGKILL was needed to end it."""
        return self._killed_by_force

    # -- beginning -----------------------------------------------------------------------------

    async def open(
        self, projects: Mapping[str, Path], config: Callable[[], JsonObject | None]
    ) -> Greeting:
        """Start the process and shake hands.

        `config` is asked after the plugin's greeting; None means there is nothing to deliver.

        Raises:
            StartFailed: which step failed and why; the process is gone.
        """
        async with self._parts.starts.slot() as slot:
            try:
                await self._spawn(projects)
                slot.watch(lambda: waited_for_cpu_s(self.peer.process.command_pid))
                greeting = await self._greet(sorted(projects))
                self.config = config()
                await self._configure(self.config)
            except BaseException:
                await self._abandon()
                raise
        self.greeting = greeting
        return greeting

    async def _spawn(self, projects: Mapping[str, Path]) -> None:
        settings = self._parts.settings
        try:
            request = cage_request(
                self.plugin,
                projects=projects,
                log_level=settings.log_level,
                runtimes=settings.runtimes,
            )
        except (CapabilityInvalid, CageError, OSError) as error:
            raise StartFailed("cage", str(error)) from error
        connection = Connection(
            self, name=self.plugin.name, clock=self._parts.clock, limits=settings.limits
        )
        try:
            self._peer = await PeerProcess.start(
                self._parts.spawner, request, connection, self._stderr_line
            )
        except CageError as error:
            raise StartFailed("spawn", error.message, fix=error.fix) from error
        self._ended = self._tasks.start(self._peer.wait(), "wait")
        data: JsonObject = {
            "name": self.plugin.name,
            "version": self.plugin.version,
            "pid": self._peer.process.pid,
            "cage_id": self._peer.process.cage_id,
        }
        if self.plugin.grants:
            data["operator_grants"] = list(self.plugin.grants.texts)
        self._parts.post("plugin.spawned", data)

    async def _greet(self, projects: list[str]) -> Greeting:
        settings = self._parts.settings
        storage = self._parts.storage
        params = handshake.greeting_params(
            self.plugin.manifest,
            settings.daemon_version,
            storage=storage is not None
            and storage.available(self.plugin.name)
            and any(isinstance(c, StorageCapability) for c in self.plugin.manifest.capabilities),
            projects=projects,
        )
        self._greeting_sent = True
        try:
            response = await self.peer.connection.exchange(
                SystemMethod.INITIALIZE, params, settings.initialize_timeout_s
            )
        except KagedError as error:
            raise await self._greeting_failure(error) from error
        checked = handshake.check_greeting(response, self.plugin.manifest)
        if isinstance(checked, HandshakeFault):
            self._parts.post(checked.event, {"name": self.plugin.name, **checked.data})
            raise StartFailed("initialize", checked.reason, event=checked.event)
        if self._fault is not None:
            raise self._fault
        for warning in checked.warnings:
            self._log.warning("handshake", detail=warning)
        return checked

    async def _greeting_failure(self, error: KagedError) -> StartFailed:
        if self._fault is not None:
            return self._fault
        if isinstance(error, PeerTimeout):
            timeout_s = self._parts.settings.initialize_timeout_s
            event = "plugin.initialize_timeout"
            data: JsonObject = {
                "name": self.plugin.name,
                "reason": "initialize.timeout",
                "timeout_sec": timeout_s,
            }
            self._parts.post(event, data)
            reason = f"no answer to initialize in {timeout_s:g} s"
            return StartFailed("initialize", reason, retry=True, event=event)
        if isinstance(error, RpcError):
            return StartFailed("initialize", f"answered with {error.number}: {error.message}")
        report = await self.exited()
        lines = self.peer.stderr.lines
        said = f"; it said: {lines[-1]}" if lines else ""
        return StartFailed("initialize", f"it {report.detail}{said}", retry=True)

    async def _configure(self, config: JsonObject | None) -> None:
        self._phase = Phase.CONFIGURING
        late: asyncio.Task[bool] | None = None
        again = False
        if config is not None:
            update = self._tasks.start(self._deliver_first(config), "config.update")
            done, _ = await asyncio.wait({update}, timeout=self._parts.settings.config_patience_s)
            if done:
                again = not await update
            else:
                late = update  # a literal plugin may hold calls back until initialized
        self.peer.connection.notify(SystemMethod.INITIALIZED, {})
        self._phase = Phase.READY
        if again and config is not None and not await self._deliver_first(config):
            raise StartFailed("config", "it says not_initialized even after initialized")
        if late is not None:
            self._tasks.start(self._take_late(late), "late config answer")

    async def _take_late(self, update: asyncio.Task[bool]) -> None:
        try:
            await update
        except StartFailed as error:
            self._log.warning("config answered late", problem=error.reason)
            if not error.retry:
                self.end("config_refused")

    async def _deliver_first(self, config: JsonObject) -> bool:
        """Deliver the config ahead of initialized; False when the plugin wants it afterwards."""
        try:
            await self.update_config(config)
        except RpcError as error:
            if error.number == ErrorCode.NOT_INITIALIZED:
                return False
            raise
        except PluginConfigInvalid as error:
            raise StartFailed("config", error.message) from error
        except KagedError as error:
            raise StartFailed("config", error.message, retry=True) from error
        return True

    async def _abandon(self) -> None:
        self._phase = Phase.ENDING
        if self._peer is not None:
            await self._peer.close()
        await self._tasks.close()

    # -- asking --------------------------------------------------------------------------------

    def request(
        self, method: str, params: JsonObject, timeout_s: float
    ) -> Coroutine[Any, Any, JsonValue]:
        """Ask the plugin, to be awaited; errors are those of `Connection.request`."""
        return self.peer.connection.request(method, params, timeout_s, cancel=True)

    async def update_config(self, config: JsonObject) -> None:
        """Deliver a configuration.

        Raises:
            PluginConfigInvalid: the plugin refused it; its previous one stays in force.
            RpcError: with -32002 only, when it is too early for the plugin.
        """
        timeout_s = self._parts.settings.request_timeout_s
        try:
            await self.request(SystemMethod.CONFIG_UPDATE, {"config": config}, timeout_s)
        except RpcError as error:
            if error.number == ErrorCode.METHOD_NOT_FOUND:
                self._log.info("the plugin takes no config")
            elif error.number == ErrorCode.NOT_INITIALIZED:
                raise
            else:
                raise PluginConfigInvalid(
                    f"{self.plugin.name} refused its config: {error.message}", number=error.number
                ) from error

    async def tell_project(self, method: SystemMethod, params: JsonObject) -> None:
        """Tell about a project; whatever the plugin answers is logged and ignored (PH-AMB-14)."""
        try:
            await self.request(method, params, self._parts.settings.request_timeout_s)
        except KagedError as error:
            self._log.info("project message ignored", method=method, answer=error.message)

    async def ping(self) -> str | None:
        """Check its health; None is healthy, otherwise what was wrong."""
        try:
            response = await self.peer.connection.exchange(
                SystemMethod.PING, {}, self._parts.settings.ping_timeout_s
            )
        except KagedError as error:
            return error.message
        healthy = isinstance(response.result, dict) and response.result.get("status") == "ok"
        return None if healthy else f"answered {response.result!r}"[:200]

    # -- ending --------------------------------------------------------------------------------

    async def stop(self) -> StopReport:
        """Say shutdown, wait; SIGTERM, wait; SIGKILL."""
        self._phase = Phase.ENDING
        timeout_s = float(self.plugin.manifest.shutdown_timeout_sec)
        report = await self.peer.stop((SystemMethod.SHUTDOWN, {}), timeout_s)
        await self._tasks.close()
        return report

    def end(self, reason: str) -> None:
        """End it because it is sick or breaks the protocol; `exited` resolves when it is gone."""
        if self._fatal is not None or self._phase is Phase.ENDING or self._peer is None:
            return
        self._fatal = reason
        self._tasks.start(self._end(self._peer), "end")

    async def _end(self, peer: PeerProcess) -> None:
        report = await peer.process.stop(0.0, None)
        self._killed_by_force = report.step == "killed"

    async def exited(self) -> ExitReport:
        """Wait until the process is gone and its stderr was read to the end."""
        assert self._ended is not None
        return await asyncio.shield(self._ended)

    async def release(self) -> None:
        """Close what is left after the end."""
        self._phase = Phase.ENDING
        await self.peer.close()
        await self._tasks.close()

    # -- what the plugin does unasked: Owner ---------------------------------------------------

    def asked(self, request: Request) -> None:
        """Take note of a request of the plugin."""
        if self._ahead_of_answer:
            self._violate("message_before_initialize", f"request {request.method[:100]}")

    async def answer(self, request: Request) -> JsonValue:
        """Answer a request of the plugin: storage, or nothing."""
        if self._phase is not Phase.READY:
            raise NotInitialized("the handshake is not complete")
        storage = self._parts.storage
        if request.method in STORAGE_METHODS and storage is not None:
            return await storage.answer(
                self.plugin.name,
                self.plugin.manifest.capabilities,
                request.method,
                request.params,
            )
        raise MethodNotFound(f"the host has no method {request.method[:100]}")

    def notified(self, notification: Notification) -> None:
        """Take a notification of the plugin."""
        if self._ahead_of_answer:
            self._violate("message_before_initialize", f"notification {notification.method[:100]}")
        elif self._phase is Phase.READY:
            self._notification(notification)
        else:
            self._log.info("notification dropped", kind=notification.method[:100])

    def refused(self, refused: Refused) -> None:
        """Take a line that is no message."""
        if isinstance(refused, Noise):
            line = refused.excerpt()
            self._log.warning("not JSON on stdout", line=line)
            self._parts.post("plugin.stdout_noise", {"name": self.plugin.name, "line": line})
            return
        detail = "a batch" if isinstance(refused, Batch) else f"not JSON-RPC ({refused.reason})"
        if self._phase is Phase.GREETING:
            self._violate("initialize.malformed", detail)
        else:
            kind = "batch" if isinstance(refused, Batch) else "invalid_message"
            self._post_violation(kind, detail)

    def ignored(self, response: Response, why: Ignored) -> None:
        """Take an answer that belongs to no open request."""
        if self._ahead_of_answer and why is not Ignored.LATE:
            self._violate("message_before_initialize", f"an answer to request {response.id}")
        else:
            self._log.info("answer ignored", id=response.id, why=why.value)

    def out_of_step(self, message_id: MessageId) -> None:
        """Take note that the plugin's request ids do not count up."""
        self._log.info("request ids do not count up from 1", first=message_id)

    def broke(self, error: KagedError) -> None:
        """Take the end of the conversation by a breach of framing."""
        if isinstance(error, PeerGone):
            self._end_unless_ending("input_closed")
            return
        if isinstance(error, OversizeMessage):
            self._post_violation(error.code, error.message)
            if self._phase is Phase.GREETING:
                self._fault = StartFailed(
                    "initialize", error.message, event="plugin.protocol_violation"
                )
        self.end(error.code)

    def closed(self) -> None:
        """Take the end of its output; a process that lives on without one is of no use."""
        self._end_unless_ending("output_closed")

    # -- own -----------------------------------------------------------------------------------

    @property
    def _ahead_of_answer(self) -> bool:
        """Whether the answer to initialize is still to come, at this very line (PH-HAND-23).

        The phase changes a turn of the loop later than the answer arrives; what follows the
        answer in the same read is not ahead of it.
        """
        if self._phase is not Phase.GREETING:
            return False
        return not self._greeting_sent or self.peer.connection.open_calls > 0

    def _end_unless_ending(self, reason: str) -> None:
        # Closed pipes are mostly the first sign of an exit; its own code says more than we could.
        if self._phase is not Phase.ENDING and self._fatal is None:
            self._tasks.start(self._end_if_alive(reason), reason)

    async def _end_if_alive(self, reason: str) -> None:
        assert self._ended is not None
        await asyncio.wait({self._ended}, timeout=EXIT_GRACE_S)
        if not self._ended.done():
            self.end(reason)

    def _notification(self, notification: Notification) -> None:
        name, kind = self.plugin.name, notification.method
        judged = self._gate.judge(kind, self._parts.clock.monotonic_s())
        match judged.verdict:
            case Verdict.ILLEGAL:
                self._post_violation("notification_name", f"{kind[:100]!r} is no legal name")
            case Verdict.FLOOD:
                self._log.warning("too many notifications", rate=judged.rate)
                self._parts.post(
                    "plugin.notification_flood",
                    {"name": name, "rate": judged.rate, "dropped": judged.dropped},
                )
                self._tell_rate_limited()
            case Verdict.ACCEPT:
                declared = self._is_declared(kind)
                if not declared:
                    self._log.warning("undeclared notification", kind=kind)
                self._parts.post(
                    "plugin.notification",
                    {"name": name, "notification_type": kind, "declared": declared},
                )
                params: JsonValue = notification.params
                self._parts.on_notification(name, kind, params)
            case Verdict.DROP:
                pass

    def _is_declared(self, kind: str) -> bool:
        said = self.greeting.notifications if self.greeting is not None else ()
        return kind in self.plugin.manifest.notifications or kind in said

    def _tell_rate_limited(self) -> None:
        try:
            self.peer.connection.notify(RATE_LIMITED, {})
        except KagedError as error:
            self._log.info("cannot tell it about the rate limit", why=error.message)

    def _violate(self, kind: str, detail: str) -> None:
        if self._fault is None:
            self._post_violation(kind, detail)
            self._fault = StartFailed(
                "initialize",
                f"it broke the protocol ({kind}: {detail})",
                event="plugin.protocol_violation",
            )
            self.end(kind)

    def _post_violation(self, kind: str, detail: str) -> None:
        self._log.warning("protocol violation", kind=kind, detail=detail)
        self._parts.post(
            "plugin.protocol_violation",
            {"name": self.plugin.name, "violation_type": kind, "detail": detail},
        )

    def _stderr_line(self, line: str) -> None:
        self._log.info("stderr", line=line)

    def _failed(self, name: str, error: BaseException) -> None:
        if not isinstance(error, KagedError):
            self._log.error("task failed", task=name, error=repr(error))


__all__ = ["Phase", "PluginConversation"]
