"""`DaemonConfig`: the operator's `config.toml`, section by section; `load_daemon_config`.

Everything has a default, so an absent file is fine. Unknown keys are warned about with the nearest
known name. Lua grants, skills, capability providers and MCP servers fail alone: the daemon starts
without them and says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from kaged.config.containers import JsonTable
from kaged.config.coresections import (
    AuthMode,
    AuthSection,
    DaemonSection,
    LoggingSection,
    SandboxSection,
    SessionsSection,
    StorageSection,
)
from kaged.config.credentials_section import CREDENTIALS, CredentialSection
from kaged.config.files import Privacy
from kaged.config.nodes import Node
from kaged.config.people_section import PEOPLE, TEAMS, PersonSection, TeamSection
from kaged.config.pipeline_section import PipelineSection
from kaged.config.providers import CapabilitiesSection, SkillSection
from kaged.config.reading import DocumentPosition, Loaded, Reading
from kaged.config.records import RecordShape, empty_map, key, record, section
from kaged.config.sections import Sections, SectionsOf
from kaged.config.tomldoc import load_toml
from kaged.config.toolsections import (
    DapSection,
    LspSection,
    LuaSection,
    McpSection,
    PluginsSection,
)
from kaged.config.toolsettings import ToolsSection

_NO_MODEL: Final = (
    "a skill runs in the session of the agent that loads it, with that agent's model; "
    "set `model` of the agent in the project file"
)


@record
class DaemonConfig:
    """The operator's settings of the daemon (`config.toml`)."""

    daemon: DaemonSection = section("The daemon itself.", factory=DaemonSection)
    auth: AuthSection = section("Who may use the HTTP API.", factory=AuthSection)
    people: Mapping[str, PersonSection] = key(
        PEOPLE,
        "People whom a front end or a sign-in names, by id; `*` is everybody else. As soon as "
        "somebody is named, whoever is not may use nothing.",
        default_factory=empty_map,
    )
    teams: Mapping[str, TeamSection] = key(
        TEAMS, "Teams into which their leads invite people.", default_factory=empty_map
    )
    storage: StorageSection = section("The database.", factory=StorageSection)
    sandbox: SandboxSection = section("Cages.", factory=SandboxSection)
    logging: LoggingSection = section("The log.", factory=LoggingSection)
    plugins: PluginsSection = section("Plugins.", factory=PluginsSection)
    lsp: LspSection = section("Language servers.", factory=LspSection)
    dap: DapSection = section("Debug adapters.", factory=DapSection)
    lua: LuaSection = section("Lua scripts.", factory=LuaSection)
    skills: Sections[SkillSection] = key(
        SectionsOf(
            RecordShape(
                SkillSection,
                extras=("extras", JsonTable()),
                hints=MappingProxyType({"model": _NO_MODEL}),
            )
        ),
        "Skills, by name.",
        default_factory=Sections,
    )
    capabilities: CapabilitiesSection = section(
        "Access to people's accounts.", factory=CapabilitiesSection
    )
    tools: ToolsSection = section("Tools of agents.", factory=ToolsSection)
    sessions: SessionsSection = section("Sessions of agents.", factory=SessionsSection)
    pipeline: PipelineSection = section("Policy plugins.", factory=PipelineSection)
    mcp: McpSection = section("MCP servers.", factory=McpSection)
    credentials: Sections[CredentialSection] = key(
        CREDENTIALS,
        "Credentials that programs in cages use without seeing them, by name.",
        default_factory=Sections,
    )


def _check_config(given: Mapping[str, Any], node: Node, place: DocumentPosition) -> None:
    auth: AuthSection = given.get("auth", AuthSection())
    daemon: DaemonSection = given.get("daemon", DaemonSection())
    if auth.mode is AuthMode.INSECURE and daemon.bind is not None and not daemon.bind.loopback:
        section = node.child("daemon")
        bind = None if section is None else section.child("bind")
        place.at("daemon", "bind").error(
            bind or node,
            f"insecure mode may not listen on {daemon.bind}, which others can reach",
            'bind to 127.0.0.1, or set [auth] mode = "secure"',
            "insecure_bind_refused",
        )


CONFIG_SHAPE: Final = RecordShape(
    DaemonConfig,
    check=_check_config,
    hints=MappingProxyType(
        {
            "models": "models belong in local.toml: [models.<alias>]",
            "secrets": "secrets belong in local.toml",
        }
    ),
)


def load_daemon_config(path: Path, environ: Mapping[str, str]) -> Loaded[DaemonConfig]:
    """Read `config.toml`; an absent file gives the defaults.

    Raises:
        ConfigFileInvalid: with every problem, or because others may change the file.
    """
    home = environ.get("HOME")
    reading = Reading(
        str(path),
        base=path.absolute().parent,
        home=Path(home) if home else None,
        environ=environ,
    )
    return load_toml(
        path, reading, CONFIG_SHAPE.read, default=DaemonConfig, privacy=Privacy.TRUSTED
    )
