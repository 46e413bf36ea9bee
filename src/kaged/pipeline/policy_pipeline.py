"""`PolicyPipeline`: the policy plugins that `[pipeline]` names, put in force and kept so.

Nothing of the pipeline is even imported while no file is named. With one, calls are refused from
the first moment on until its plugins have started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kaged import __version__
from kaged.audit import AuditEvent, AuditLog
from kaged.base import Clock, Ids, JsonObject
from kaged.base.checks import CheckRow, CheckStatus
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.config.pipeline_section import PipelineSection, UntrustedContent
from kaged.config.settings import Settings
from kaged.projects.readiness import Guard

if TYPE_CHECKING:
    from kaged.config.problems import Problem
    from kaged.kernel.call_facts import ModelIdentity
    from kaged.pipeline.host_facts import HostFacts
    from kaged.pipeline.kinds import PluginKind
    from kaged.pipeline.pipeline import Pipeline, PipelineStatus
    from kaged.pipeline.settings import PluginConfig
    from kaged.pipeline.trace_log import TraceLog

WHAT = "The policy plugins around every call."
CHECK = "Run `kaged pipeline check` and mend the lines named."
SHOWN_PROBLEMS = 5
UNTRUSTED_GUARD = "untrusted-content"
"""The name of the policy that `[pipeline] untrusted` switches on."""

_SETTINGS = "[pipeline] untrusted"

_log = get_logger("kaged.pipeline")


@dataclass(slots=True)
class ActivePipeline:
    """Where the host keeps the pipeline in force; a reload may put another one here, or none."""

    pipeline: Pipeline | None = None


class PolicyPipeline:
    """Loads the file that the settings name, again at every reload, and tells how it stands."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        active_pipeline: ActivePipeline,
        *,
        kinds: Callable[[], Mapping[str, PluginKind]],
        audit: AuditLog,
        clock: Clock,
        ids: Ids,
        guard: Guard | None = None,
        traces: TraceLog | None = None,
    ) -> None:
        self._traces = traces
        self._guard = guard or Guard("policies")
        self._settings = settings
        self._active_pipeline = active_pipeline
        self._kinds = kinds
        self._audit = audit
        self._clock = clock
        self._ids = ids
        self._turn = asyncio.Lock()
        self._model_of: Callable[[str], ModelIdentity | None] = lambda _alias: None
        self._projects_named: Callable[[Collection[str]], Collection[str]] = lambda _words: ()
        if not self._wanted:
            self._guard.stand()
        else:
            active_pipeline.pipeline = self._build()

    @property
    def _file(self) -> Path | None:
        return self._settings().daemon.value.pipeline.file

    @property
    def _wanted(self) -> bool:
        section = self._settings().daemon.value.pipeline
        return section.file is not None or section.untrusted is not UntrustedContent.OFF

    def connect(
        self,
        model_of: Callable[[str], ModelIdentity | None],
        projects_named: Callable[[Collection[str]], Collection[str]],
    ) -> None:
        """Take what tells policies more about calls: models by alias, projects by their names."""
        self._model_of = model_of
        self._projects_named = projects_named

    async def load(self) -> Sequence[Problem]:
        """Read the file and put it in force if it is sound; returns everything that is wrong.

        A faulty file leaves the plugins that run in place. When there are none, calls on the hooks
        that it names stay refused.
        """
        async with self._turn:
            with self._guard.rising():
                return await self._load()

    async def _load(self) -> Sequence[Problem]:
        section = self._settings().daemon.value.pipeline
        pipeline = self._active_pipeline.pipeline
        if not self._wanted:
            self._active_pipeline.pipeline = None
            if pipeline is not None:
                await pipeline.close()
            return ()
        if pipeline is None:
            pipeline = self._active_pipeline.pipeline = self._build()
        pipeline.use_timeout(section.timeout_seconds)
        also = _from_settings(section)
        report = await (
            pipeline.load_configs(also, _SETTINGS)
            if section.file is None
            else pipeline.load_file(section.file, lenient=section.lenient, also=also)
        )
        problems = [str(problem) for problem in report.problems]
        data: JsonObject = {
            "file": report.file,
            "in_force": report.in_force,
            "plugins": list(report.plugins),
            "problems": list(problems),
        }
        self._audit.post(AuditEvent("pipeline.loaded", data))
        if problems:
            _log.error("pipeline.file_invalid", in_force=report.in_force, problems=problems)
        return report.problems

    async def close(self) -> None:
        """Stop the plugins. Calls that come after this are refused."""
        async with self._turn:
            pipeline = self._active_pipeline.pipeline
            if pipeline is not None:
                self._active_pipeline.pipeline = self._build()
                await pipeline.close()

    def row(self) -> CheckRow:
        """Return doctor's row about the pipeline in force."""
        pipeline = self._active_pipeline.pipeline
        if pipeline is None:
            return _none_row()
        return status_row(pipeline.status, str(self._file or _SETTINGS))

    def warnings(self) -> list[str]:
        """Return what is wrong with it, for the status page; empty when nothing is."""
        row = self.row()
        return [] if row.status is CheckStatus.OK else [f"pipeline: {row.cause}"]

    def _build(self) -> Pipeline:
        from kaged.pipeline.auditing import PipelineAudit  # noqa: PLC0415  # only when configured
        from kaged.pipeline.pipeline import Pipeline  # noqa: PLC0415  # only when configured

        return Pipeline(
            self._clock,
            self._ids,
            kinds=self._kinds(),
            timeout_s=self._settings().daemon.value.pipeline.timeout_seconds,
            observer=PipelineAudit(self._audit.post),
            refuse_until_loaded=True,
            facts=self._facts,
            in_daemon=True,
            traces=self._traces,
        )

    def _facts(self) -> HostFacts:
        from kaged.pipeline.host_facts import HostFacts  # noqa: PLC0415  # only when configured

        section = self._settings().daemon.value.pipeline
        return HostFacts(
            environment=section.environment,
            version=__version__,
            classification=self._classification,
            model=self._model_of,
        )

    def _classification(self, project_id: str | None) -> str | None:
        section = self._settings().daemon.value.pipeline
        for word, text in section.classifications.items():
            if project_id is not None and project_id in self._projects_named({word}):
                return text
        return section.classification


