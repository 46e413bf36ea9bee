"""What the plugin routes take and give."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from kaged.serve.http.models import Model

MAX_PATH_CHARS = 4096


class PluginPathIn(Model):
    """A plugin's directory on the daemon's machine."""

    path: Annotated[str, Field(min_length=1, max_length=MAX_PATH_CHARS)]


class ConsentIn(PluginPathIn):
    """The operator's yes to exactly the files that the preview showed."""

    digest: Annotated[str, Field(pattern=r"^[A-Za-z0-9:+/=_-]{8,256}$")]


class PluginsOut(Model):
    """The installed plugins."""

    items: list[dict[str, Any]]


__all__ = ["ConsentIn", "PluginPathIn", "PluginsOut"]
