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
    StorageSection,
)
from kaged.config.files import Privacy, is_missing, read_text
from kaged.config.nodes import Node
from kaged.config.problems import ConfigFileInvalid
from kaged.config.providers import CapabilitiesSection, SkillSection
from kaged.config.reading import INVALID, DocumentPosition, Loaded, Reading
from kaged.config.records import RecordShape, key, record
from kaged.config.sections import Sections, SectionsOf
from kaged.config.sessionsection import SessionsSection
from kaged.config.tomldoc import parse_toml
from kaged.config.toolsections import (
    DapSection,
    LspSection,
    LuaSection,
    McpSection,
    PipelineSection,
    PluginsSection,
)
from kaged.config.toolsettings import ToolsSection


@record
class DaemonConfig:
    """The operator's settings of the daemon (`config.toml`)."""

    daemon: DaemonSection = key(
        RecordShape(DaemonSection), "The daemon itself.", default_factory=DaemonSection
    )
    auth: AuthSection = key(
        RecordShape(AuthSection), "Who may use the HTTP API.", default_factory=AuthSection
    )
    storage: StorageSection = key(
        RecordShape(StorageSection), "The database.", default_factory=StorageSection
    )
    sandbox: SandboxSection = key(
        RecordShape(SandboxSection), "Cages.", default_factory=SandboxSection
    )
    logging: LoggingSection = key(
        RecordShape(LoggingSection), "The log.", default_factory=LoggingSection
    )
    plugins: PluginsSection = key(
        RecordShape(PluginsSection), "Plugins.", default_factory=PluginsSection
    )
    lsp: LspSection = key(RecordShape(LspSection), "Language servers.", default_factory=LspSection)
    dap: DapSection = key(RecordShape(DapSection), "Debug adapters.", default_factory=DapSection)
    lua: LuaSection = key(RecordShape(LuaSection), "Lua scripts.", default_factory=LuaSection)
    skills: Sections[SkillSection] = key(
        SectionsOf(RecordShape(SkillSection, extras=("extras", JsonTable()))),
        "Skills, by name.",
        default_factory=Sections,
    )
    capabilities: CapabilitiesSection = key(
        RecordShape(CapabilitiesSection),
        "Access to people's accounts.",
        default_factory=CapabilitiesSection,
    )
    tools: ToolsSection = key(
        RecordShape(ToolsSection), "Tools of agents.", default_factory=ToolsSection
    )
    sessions: SessionsSection = key(
        RecordShape(SessionsSection), "Sessions of agents.", default_factory=SessionsSection
    )
    pipeline: PipelineSection = key(
        RecordShape(PipelineSection), "Policy plugins.", default_factory=PipelineSection
    )
    mcp: McpSection = key(RecordShape(McpSection), "MCP servers.", default_factory=McpSection)


def _check_config(given: Mapping[str, Any], node: Node, place: DocumentPosition) -> None:
    auth: AuthSection = given.get("auth", AuthSection())
    daemon: DaemonSection = given.get("daemon", DaemonSection())
    if auth.mode is AuthMode.INSECURE and daemon.bind is not None and not daemon.bind.loopback:
        section = node.child("daemon")
        bind = None if section is None else section.child("bind")
        DocumentPosition(place.reading, ("daemon", "bind")).error(
            bind or node,
            f"insecure mode may not listen on {daemon.bind}, which others can reach",
            'bind to 127.0.0.1, or set [auth] mode = "secure"',
            "insecure_bind",
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
    try:
        found = read_text(path, privacy=Privacy.TRUSTED)
    except ConfigFileInvalid as error:
        if is_missing(error):
            return Loaded(DaemonConfig())
        raise
    home = environ.get("HOME")
    reading = Reading(
        str(path),
        base=path.absolute().parent,
        home=Path(home) if home else None,
        environ=environ,
    )
    reading.add(found.warnings)
    parsed = parse_toml(found.text, str(path))
    reading.add(parsed.problems)
    if parsed.node is None:
        return reading.finish(INVALID)
    return reading.finish(CONFIG_SHAPE.read(parsed.node, reading.top))
