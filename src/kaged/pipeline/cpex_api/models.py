"""Configuration models that exist under the published names only."""

from __future__ import annotations

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


__all__ = ["Config", "MCPClientConfig", "MCPServerConfig", "TransportType"]
