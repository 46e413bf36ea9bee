"""`Pipeline`: the plugins in force, loaded from a file, changed as a whole or not at all."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaged.base import Clock, Ids, KagedError, Tasks
from kaged.base.foreign import cancellations, describe_error
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.config.problems import Problem, Severity, format_key_path
from kaged.pipeline.binding import HookNotBound
from kaged.pipeline.document import PipelineDocument, PluginEntry, parse_document
from kaged.pipeline.edits import DefaultHookPolicy, HookPayloadPolicy, resolve_policy
from kaged.pipeline.errors import PipelineNotReady
from kaged.pipeline.host_facts import NO_FACTS, HostFacts
from kaged.pipeline.kinds import (
    PluginKind,
    StartedPlugin,
    add_plugin_dirs,
    resolve_kind,
)
from kaged.pipeline.modes import PluginMode
from kaged.pipeline.payloads.registry import HookRegistry
from kaged.pipeline.plan import LoadedPlugin, Plan, compile_plan, load_plugin
from kaged.pipeline.runner import MAX_AT_ONCE, Runner
from kaged.pipeline.unfired import unfired_problems

if TYPE_CHECKING:
    from kaged.pipeline.auditing import PipelineObserver
    from kaged.pipeline.chain import StepTracer
    from kaged.pipeline.contexts import GlobalContext, PluginContextTable
    from kaged.pipeline.results import PluginResult
    from kaged.pipeline.settings import PluginConfig
    from kaged.pipeline.slots import Extensions
    from kaged.pipeline.trace_log import TraceLog

DEFAULT_TIMEOUT_S = 30.0
START_TIMEOUT_S = 60.0
SHUTDOWN_TIMEOUT_S = 10.0

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What came of loading a file.

    `in_force` tells whether its plugins run now. Otherwise the previous ones still run, or, when
    there were none, calls on the hooks it names are refused.
    """

    file: str
    problems: tuple[Problem, ...]
    in_force: bool
    plugins: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """How the pipeline stands, for status pages and `doctor`. `file` is None before a load."""

    file: str | None
    problems: tuple[Problem, ...]
    plugins: tuple[str, ...]
    switched_off: tuple[str, ...]
    refused_hooks: tuple[str, ...]
    refuses_all: bool
    in_force: bool

    @property
    def sound(self) -> bool:
        """Return whether everything the file asks for is in force."""
        return not any(problem.severity is Severity.ERROR for problem in self.problems)


@dataclass(frozen=True, slots=True)
class _Force:
    """What is in force: live plugins and their plans, or the hooks that are refused."""

    live: tuple[LoadedPlugin, ...] = ()
    plans: Mapping[str, Plan] | None = None
    refused: frozenset[str] | None = frozenset()
    """Hooks on which calls are refused; None means all."""


