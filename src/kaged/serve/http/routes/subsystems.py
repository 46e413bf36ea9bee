"""The service behind each group of routes that starts later than the daemon's first answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends

from kaged.credentials.credential_service import CredentialService
from kaged.inbox import Inbox
from kaged.lua.script_service import ScriptService
from kaged.models.catalogue import ModelCatalogue
from kaged.pipeline.trace_log import TraceLog
from kaged.plugins.plugin_service import PluginService
from kaged.serve.http.routes.dependencies import Services
from kaged.serve.http.services import Subsystems
from kaged.services.account_service import AccountService
from kaged.sessions.agent_tools import AgentToolService
from kaged.skills.skill_service import SkillService
from kaged.toolset.language_services import LanguageServices
from kaged.workspace.undo_service import UndoService


def _part(choose: Callable[[Subsystems], object]) -> Any:
    """Return the dependency that finds one of the subsystems."""

    async def find(services: Services) -> object:
        return choose(services.subsystems)

    return Depends(find)


async def _plugins(services: Services) -> PluginService:
    plugins = services.subsystems.plugins
    await plugins.ready()
    return plugins


Plugins = Annotated[PluginService, Depends(_plugins)]
Tools = Annotated[AgentToolService, _part(lambda found: found.tools)]
LanguageServers = Annotated[LanguageServices, _part(lambda found: found.code)]
Undo = Annotated[UndoService, _part(lambda found: found.undo)]
Models = Annotated[ModelCatalogue, _part(lambda found: found.models)]
Accounts = Annotated[AccountService, _part(lambda found: found.accounts)]
Credentials = Annotated[CredentialService, _part(lambda found: found.credentials)]
Skills = Annotated[SkillService, _part(lambda found: found.skills)]
Scripts = Annotated[ScriptService, _part(lambda found: found.lua)]
Traces = Annotated[TraceLog, _part(lambda found: found.traces)]
InboxService = Annotated[Inbox, _part(lambda found: found.inbox)]
