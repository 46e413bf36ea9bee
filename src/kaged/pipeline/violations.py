"""`PluginViolation`: why a plugin says no."""

from __future__ import annotations

from typing import Any, ClassVar

from kaged.pipeline.isolation import exact_text, isolate_payload
from kaged.pipeline.shapes import PlainRecord


class PluginViolation(PlainRecord):
    """Why a plugin says no: a short reason, a description and a code, plus what to answer."""

    __slots__ = (
        "_plugin_name",
        "code",
        "description",
        "details",
        "http_headers",
        "http_status_code",
        "mcp_error_code",
        "reason",
    )
    shape: ClassVar[tuple[str, ...]] = (
        "reason",
        "description",
        "code",
        "details",
        "mcp_error_code",
        "http_status_code",
        "http_headers",
    )

    def __init__(
        self,
        reason: str,
        description: str,
        code: str,
        details: dict[str, Any] | None = None,
        mcp_error_code: int | None = None,
        http_status_code: int | None = None,
        http_headers: dict[str, str] | None = None,
    ) -> None:
        for name, text in (("reason", reason), ("description", description), ("code", code)):
            if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are plugins
                raise TypeError(f"{name} of a violation is text, not {type(text).__name__}")
        self.reason = reason
        self.description = description
        self.code = code
        self.details: dict[str, Any] = {} if details is None else details
        self.mcp_error_code = mcp_error_code
        self.http_status_code = http_status_code
        self.http_headers = http_headers
        self._plugin_name = ""

    @property
    def plugin_name(self) -> str:
        """Return the name of the plugin that denied; set by the host."""
        return self._plugin_name

    @plugin_name.setter
    def plugin_name(self, name: str) -> None:
        if not name.strip():
            raise ValueError("the plugin name of a violation is not empty")
        self._plugin_name = name

    def for_host(self, plugin_name: str) -> PluginViolation:
        """Copy this into the host's hands, with the name of the plugin that it came from."""
        own = PluginViolation(
            exact_text(self.reason) or "",
            exact_text(self.description) or "",
            exact_text(self.code) or "",
            isolate_payload(self.details),
            self.mcp_error_code if type(self.mcp_error_code) is int else None,
            self.http_status_code if type(self.http_status_code) is int else None,
            isolate_payload(self.http_headers),
        )
        own._plugin_name = plugin_name
        return own
