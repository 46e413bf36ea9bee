"""The service behind each group of routes that starts later than the daemon's first answer."""

from __future__ import annotations

from typing import Annotated, TypeVar

from fastapi import Depends

from kaged.lua.script_service import ScriptService
from kaged.models.catalogue import ModelCatalogue
from kaged.plugins.plugin_service import PluginService
from kaged.serve.http.routes.dependencies import Services
from kaged.serve.http.services import accounts_of
from kaged.services.account_service import AccountService
from kaged.sessions.agent_tools import AgentToolService
from kaged.toolset.language_services import LanguageServices
from kaged.workspace.undo_service import UndoService

T = TypeVar("T")


def present(service: T | None) -> T:
    """Return a service that every daemon has once a request has waited for it."""
    assert service is not None
    return service


async def _plugins(services: Services) -> PluginService:
    plugins = present(services.plugins)
    await plugins.ready()
    return plugins


async def _tools(services: Services) -> AgentToolService:
    return present(services.tools)


async def _language_services(services: Services) -> LanguageServices:
    return present(services.code)


async def _undo(services: Services) -> UndoService:
    return present(services.undo)


async def _models(services: Services) -> ModelCatalogue:
    return present(services.models)


async def _accounts(services: Services) -> AccountService:
    return present(accounts_of(services))


async def _scripts(services: Services) -> ScriptService:
    return present(services.lua)


Plugins = Annotated[PluginService, Depends(_plugins)]
Tools = Annotated[AgentToolService, Depends(_tools)]
LanguageServers = Annotated[LanguageServices, Depends(_language_services)]
Undo = Annotated[UndoService, Depends(_undo)]
Models = Annotated[ModelCatalogue, Depends(_models)]
Accounts = Annotated[AccountService, Depends(_accounts)]
Scripts = Annotated[ScriptService, Depends(_scripts)]
