"""Configuration models and settings that exist under the published names only."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from kaged.pipeline.settings import PluginConfig


class TransportType(StrEnum):
    """How a program talks to a plugin server."""

    SSE = "SSE"
    HTTP = "HTTP"
    STDIO = "STDIO"
    STREAMABLEHTTP = "STREAMABLEHTTP"


class MCPServerConfig(BaseModel):
    """How plugins are served over MCP; read, not used here."""

    model_config = ConfigDict(extra="allow", defer_build=True)

    host: str = "127.0.0.1"
    port: int = 8000


class MCPClientConfig(BaseModel):
    """How an external plugin is reached over MCP."""

    model_config = ConfigDict(extra="allow", defer_build=True)

    proto: TransportType
    url: str | None = None
    script: str | None = None
    cmd: list[str] | None = None
    env: dict[str, str] | None = None
    cwd: str | None = None


class Config(BaseModel):
    """A whole plugin configuration as an object."""

    model_config = ConfigDict(extra="ignore", defer_build=True)

    plugins: list[PluginConfig] | None = Field(default_factory=list)
    plugin_dirs: list[str] = Field(default_factory=list)
    server_settings: dict[str, Any] | None = None
    grpc_server_settings: dict[str, Any] | None = None
    unix_socket_server_settings: dict[str, Any] | None = None


_TRUE = frozenset({"1", "true", "yes", "on"})


class PluginsSettings:
    """The settings of the plugin framework; unknown ones do not exist, so defaults apply."""

    @property
    def enabled(self) -> bool:
        """Whether `get_plugin_manager` returns a manager."""
        return _flag("PLUGINS_ENABLED")

    @property
    def config_file(self) -> str:
        """The configuration file of `get_plugin_manager`."""
        return os.environ.get("PLUGINS_CONFIG_FILE", "plugins/config.yaml")

    @property
    def plugin_timeout(self) -> int:
        """Seconds that one plugin may take for one call."""
        return int(os.environ.get("PLUGINS_PLUGIN_TIMEOUT", "30"))

    @property
    def execution_pool(self) -> int:
        """How many concurrent plugins run at once in one call; 0 means all."""
        return max(0, int(os.environ.get("PLUGINS_EXECUTION_POOL", "10")))

    @property
    def fail_on_plugin_error(self) -> bool:
        """Kept for readers; loading always fails on a faulty plugin here."""
        return _flag("PLUGINS_FAIL_ON_PLUGIN_ERROR")

    @property
    def default_hook_policy(self) -> str:
        """What happens to payload edits of hooks without a policy."""
        return os.environ.get("PLUGINS_DEFAULT_HOOK_POLICY", "allow")

    def cache_clear(self) -> None:
        """Do nothing: nothing is cached."""


def get_settings() -> PluginsSettings:
    """Return the settings as the environment has them now."""
    return settings


def _flag(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() in _TRUE


settings: Any = PluginsSettings()