def _from_settings(section: PipelineSection) -> Sequence[PluginConfig]:
    """Return the policies that the settings switch on by themselves."""
    if section.untrusted is UntrustedContent.OFF:
        return ()
    from kaged.pipeline.settings import PluginConfig  # noqa: PLC0415  # only when configured

    return (
        PluginConfig(
            name=UNTRUSTED_GUARD,
            kind="kaged.pipeline.policies.UntrustedContentGuard",
            hooks=["tool_pre_invoke"],
            capabilities=frozenset({"read_labels"}),
            config={"action": section.untrusted.value},
        ),
    )


def file_row(settings: Settings) -> CheckRow:
    """Return doctor's row about the file, when no daemon runs: read, but nothing is started."""
    section = settings.daemon.value.pipeline
    file = section.file
    if file is None:
        if section.untrusted is UntrustedContent.OFF:
            return _none_row()
        return _row(CheckStatus.OK, f"{_SETTINGS}: 1 plugin, not started by this check")
    from kaged.pipeline.document import parse_document  # noqa: PLC0415  # only when configured

    try:
        document = parse_document(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        fix = "Correct it, or leave [pipeline] file out."
        return _row(CheckStatus.FAIL, f"{file} cannot be read: {error}", fix)
    if document.problems:
        status = CheckStatus.FAIL if document.faulty else CheckStatus.WARN
        return _row(status, _listed(document.problems), CHECK)
    found = f"{file}: {len(document.entries)} plugins, not started by this check"
    return _row(CheckStatus.OK, found)


def _none_row() -> CheckRow:
    return _row(CheckStatus.OK, "none; [pipeline] names no file")


def status_row(status: PipelineStatus, file: str) -> CheckRow:
    """Return the status of a running daemon's pipeline; `file` is the one that it is to load."""
    if status.file is None:
        cause = f"{file}: plugins are starting, calls are refused"
        return _row(CheckStatus.WARN, cause, "Look again in a moment.")
    listed = _listed(status.problems)
    if not status.sound and (status.refuses_all or status.refused_hooks):
        hooks = "every hook" if status.refuses_all else ", ".join(status.refused_hooks)
        return _row(CheckStatus.FAIL, f"calls on {hooks} are refused: {listed}", CHECK)
    if not status.sound:
        kept = "the faulty plugins are left out" if status.in_force else "the old file is in force"
        return _row(CheckStatus.WARN, f"{kept}: {listed}", CHECK)
    running = f"{status.file}: {len(status.plugins)} plugins"
    if status.switched_off:
        cause = f"{running}, switched off after errors: {', '.join(status.switched_off)}"
        fix = "See pipeline.plugin_failed in the audit trail; SIGHUP starts them again."
        return _row(CheckStatus.WARN, cause, fix)
    if listed:
        return _row(CheckStatus.WARN, f"{running}; {listed}", CHECK)
    return _row(CheckStatus.OK, running)


def _row(status: CheckStatus, cause: str, fix: str = "") -> CheckRow:
    return CheckRow("pipeline", status, WHAT, cause, fix)


def _listed(problems: Sequence[Problem]) -> str:
    shown = [str(problem) for problem in problems[:SHOWN_PROBLEMS]]
    if len(problems) > SHOWN_PROBLEMS:
        shown.append(f"and {len(problems) - SHOWN_PROBLEMS} more")
    return "; ".join(shown)
