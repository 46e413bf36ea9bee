"""`PluginConversation`: one process of one plugin, from its spawn to its end.

open: spawn → initialize → check → config.update → initialized. Then calls, until it is stopped,
breaks the protocol or ends. A restart is a new conversation with fresh id counters (PH-WIRE-20).
What each event means is decided by `ConversationMachine`; this carries out its commands.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from kaged.base import JsonObject, JsonValue, KagedError, Tasks
from kaged.cage import CageError, CageProcess, ExitReport, StopReport
from kaged.kernel.capabilities import CapabilityInvalid, StorageCapability
from kaged.kernel.policy import CagePolicy
from kaged.peer import Connection, PeerGone, PeerProcess
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
from kaged.plugins.conversation_machine import (
    EVENTS_METHODS,
    ConversationMachine,
    ConversationState,
)
from kaged.plugins.environment import cage_request
from kaged.plugins.errors import PluginConfigInvalid, StartFailed
from kaged.plugins.handshake import HandshakeResult
from kaged.plugins.installed import InstalledPlugin
from kaged.plugins.parts import HostParts
from kaged.plugins.shared_files import SharedFiles
from kaged.plugins.starts import waited_for_cpu_s
from kaged.wire.correlator import Ignored
from kaged.wire.errors import ErrorCode, RpcError
from kaged.wire.messages import MessageId, Notification, Refused, Request, Response
from kaged.wire.methods import SystemMethod

EXIT_GRACE_S = 1.0
FILES_LOOK_S = 0.5
"""How often it is looked for how much lies in the shared folders."""


class PluginConversation:
    """The host's side of one plugin process. Owner of its connection."""

    def __init__(self, plugin: InstalledPlugin, parts: HostParts) -> None:
        self.plugin = plugin
        self.greeting: HandshakeResult | None = None
        self.config: JsonObject | None = None
        self._parts = parts
        folder = parts.settings.files_dir
        self.files = (
            SharedFiles(folder / f"{plugin.name}-{parts.ids.ulid()}")
            if folder is not None and plugin.manifest.shared_files
            else None
        )
        self._log = parts.log.bind(plugin=plugin.name)
        self._machine = ConversationMachine(
            plugin.manifest,
            daemon_version=parts.settings.daemon_version,
            initialize_timeout_s=parts.settings.initialize_timeout_s,
        )
        self.policy: CagePolicy | None = None  # of the cage that its process was started in
        self.killed_by_force = False  # whether SIGKILL was needed to end it
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
    def dropped_notifications(self) -> int:
        """How many notifications were dropped for their rate."""
        return self._machine.dropped_notifications

    @property
    def ended_by_us(self) -> str | None:
        """Why the host ended it (health, hang, protocol), None when it ended by itself."""
        return self._machine.end_reason

    @property
    def last_stderr(self) -> list[str]:
        """Return the last lines of its standard error; none when no process was started."""
        return [] if self._peer is None else self._peer.stderr.lines

    # -- beginning -----------------------------------------------------------------------------

    async def open(
        self, projects: Mapping[str, Path], config: Callable[[], JsonObject | None]
    ) -> HandshakeResult:
        """Start the process and shake hands.

        `config` is asked after the plugin's greeting; None means there is nothing to deliver.

        Raises:
            StartFailed: which step failed and why; the process is gone.
        """
        async with self._parts.starts.slot() as slot:
            try:
                await self._spawn(projects)
                slot.watch(lambda: waited_for_cpu_s(self.peer.process.command_pid))
                await self._carry_through(self._begin(sorted(projects)), config)
            except BaseException:
                await self.release()
                raise
        greeting = self._machine.greeting
        assert greeting is not None  # otherwise one of the commands was to fail
        self.greeting = greeting
        return greeting

    async def _spawn(self, projects: Mapping[str, Path]) -> None:
        settings = self._parts.settings
        try:
            # At every start: whoever may write there must not get code to run by ending a process.
            await asyncio.to_thread(self.plugin.require_unchanged)
        except KagedError as error:
            raise StartFailed("consent", error.message, fix=error.fix) from error
        try:
            if self.files is not None:
                await asyncio.to_thread(self.files.open)
            request = cage_request(
                self.plugin,
                projects=projects,
                log_level=settings.log_level,
                runtimes=settings.runtimes,
                files=self.files,
            )
        except (CapabilityInvalid, CageError, OSError) as error:
            raise StartFailed("cage", str(error)) from error
        self.policy = request.policy
        connection = Connection(
            self, name=self.plugin.name, clock=self._parts.clock, limits=settings.limits
        )
        try:
            self._peer = await PeerProcess.start(
                self._parts.spawner, request, connection, self._stderr_line, self._record_start
            )
        except CageError as error:
            raise StartFailed("spawn", error.message, fix=error.fix) from error
        self._ended = self._tasks.start(self._peer.wait(), "wait")
        if self.files is not None:
            self._tasks.start(self._watch_files(self.files), "shared files")

    def _record_start(self, process: CageProcess) -> None:
        data: JsonObject = {
            "name": self.plugin.name,
            "version": self.plugin.version,
            "pid": process.pid,
            "cage_id": process.cage_id,
        }
        if self.plugin.grants:
            data["operator_grants"] = list(self.plugin.grants.texts)
        self._parts.post("plugin.spawned", data)

    def _begin(self, projects: list[str]) -> Commands:
        storage = self._parts.storage
        available = (
            storage is not None
            and storage.available(self.plugin.name)
            and any(isinstance(c, StorageCapability) for c in self.plugin.manifest.capabilities)
        )
        files = None if self.files is None else self.files.announced
        return self._machine.started(storage=available, projects=projects, files=files)

    async def _carry_through(
        self, commands: Commands, config: Callable[[], JsonObject | None]
    ) -> None:
        """Carry out the commands of the start and those that follow from their outcomes."""
        todo = deque(commands)
        while todo:
            match todo.popleft():
                case Initialize(params):
                    todo.extend(await self._initialize(params))
                case FetchConfig():
                    self.config = config()
                    todo.extend(self._machine.config_fetched(self.config))
                case DeliverConfig() as delivery:
                    todo.extend(await self._deliver_first(delivery))
                case AwaitExit():
                    report = await self.exited()
                    lines = self.peer.stderr.lines
                    todo.extend(self._machine.exited(report.detail, lines[-1] if lines else None))
                case Notify(SystemMethod.INITIALIZED as method):
                    try:
                        self.peer.connection.notify(method, {})
                    except KagedError as error:
                        todo.extend(self._machine.handshake_lost(error))
                case command:
                    self._carry_out((command,))

    async def _initialize(self, params: JsonObject) -> Commands:
        timeout_s = self._parts.settings.initialize_timeout_s
        try:
            response = await self.peer.connection.exchange(
                SystemMethod.INITIALIZE, params, timeout_s
            )
        except KagedError as error:
            return self._machine.handshake_lost(error)
        return self._machine.initialize_answered(response)

    async def _deliver_first(self, delivery: DeliverConfig) -> Commands:
        update = self._tasks.start(self._config_error(delivery.config), "config.update")
        timeout_s = self._parts.settings.config_patience_s if delivery.overdue else None
        done, _ = await asyncio.wait({update}, timeout=timeout_s)
        if done:
            return self._machine.config_answered(update.result())
        self._tasks.start(self._take_late(update), "late config answer")
        return self._machine.config_overdue()

    async def _config_error(self, config: JsonObject) -> KagedError | None:
        try:
            await self.update_config(config)
        except KagedError as error:
            return error
        return None

    async def _take_late(self, update: asyncio.Task[KagedError | None]) -> None:
        self._carry_out(self._machine.config_answered(await update))

    # -- asking --------------------------------------------------------------------------------

    def request(
        self, method: str, params: JsonObject, timeout_s: float
    ) -> Coroutine[Any, Any, JsonValue]:
        """Ask the plugin, to be awaited; errors are those of `Connection.request`.

        Raises:
            PeerGone: the handshake is not complete, or the process is being stopped.
        """
        self._machine.require_ready()
        assert self._peer is not None
        return self._peer.connection.request(method, params, timeout_s, cancel=True)

    async def update_config(self, config: JsonObject) -> None:
        """Deliver a configuration.

        Raises:
            PluginConfigInvalid: the plugin refused it; its previous one stays in force.
            RpcError: with -32002 only, when it is too early for the plugin.
        """
        timeout_s = self._parts.settings.request_timeout_s
        try:
            await self.peer.connection.request(
                SystemMethod.CONFIG_UPDATE, {"config": config}, timeout_s, cancel=True
            )
        except RpcError as error:
            if error.number == ErrorCode.METHOD_NOT_FOUND:
                self._log.info("plugin.config_unsupported")
            elif error.number == ErrorCode.NOT_INITIALIZED:
                raise
            else:
                raise PluginConfigInvalid(
                    f"{self.plugin.name} refused its config: {error.message}", number=error.number
                ) from error

    async def tell_project(self, method: SystemMethod, params: JsonObject) -> None:
        """Send a project message; whatever the plugin answers is logged and ignored (PH-AMB-14)."""
        try:
            await self.request(method, params, self._parts.settings.request_timeout_s)
        except KagedError as error:
            self._log.info("plugin.project_message_ignored", method=method, answer=error.message)

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
        """Send shutdown, wait; SIGTERM, wait; SIGKILL."""
        self._machine.drain()
        timeout_s = float(self.plugin.manifest.shutdown_timeout_sec)
        report = await self.peer.stop((SystemMethod.SHUTDOWN, {}), timeout_s)
        self._machine.close()
        await self._close_files()
        await self._tasks.close()
        return report

    def end(self, reason: str) -> None:
        """End it because it is sick or breaks the protocol; `exited` resolves when it is gone."""
        self._carry_out(self._machine.end(reason))

    async def exited(self) -> ExitReport:
        """Wait until the process is gone and its stderr was read to the end."""
        assert self._ended is not None
        return await asyncio.shield(self._ended)

    async def release(self) -> None:
        """Close what is left after the end, or after a start that failed."""
        self._parts.events.leave(self.plugin.name, self._send_event)
        self._machine.drain()
        if self._peer is not None:
            await self._peer.close()
        await self._close_files()
        self._machine.close()
        await self._tasks.close()

    async def _close_files(self) -> None:
        if self.files is not None:
            await asyncio.to_thread(self.files.close)

    async def _watch_files(self, files: SharedFiles) -> None:
        while True:
            await asyncio.sleep(FILES_LOOK_S)
            excess = await asyncio.to_thread(files.excess)
            if excess is not None:
                self.end(excess)
                return

    # -- what the plugin does unasked: Owner ---------------------------------------------------

    def asked(self, request: Request) -> None:
        """Take note of a request of the plugin."""
        self._note_answer()
        self._carry_out(self._machine.requested(request))

    async def answer(self, request: Request) -> JsonValue:
        """Answer a request of the plugin: storage, events, or nothing."""
        storage = self._parts.storage
        self._machine.require_servable(request, storage=storage is not None)
        if request.method in EVENTS_METHODS:
            return self._parts.events.answer(
                self.plugin.name,
                self.plugin.manifest.capabilities,
                request.method,
                request.params,
                now_s=self._parts.clock.monotonic_s(),
                send=self._send_event,
                post=self._parts.post,
            )
        assert storage is not None
        return await storage.answer(
            self.plugin.name, self.plugin.manifest.capabilities, request.method, request.params
        )

    def _send_event(self, method: str, params: JsonObject) -> None:
        self._machine.require_ready()
        self.peer.connection.notify(method, params)

    def notified(self, notification: Notification) -> None:
        """Take a notification of the plugin."""
        self._note_answer()
        now_s = self._parts.clock.monotonic_s()
        self._carry_out(self._machine.notified(notification, now_s))

    def refused(self, refused: Refused) -> None:
        """Take a line that is no message."""
        self._carry_out(self._machine.refused(refused))

    def ignored(self, response: Response, why: Ignored) -> None:
        """Take an answer that belongs to no open request."""
        self._note_answer()
        self._carry_out(self._machine.ignored(response, why))

    def out_of_step(self, message_id: MessageId) -> None:
        """Take note that the plugin's request ids do not count up."""
        self._log.info("plugin.request_ids_out_of_order", first=message_id)

    def broke(self, error: KagedError) -> None:
        """Take the end of the conversation by a breach of framing."""
        self._carry_out(self._machine.broke(error))

    def closed(self) -> None:
        """Take the end of its output."""
        self._carry_out(self._machine.stream_closed("output_closed"))

    def _note_answer(self) -> None:
        # The connection settles a call without a word to its owner; initialize is the only one.
        if (
            self._machine.state is ConversationState.HANDSHAKE
            and self.peer.connection.open_calls == 0
        ):
            self._machine.initialize_settled()

    # -- carrying out --------------------------------------------------------------------------

    def _carry_out(self, commands: Commands) -> None:
        """Carry out commands that need not be waited for."""
        for command in commands:
            match command:
                case Audit(event, data):
                    self._parts.post(event, {"name": self.plugin.name, **data})
                case LogLine(level, event, values):
                    (self._log.info if level == "info" else self._log.warning)(event, **values)
                case Forward(kind, params):
                    self._parts.on_notification(self.plugin.name, kind, params)
                case Notify(method):
                    self._notify(method)
                case Kill():
                    self._tasks.start(self._kill(self.peer), "end")
                case KillUnlessExited(reason):
                    self._tasks.start(self._end_if_alive(reason), reason)
                case Fail(error):
                    raise error
                case Initialize() | FetchConfig() | DeliverConfig() | AwaitExit():
                    raise AssertionError(f"{command} belongs to the start")

    def _notify(self, method: str) -> None:
        try:
            self.peer.connection.notify(method, {})
        except KagedError as error:
            self._log.info("plugin.rate_limit_not_delivered", method=method, why=error.message)

    async def _kill(self, peer: PeerProcess) -> None:
        report = await peer.process.stop(0.0, None)
        self.killed_by_force = report.step == "killed"

    async def _end_if_alive(self, reason: str) -> None:
        assert self._ended is not None
        await asyncio.wait({self._ended}, timeout=EXIT_GRACE_S)
        if not self._ended.done():
            self.end(reason)

    def _stderr_line(self, line: str) -> None:
        self._log.info("plugin.stderr", line=line)

    def _failed(self, name: str, error: BaseException) -> None:
        if not isinstance(error, KagedError):
            self._log.error("plugin.task_failed", task=name, error=repr(error))