class Pipeline:
    """Runs hooks through the plugins of one configuration.

    A faulty configuration never takes the place of a sound one. One `Pipeline` per daemon, or per
    tenant; it shares no state with others. With `refuse_until_loaded`, calls on every hook are
    refused until the first load, so that nothing slips by while plugins start. `facts` are the
    host's own, for the slots of every call. `in_daemon` refuses plugins on hooks that the daemon
    does not fire. `traces` keeps what the plugins did in each call. `at_once` as for `Runner`.
    """

    def __init__(
        self,
        clock: Clock,
        ids: Ids,
        *,
        kinds: Mapping[str, PluginKind] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        observer: PipelineObserver | None = None,
        tracer: StepTracer | None = None,
        hook_policies: Mapping[str, HookPayloadPolicy] | None = None,
        default_hook_policy: DefaultHookPolicy = DefaultHookPolicy.ALLOW,
        guarded: bool = True,
        refuse_until_loaded: bool = False,
        facts: Callable[[], HostFacts] = lambda: NO_FACTS,
        in_daemon: bool = False,
        traces: TraceLog | None = None,
        at_once: int = MAX_AT_ONCE,
    ) -> None:
        self._clock = clock
        self._guarded = guarded
        self.facts = facts
        self.traces = traces
        self._in_daemon = in_daemon
        self._ids = ids
        self._kinds = dict(kinds or {})
        self._timeout_s = timeout_s
        self._policies = dict(hook_policies or {})
        self._default_policy = default_hook_policy
        self._registry = HookRegistry()
        self._tasks = Tasks("pipeline")
        self.runner = Runner(
            clock,
            self._tasks,
            guarded=guarded,
            observer=observer,
            tracer=tracer,
            at_once=at_once,
        )
        self._force = _Force(refused=None) if refuse_until_loaded else _Force()
        self._report: LoadReport | None = None
        self._loading = asyncio.Lock()

    # -- loading -------------------------------------------------------------------------------

    async def load_file(
        self, path: Path, *, lenient: bool = False, also: Iterable[PluginConfig] = ()
    ) -> LoadReport:
        """Load the configuration file and put it in force if it is sound; `also` runs after it.

        Never raises for what the file says: a starting daemon must come up. With `lenient`, faulty
        plugins are left out and the rest runs.
        """
        try:
            text = await asyncio.to_thread(path.read_text, encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            problem = Problem(str(path), None, None, "", f"cannot be read: {error}")
            document = PipelineDocument(str(path), (), (problem,), None)
        else:
            document = parse_document(text, str(path))
        document = document.with_configs(also)
        return await self.load(document, base=path.parent, lenient=lenient)

    async def load(
        self, document: PipelineDocument, *, base: Path | None = None, lenient: bool = False
    ) -> LoadReport:
        """Start the plugins of a parsed file and put them in force if all is sound."""
        async with self._loading:
            problems = list(document.problems)
            problems += _open_dirs(document, base or Path.cwd())
            if self._in_daemon:
                problems += unfired_problems(document)
            live: list[LoadedPlugin] = []
            try:
                await self._start_all(document.entries, document.file, problems, live)
            except BaseException:
                await asyncio.shield(_stop_all(live))  # the daemon ends in mid-start
                raise
            faulty = any(problem.severity is Severity.ERROR for problem in problems)
            if faulty and not lenient:
                await _stop_all(live)
                if self._force.plans is None:
                    self._force = _Force(refused=document.hooks)
                report = LoadReport(document.file, _in_order(problems), False, ())
                self._report = report
                return report
            names = tuple(plugin.config.name for plugin in live)
            report = LoadReport(document.file, _in_order(problems), True, names)
            await self._put_in_force(live, report)
            return report

    async def load_configs(
        self, configs: Iterable[PluginConfig], name: str = "<configs>"
    ) -> LoadReport:
        """Start plugins from configuration objects instead of a file."""
        empty = PipelineDocument(name, (), (), frozenset())
        return await self.load(empty.with_configs(configs))

    async def close(self) -> None:
        """Stop the plugins, last first, and what still runs in the background."""
        async with self._loading:
            live, self._force = self._force.live, _Force()
            await _stop_all(live)
            await self._tasks.close()

    async def _start_all(
        self,
        entries: Iterable[PluginEntry],
        file: str,
        problems: list[Problem],
        live: list[LoadedPlugin],
    ) -> None:
        for entry in entries:
            if entry.config.mode is PluginMode.DISABLED:
                continue
            started: StartedPlugin | None = None
            try:
                kind = resolve_kind(entry.config.kind, self._kinds)
                async with asyncio.timeout(START_TIMEOUT_S):
                    started = await kind.start(entry.config)
                for hook in entry.config.hooks:
                    started.bind(hook)
            except (KagedError, TimeoutError) as error:
                problems.append(_load_problem(entry, file, error))
                if started is not None:
                    await _stop(started, entry.config.name)
                continue
            plugin_id = hashlib.blake2b(self._ids.ulid().encode(), digest_size=16).hexdigest()
            live.append(load_plugin(entry.config, plugin_id, self._timeout_s, started))

    async def _put_in_force(self, live: list[LoadedPlugin], report: LoadReport) -> None:
        hooks = {hook for plugin in live for hook in plugin.config.hooks}
        plans = {hook: self._plan(hook, live) for hook in hooks}
        previous = self._force.live
        self._force = _Force(tuple(live), plans, frozenset())
        self._report = report
        await _stop_all(previous)

    def _plan(self, hook: str, live: Iterable[LoadedPlugin]) -> Plan:
        policy = resolve_policy(hook, self._policies, self._default_policy)
        return compile_plan(hook, live, self._registry.kind(hook), policy)

    # -- looking -------------------------------------------------------------------------------

    @property
    def status(self) -> PipelineStatus:
        """Return what is in force and what is wrong."""
        force, report = self._force, self._report
        return PipelineStatus(
            file=None if report is None else report.file,
            problems=() if report is None else report.problems,
            plugins=tuple(plugin.config.name for plugin in force.live),
            switched_off=tuple(plugin.config.name for plugin in force.live if plugin.switch.off),
            refused_hooks=tuple(sorted(force.refused or ())),
            refuses_all=force.refused is None,
            in_force=report is not None and report.in_force,
        )

    @property
    def plans(self) -> Mapping[str, Plan]:
        """Return the plans in force, by hook."""
        return dict(self._force.plans or {})

    @property
    def live(self) -> tuple[LoadedPlugin, ...]:
        """Return the plugins in force, in the order of the file."""
        return self._force.live

    def has_hooks_for(self, hook: str) -> bool:
        """Return whether a call on this hook meets a plugin, or a refusal."""
        force = self._force
        return force.refused is None or hook in force.refused or hook in (force.plans or {})

    def watch(self, tracer: StepTracer | None) -> None:
        """Let `tracer` watch every step of calls that begin from now on; None ends it."""
        self.runner.watch(tracer)

    def use_timeout(self, timeout_s: float) -> None:
        """Set the timeout of plugins without one of their own, from the next load on."""
        self._timeout_s = timeout_s

    def reset_switched_off(self) -> None:
        """Let plugins run again that `on_error: disable` has switched off."""
        for plugin in self._force.live:
            plugin.switch.off = False

    def pure_twin(self) -> Pipeline:
        """Return a pipeline of the pure plugins in force, which is not observed; close it."""
        twin = Pipeline(self._clock, self._ids, guarded=self._guarded, facts=self.facts)
        plans = {hook: plan.pure_part() for hook, plan in self.plans.items()}
        twin._force = _Force((), plans, self._force.refused)  # the plugins stay this one's
        return twin

    # -- running -------------------------------------------------------------------------------

    def invoke_hook(
        self,
        hook_type: str,
        payload: Any,
        global_context: GlobalContext,
        local_contexts: PluginContextTable | None = None,
        violations_as_exceptions: bool = False,
        extensions: Extensions | None = None,
        tracer: StepTracer | None = None,
    ) -> Coroutine[Any, Any, tuple[PluginResult[Any], PluginContextTable | None]]:
        """Take a payload through the plugins of a hook; await it for what `Runner.run` gives.

        Raises:
            PipelineNotReady: the configuration that names this hook is faulty.
            PluginError, PluginViolationError, PayloadSizeError: as `Runner.run`.
        """
        # No coroutine of its own: one less on the way of every call.
        force = self._force
        plan = None if force.plans is None else force.plans.get(hook_type)
        if plan is None:
            if force.refused is None or hook_type in force.refused:
                raise self.not_ready(hook_type)
            plan = _NOTHING_TO_DO
        return self.runner.run(
            plan,
            payload,
            global_context,
            local_contexts,
            violations_as_exceptions,
            extensions,
            tracer,
        )

    def not_ready(self, hook: str) -> PipelineNotReady:
        """Return the error of a call on a hook that is refused as a whole, saying why."""
        if self._report is None:
            return PipelineNotReady(
                f"calls on {hook} are refused until the pipeline's plugins have started",
                fix="try again in a moment",
                hook=hook,
            )
        file = self._report.file
        return PipelineNotReady(
            f"calls on {hook} are refused because {file} is faulty",
            fix=f"run 'kaged pipeline check' and correct {file}",
            hook=hook,
            file=file,
        )


def _open_dirs(document: PipelineDocument, base: Path) -> list[Problem]:
    refused = add_plugin_dirs(document.plugin_dirs, base)
    return [
        Problem(
            document.file,
            None,
            None,
            "plugin_dirs",
            f"{folder!r} is outside {base}",
            "keep plugin folders beside the file",
        )
        for folder in refused
    ]


def _load_problem(entry: PluginEntry, file: str, error: BaseException) -> Problem:
    key = "kind"
    message = f"plugin {entry.config.name!r} did not start within {START_TIMEOUT_S:g}s"
    fix = ""
    line = entry.line_of(key)
    if isinstance(error, HookNotBound):
        key = "hooks"
        mark = entry.hook_marks.get(str(error.data.get("hook")))
        line = entry.line_of(key) if mark is None else mark.line
        message, fix = error.message, error.fix or ""
    elif isinstance(error, KagedError):
        key = str(error.data.get("key", "kind"))
        line = entry.line_of(key)
        message = error.message
        if repr(entry.config.name) not in message:
            message = f"plugin {entry.config.name!r}: {message}"
        fix = error.fix or ""
    return Problem(
        file,
        line,
        1,
        format_key_path(("plugins", entry.index, key)),
        message,
        fix,
        code=error.code if isinstance(error, KagedError) else "pipeline_invalid",
    )


def _in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    return tuple(sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0)))


async def _stop_all(live: Iterable[LoadedPlugin]) -> None:
    for plugin in reversed(list(live)):
        await _stop(plugin.started, plugin.config.name)


async def _stop(started: StartedPlugin, name: str) -> None:
    asked = cancellations()
    try:
        async with asyncio.timeout(SHUTDOWN_TIMEOUT_S):
            await started.shutdown()
    except BaseException as error:  # noqa: BLE001 - boundary: one plugin's end must not keep others alive
        if cancellations() > asked:
            raise asyncio.CancelledError from None  # the caller's own
        words = describe_error(error, as_repr=True)
        _log.warning("pipeline.plugin_shutdown_failed", plugin=name, error=words)


_NOTHING_TO_DO = compile_plan("", (), None, None)
