"""`open_toolboxes`: the built-in tools with the engines behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from kaged.base import Clock, KagedError
from kaged.base.log import get_logger
from kaged.cage import Spawner
from kaged.cage.net import SystemResolver
from kaged.config.projectpaths import KAGED_DIR
from kaged.config.sealing import seal_policy
from kaged.config.settings import Settings
from kaged.config.toolsettings import OutsideHitsWord, ReviewWord, SealWord, ToolsSection
from kaged.kernel.policy import CagePolicy
from kaged.kernel.protected_paths import ProtectedRules, rules_for
from kaged.skills.skill_service import SkillService
from kaged.store.session_skill_rows import SessionSkillRows
from kaged.toolbox.ast import AstSettings, AstWorkers, WorkerEngine, ast_tools
from kaged.toolbox.files import file_tools
from kaged.toolbox.project import ProjectWork, project_tools
from kaged.toolbox.search import (
    EngineRunner,
    OutsideHits,
    RipgrepEngine,
    SearchSettings,
    search_tools,
)
from kaged.toolbox.shell import (
    Attach,
    BackgroundCommands,
    CommandRunner,
    JobsTool,
    PtyBroker,
    ShellSettings,
    caged_launcher,
    shell_tools,
)
from kaged.toolbox.web import FetchLimits, web_tools
from kaged.tools import Tool
from kaged.tools.definition import ToolSource
from kaged.tools.kept_results import KeptResults
from kaged.tools.quotas import QuotaRule
from kaged.tools.shown_results import ResultBudget
from kaged.toolset.language_services import LanguageServices
from kaged.toolset.skill_tools import LoadedSkills, skill_tools
from kaged.toolset.toolchain_kits import with_toolchains
from kaged.toolset.upload_mounts import with_uploads

KB: Final = 1024
LISTING_S: Final = 10.0
"""How long a listing of a project's files may take before it is watched without one."""
_log = get_logger("kaged.tools")

CHANGING_FILES: Final = frozenset({"file.write", "file.create", "edit.text", "edit.ast"})


def open_toolboxes(
    spawner: Spawner,
    work: ProjectWork,
    section: ToolsSection,
    language_services: LanguageServices,
    skills: SkillService,
    session_skills: SessionSkillRows,
    *,
    clock: Clock,
    closing: AsyncExitStack,
    attach: Attach,
    kept: KeptResults,
    background: BackgroundCommands,
) -> tuple[Sequence[Tool], str]:
    """Return the built-in tools, and in words how many there are. Starts no process.

    `attach` says what each caged command of the shell gets on top. `kept` are the results that
    were too long for windows, `background` keeps commands that go on after their call.

    Raises:
        KagedError: a search engine is missing.
    """
    searching = RipgrepEngine(EngineRunner(spawner), clock=clock)

    async def list_files(root: str, text: str | None) -> list[bytes] | None:
        try:
            paths, complete = await searching.find_files(
                root, ("./",), names=(), globs=(), literal=text, time_s=LISTING_S
            )
        except KagedError as error:
            _log.info("lsp.files_not_listed", root=root, error=str(error))
            return None
        return paths if complete else None

    language_services.connect(list_files)
    workers = AstWorkers(spawner)
    closing.push_async_callback(workers.close)
    parsing = WorkerEngine(workers)
    limits = section.limits
    output_bytes = limits.search_output_kb * KB
    shell = ShellSettings(
        scrub_env=section.scrub_env,
        longest_ms=round(limits.shell_seconds * 1000),
        output_bytes=limits.shell_output_kb * KB,
        interpreters=tuple(word.value for word in section.shells),
        background_s=limits.background_seconds,
    )
    broker = PtyBroker(output_bytes=shell.output_bytes)
    closing.push_async_callback(broker.dispose_all)
    loaded = LoadedSkills(skills, session_skills)
    launcher = loaded.recalled(
        caged_launcher(
            spawner,
            with_toolchains(
                spawner.settings,
                language_services.environ,
                with_uploads(work.uploads, loaded.attached(attach)),
            ),
        )
    )
    closing.push_async_callback(background.close)
    resolver = SystemResolver()
    closing.callback(resolver.close)
    runner = CommandRunner(broker, spawner, launcher, shell, clock, background)
    # Closed in reverse: when the terminals go, no server or debugger is left (AT-LSP-11).
    closing.push_async_callback(language_services.close)
    tools = (
        *file_tools(kept),
        *search_tools(
            searching,
            SearchSettings(
                time_s=limits.search_seconds,
                output_bytes=output_bytes,
                glob_files=limits.glob_files,
                outside=OutsideHits(section.outside_hits),
            ),
            clock=clock,
            kept=kept,
        ),
        *ast_tools(
            parsing,
            searching,
            AstSettings(
                time_s=limits.search_seconds,
                output_bytes=output_bytes,
                omit_outside=section.outside_hits is OutsideHitsWord.OMIT,
            ),
            clock=clock,
        ),
        *shell_tools(runner),
        JobsTool(background).tool(),
        *skill_tools(skills, runner, loaded),
        *project_tools(work),
        *web_tools(resolver, clock, FetchLimits(seconds=limits.web_seconds)),
        *language_services.tools(),
    )
    if section.diagnose_edits:
        watch = language_services.diagnosis().watch
        tools = tuple(watch(one) if one.definition.name in CHANGING_FILES else one for one in tools)
    own = [one for one in tools if one.definition.source is ToolSource.BUILTIN]
    return tools, f"{len(own)} built-in tools"


def quota_rules(section: ToolsSection) -> Sequence[QuotaRule]:
    """Return the operator's limits on calls as dispatch counts them."""
    return [QuotaRule(one.tools, one.calls, one.per) for one in section.quotas]


def result_budget(settings: Settings) -> ResultBudget:
    """Return what a result may take of a window, as the operator has it now."""
    section = settings.daemon.value.sessions
    return ResultBudget(section.read_tokens, section.result_tokens)


def sealed_folder(section: ToolsSection) -> str | None:
    """Return the project folder that no agent's tools may change, if the operator wants that."""
    return KAGED_DIR if section.protect_kaged is SealWord.ALL else None


def sealing(section: ToolsSection) -> Callable[[CagePolicy, str], CagePolicy]:
    """Return what keeps an agent's cage from being written by the agent, whatever was granted."""
    return lambda policy, root: seal_policy(policy, Path(root), section.protect_kaged)


def protected_rules(section: ToolsSection) -> Callable[[str], ProtectedRules]:
    """Return what gives the rules of protected paths for the root of a project."""
    allowed = [(one.project, one.path) for one in section.allow_protected]
    refuse = section.reviewed_files is ReviewWord.REFUSE
    return lambda root: rules_for(root, allowed, refuse_reviewed=refuse)
