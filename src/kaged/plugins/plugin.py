"""`HostedPlugin`: one installed plugin over all its processes: states, health, restart, calls.

The conversation knows one process; this knows what to do when it ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any

from kaged.base import JsonObject, JsonValue, KagedError, Tasks
from kaged.cage import ExitReport, StopStep
from kaged.peer import Again, PeerGone, PeerStalled, PeerTimeout, RestartPolicy
from kaged.plugins.conversation import PluginConversation
from kaged.plugins.errors import PluginTimedOut, StartFailed
from kaged.plugins.handshake import HandshakeResult
from kaged.plugins.installed import InstalledPlugin
from kaged.plugins.lane import ConfigLane
from kaged.plugins.metrics import PluginMetrics
from kaged.plugins.parts import HostParts
from kaged.plugins.settings import ConfigSchemas
from kaged.plugins.states import PluginState, require_transition
from kaged.wire.context import WireContext, with_context
from kaged.wire.errors import ErrorCode, MethodNotFound, RpcError, number_of_error
from kaged.wire.methods import SystemMethod

HISTORY = 64
CONFIG_INVALID = "plugin.config_validation_failed"


class HostedPlugin:
    """One plugin of the host. All its methods run on the host's event loop."""

    def __init__(
        self,
        installed: InstalledPlugin,
        parts: HostParts,
        *,
        on_state: Callable[[HostedPlugin, PluginState], None] | None = None,
        system_config: Callable[[InstalledPlugin], JsonObject] | None = None,
        current: Callable[[InstalledPlugin], InstalledPlugin] | None = None,
    ) -> None:
        self.installed = installed
        self.schemas = ConfigSchemas(installed.manifest)
        self.metrics = PluginMetrics()
        self.hook_turn = asyncio.Lock()
        self.note = ""
        self.projects: dict[str, Path] = {}
        self.system_config: JsonObject = {}
        self.project_half: Callable[[], JsonObject] = dict
        self.history: deque[PluginState] = deque([PluginState.DISABLED], maxlen=HISTORY)
        self.running_since_s: float | None = None
        self._parts = parts
        self._on_state = on_state
        self._read_system_config = system_config or (lambda _: {})
        self._current = current or (lambda known: known)
        self._state = PluginState.DISABLED
        self._policy = RestartPolicy(parts.settings.restart_spread)
        self._conversation: PluginConversation | None = None
        self._lane = ConfigLane(self._deliver)
        self._tasks = Tasks(f"plugin {installed.name}", self._task_failed)
        self._stopping = False
        self._last_stderr: list[str] = []

    # -- what it is ----------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The plugin's name."""
        return self.installed.name

    @property
    def state(self) -> PluginState:
        """Where it stands."""
        return self._state

    @property
    def conversation(self) -> PluginConversation | None:
        """The present process, None when there is none."""
        return self._conversation

    @property
    def failures(self) -> int:
        """Consecutive failures of the present series."""
        return self._policy.failures

    @property
    def last_stderr(self) -> list[str]:
        """The last fifty lines of the present process's standard error, or of the last one's."""
        conversation = self._conversation
        if conversation is not None and conversation.pid is not None:
            return conversation.peer.stderr.lines
        return list(self._last_stderr)

    def has_method(self, method: str) -> bool:
        """Return whether the manifest declares it and the running process offers it."""
        conversation = self._conversation
        greeting = conversation.greeting if conversation is not None else None
        return greeting is not None and method in greeting.methods

    def has_tool(self, tool: str) -> bool:
        """Return whether the manifest declares this (unprefixed) tool."""
        return any(tool == declared.name for declared in self.installed.manifest.tools)

    # -- life ----------------------------------------------------------------------------------

    def start(self) -> Coroutine[Any, Any, None]:
        """Start it for the first time, or again at the operator's word.

        It is `spawning` when this returns. What it gives is done when the plugin runs or has
        failed; a failure is a state, not an exception.
        """
        self._policy.reset()
        self._stopping = False
        self._enter(PluginState.SPAWNING)
        # A task of its own, so that `stop` can end it in the middle of the handshake.
        return _until_done(self._tasks.start(self._first_start(), "start"))

    async def _first_start(self) -> None:
        try:
            await self._open()
        except StartFailed as error:
            self._start_failed(error)

    async def stop(self, reason: str) -> None:
        """Stop it in whatever state it is; it rests in `stopped`, or stays disabled or failed."""
        self._stopping = True
        conversation = self.ready_or_none()
        if conversation is not None:
            self._conversation = None
            await self._say_goodbye(conversation, reason)
            if self._parts.storage is not None:
                await self._parts.storage.plugin_exited(self.name)
        await self._tasks.close()
        self._tasks = Tasks(f"plugin {self.name}", self._task_failed)
        if self._state in {PluginState.RUNNING, PluginState.SPAWNING, PluginState.CRASHED}:
            self._enter(PluginState.STOPPED)

    def rest_disabled(self) -> None:
        """Leave it disabled after it was stopped or has failed."""
        if self._state is not PluginState.DISABLED:
            self._enter(PluginState.DISABLED)

    async def _open(self) -> None:
        try:
            # At every start: what the operator took back since must not be granted again.
            self.installed = await asyncio.to_thread(self._current, self.installed)
        except KagedError as error:
            raise StartFailed("config", str(error)) from error
        conversation = PluginConversation(self.installed, self._parts)
        self._conversation = conversation
        try:
            greeting = await conversation.open(
                self.projects, lambda: self._first_config(self.installed, self.schemas)
            )
        except BaseException:
            self._conversation = None
            self._last_stderr = conversation.last_stderr
            raise
        self._take_over(conversation, greeting)
        self._enter(PluginState.RUNNING)

    async def replace(self, installed: InstalledPlugin) -> None:
        """Start new files beside the running process and switch after a good handshake.

        Calls under way are finished by the old process, which is then asked to end.

        Raises:
            KagedError: `plugin_unavailable`; it does not run.
            StartFailed: the new process did not come up; the old one goes on as before.
        """
        old, old_lane = self._ready(), self._lane
        schemas = ConfigSchemas(installed.manifest)
        fresh = PluginConversation(installed, self._parts)
        greeting = await fresh.open(self.projects, lambda: self._first_config(installed, schemas))
        if self._conversation is not old:
            await fresh.stop()
            raise KagedError(
                f"{self.name} ended while it was reloaded",
                code="plugin_unavailable",
                fix="try again",
            )
        self.installed, self.schemas, self._conversation = installed, schemas, fresh
        self._policy.reset()
        self._take_over(fresh, greeting)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._parts.settings.request_timeout_s):
                await old_lane.idle()
        await self._say_goodbye(old, "reload")

    def _take_over(self, conversation: PluginConversation, greeting: HandshakeResult) -> None:
        """Make a process that has shaken hands the one that is used."""
        self._lane = ConfigLane(self._deliver)
        if conversation.config is not None:
            self._lane.delivered(conversation.config)
        now_s = self._parts.clock.monotonic_s()
        self._policy.running(now_s)
        self.running_since_s = now_s
        self.note = ""
        self._tell(
            "plugin.initialized",
            methods_count=len(greeting.methods),
            capabilities_count=len(self.installed.manifest.capabilities),
        )
        self._tasks.start(self._watch(conversation), "watch")
        self._tasks.start(self._check_health(conversation), "health")

    def _first_config(
        self, installed: InstalledPlugin, schemas: ConfigSchemas
    ) -> JsonObject | None:
        """Return what is delivered in the handshake: both halves plus defaults (PH-AMB-61).

        The project half is that of a project that is loaded already, mostly there is none. A
        system half that does not fit keeps the plugin from running (PH-AMB-57).
        """
        try:
            self.system_config = self._read_system_config(installed)
        except KagedError as error:
            raise StartFailed("config", str(error)) from error
        invalid = schemas.check_system(self.system_config)
        if invalid is not None:
            self._tell(CONFIG_INVALID, side=invalid.side.value, errors=list(invalid.errors))
            reason = f"its section [plugins.{self.name}] of local.toml: {invalid.errors[0]}"
            missing = schemas.missing_system(self.system_config)
            if missing:
                reason = (
                    f"{', '.join(missing)} is missing in the section [plugins.{self.name}] of "
                    f"local.toml; set it with `kaged plugin secret set {self.name} {missing[0]}`"
                )
            raise StartFailed("config", reason, event=CONFIG_INVALID)
        half = self.project_half()
        if not schemas.any and not self.system_config and not half:
            return None
        return schemas.merged(half, self.system_config)

    def _start_failed(self, error: StartFailed) -> None:
        self.note = error.message
        if not error.event:
            self._tell(
                "plugin.failed",
                total_failures=self._policy.failures,
                step=error.step,
                reason=error.reason,
            )
        if self._state is PluginState.SPAWNING:
            self._enter(PluginState.FAILED)

    async def _say_goodbye(self, conversation: PluginConversation, reason: str) -> None:
        report = await conversation.stop()
        self._last_stderr = conversation.peer.stderr.lines
        self.metrics.notifications_dropped += conversation.dropped_notifications
        if report.step is StopStep.KILLED:
            self._tell("plugin.killed", reason=reason)
            return
        ended = report.exit
        if report.step is StopStep.ASKED and ended.exit_code == 0:
            self._tell("plugin.exited", exit_code=0, last_stderr=[*self._last_stderr])
        self._tell("plugin.stopped", reason=reason, exit_code=ended.exit_code, signal=ended.signal)

    # -- when it ends by itself ----------------------------------------------------------------

    async def _watch(self, conversation: PluginConversation) -> None:
        report = await conversation.exited()
        if self._stopping or self._conversation is not conversation:
            return
        self._conversation = None
        self.metrics.notifications_dropped += conversation.dropped_notifications
        storage = self._parts.storage
        if storage is not None:
            await storage.plugin_exited(self.name)
        self._tell_crash(conversation, report)
        self._tasks.start(conversation.release(), "release")
        self._enter(PluginState.CRASHED)
        self._after_failure()

    def _tell_crash(self, conversation: PluginConversation, report: ExitReport) -> None:
        why = conversation.ended_by_us
        self._last_stderr = conversation.peer.stderr.lines
        self.note = why or report.detail
        if conversation.killed_by_force:
            self._tell("plugin.killed", reason=why or "")
        data: JsonObject = {
            "exit_code": report.exit_code,
            "last_stderr": [*self._last_stderr],
            "reason": self.note,
            "pid": conversation.pid,
        }
        if why is None and report.clean:
            self._tell("plugin.exited", **data)
        else:
            self._tell("plugin.crashed", **data, signal=report.signal)

    def _after_failure(self) -> None:
        verdict = self._policy.failed(self._parts.clock.monotonic_s())
        if isinstance(verdict, Again):
            self._tasks.start(self._restart(verdict.delay_s), "restart")
            return
        self._tell("plugin.failed", total_failures=verdict.failures, reason=self.note)
        self._tell("plugin.disabled", reason="failure", detail=self.note)
        self._enter(PluginState.FAILED)

    async def _restart(self, delay_s: float) -> None:
        await self._parts.sleep(delay_s)
        self.metrics.restarts += 1
        self._enter(PluginState.SPAWNING)
        try:
            await self._open()
        except StartFailed as error:
            if not error.retry:
                self._start_failed(error)
                return
            self.note = error.message
            if not error.event:
                self._tell(
                    "plugin.crashed",
                    exit_code=None,
                    signal=None,
                    last_stderr=[*self._last_stderr],
                    reason=error.reason,
                )
            self._enter(PluginState.CRASHED)
            self._after_failure()

    async def _check_health(self, conversation: PluginConversation) -> None:
        failures = 0
        interval_s = float(self.installed.manifest.health_interval_sec)
        while self._conversation is conversation:
            await self._parts.sleep(interval_s)
            problem = await conversation.ping()
            if self._conversation is not conversation:
                return
            if problem is None:
                failures = 0
                continue
            failures += 1
            self._tell("plugin.health_fail", consecutive_failures=failures, reason=problem)
            if failures >= self._parts.settings.health_failures:
                conversation.end("health")
                return

    # -- calls ---------------------------------------------------------------------------------

    async def call_method(
        self,
        method: str,
        params: JsonObject,
        context: WireContext,
        *,
        timeout_s: float | None = None,
    ) -> JsonValue:
        """Call a declared method.

        Raises:
            MethodNotFound: it is not in the manifest or the process does not offer it.
            InvalidParams: the manifest's schema for the method says otherwise.
            KagedError: `plugin_unavailable`; there is no running process, or it ended before it
                answered.
            PluginTimedOut: no answer in time; the plugin is restarted.
            RpcError: the plugin's own error, unchanged.
        """
        conversation, promised = self.offering(method), self.schemas.methods
        promised.require_params(method, params)
        await self._label(method, context)
        result = await self._call(conversation, method, params, context, None, timeout_s)
        for problem in promised.result_problems(method, result):
            self._parts.log.warning(
                "plugin.result_mismatched", plugin=self.name, method=method, problem=problem
            )
        return result

    async def _label(self, method: str, context: WireContext) -> None:
        """Put on the session of a call what all that the plugin returns is known to be.

        Before the call, because an error or half of an answer is as much a result.
        """
        kept, labels = self._parts.labels, self.installed.labels
        if kept is not None and labels and context.session_id is not None:
            await kept.add(context.session_id, labels, source=f"{self.name}.{method}")

    def offering(self, method: str) -> PluginConversation:
        """Return the running process if it offers a declared method; raises as `call_method`."""
        if method not in self.installed.manifest.methods:
            raise MethodNotFound(f"{self.name} has no method {method}")
        conversation = self._ready()
        if not self.has_method(method):
            raise MethodNotFound(f"{self.name} declares {method} but does not offer it")
        return conversation

    async def call_tool(
        self, tool: str, params: JsonObject, context: WireContext, config: JsonObject | None
    ) -> JsonValue:
        """Call a tool by its unprefixed name, under the calling agent's effective config."""
        if not self.has_tool(tool):
            raise MethodNotFound(f"{self.name} has no tool {tool}")
        conversation = self._ready()
        full_name = f"{self.name}.{tool}"
        return await self._call(conversation, full_name, params, context, config, None)

    async def _call(
        self,
        conversation: PluginConversation,
        method: str,
        params: JsonObject,
        context: WireContext,
        config: JsonObject | None,
        timeout_s: float | None,
    ) -> JsonValue:
        clock, request_id = self._parts.clock, context.request_id
        self._tell(
            "plugin.method_called",
            method=method,
            request_id=request_id,
            operator_id=context.operator_id,
            project_id=context.project_id,
        )
        started_s = clock.monotonic_s()
        # Until it has answered; a caller that gives up leaves with this one as well.
        error_code: int | None = ErrorCode.INTERNAL_ERROR.value
        try:
            answer = await self.ask(conversation, method, params, context, config, timeout_s)
            if conversation.files is not None:
                answer = await conversation.files.resolved(answer)
        except KagedError as error:
            error_code = number_of_error(error)
            if isinstance(error, RpcError) and error.reserved:
                self._parts.log.warning(
                    "plugin.error_code_reserved", plugin=self.name, method=method, code=error_code
                )
            raise
        else:
            error_code = None
            return answer
        finally:
            duration_ms = (clock.monotonic_s() - started_s) * 1000
            self.metrics.called(duration_ms, error_code)
            failed: JsonObject = {} if error_code is None else {"error_code": error_code}
            self._tell(
                "plugin.method_returned",
                method=method,
                request_id=request_id,
                duration_ms=round(duration_ms, 3),
                success=error_code is None,
                **failed,
            )

    async def ask(
        self,
        conversation: PluginConversation,
        method: str,
        params: JsonObject,
        context: WireContext,
        config: JsonObject | None,
        timeout_s: float | None,
    ) -> JsonValue:
        """Send one call with its context under a config; a hang ends the process."""
        body = with_context(params, context)
        limit_s = self._parts.settings.request_timeout_s if timeout_s is None else timeout_s
        lane = self._lane
        config = self._config_beside(config, body)
        try:
            if not lane.enter_now(config):
                await lane.enter(config)
            try:
                return await conversation.request(method, body, limit_s)
            finally:
                lane.leave()
        except PeerTimeout as error:
            conversation.end("hang")
            raise PluginTimedOut(
                f"{self.name} did not answer {method} in {limit_s:g} s and is restarted"
            ) from error
        except (PeerGone, PeerStalled) as error:
            raise KagedError(
                f"{self.name} ended before it answered {method}",
                code="plugin_unavailable",
                fix=f"try again; `kaged plugin logs {self.name}` shows why it ended",
            ) from error

    def under(
        self, config: JsonObject | None, body: JsonObject
    ) -> AbstractAsyncContextManager[None]:
        """Hold the plugin for a call under an agent's config (PH-AMB-23).

        A plugin that takes its config per call finds it in `body`; any other one gets it
        delivered first when it differs from the last.
        """
        return self._lane.under(self._config_beside(config, body))

    def _config_beside(self, config: JsonObject | None, body: JsonObject) -> JsonObject | None:
        """Return the config to deliver beside the call; None when `body` takes it along."""
        if config is not None and self.installed.manifest.per_call_config:
            body["_config"] = config
            return None
        return config

    def _ready(self) -> PluginConversation:
        conversation = self._conversation
        if self._state is not PluginState.RUNNING or conversation is None:
            raise KagedError(
                f"{self.name} is not running ({self._state})",
                code="plugin_unavailable",
                fix=f"`kaged plugin info {self.name}` says why",
                state=self._state.value,
            )
        return conversation

    def ready_or_none(self) -> PluginConversation | None:
        """Return the running conversation, or None without an error."""
        return self._conversation if self._state is PluginState.RUNNING else None

    # -- configuration and projects ------------------------------------------------------------

    async def update_config(self, config: JsonObject) -> None:
        """Deliver a configuration now, if it differs from the one last delivered.

        Raises:
            PluginConfigInvalid: the plugin refused it; the old one stays in force.
        """
        if self.ready_or_none() is not None:
            async with self._lane.under(config):
                pass

    async def project_activated(self, project: str, config: JsonObject) -> None:
        """Notify a running plugin that a project using it was loaded."""
        conversation = self.ready_or_none()
        if conversation is not None:
            params: JsonObject = {"project": project, "config": config}
            await conversation.tell_project(SystemMethod.PROJECTS_ACTIVATED, params)

    async def project_deactivated(self, project: str) -> None:
        """Notify a running plugin that a project using it was unloaded."""
        conversation = self.ready_or_none()
        if conversation is not None:
            await conversation.tell_project(SystemMethod.PROJECTS_DEACTIVATED, {"project": project})

    async def _deliver(self, config: JsonObject) -> None:
        conversation = self._ready()
        try:
            await conversation.update_config(config)
        except PeerTimeout as error:
            conversation.end("hang")
            raise KagedError(
                f"{self.name} did not take its config in time", code="plugin_unavailable"
            ) from error
        except RpcError as error:
            raise KagedError(
                f"{self.name} is not ready: {error.message}", code="plugin_unavailable"
            ) from error

    # -- own -----------------------------------------------------------------------------------

    def _enter(self, new: PluginState) -> None:
        require_transition(self.name, self._state, new)
        self._state = new
        self.history.append(new)
        if new is not PluginState.RUNNING:
            self.running_since_s = None
        self._parts.log.info("plugin.state_changed", plugin=self.name, state=new.value)
        if self._on_state is not None:
            self._on_state(self, new)

    def _tell(self, event: str, **data: JsonValue) -> None:
        """Write an audit event about this plugin."""
        self._parts.post(event, {"name": self.name, **data})

    def _task_failed(self, name: str, error: BaseException) -> None:
        self._parts.log.error("plugin.task_failed", task=name, error=repr(error))


async def _until_done(start: asyncio.Task[None]) -> None:
    await asyncio.wait({start})
