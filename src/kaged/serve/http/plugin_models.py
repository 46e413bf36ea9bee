"""What the plugin routes take and give."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from kaged.serve.http.models import ApiModel, RequestBody

MAX_PATH_CHARS = 4096


class PluginPathIn(RequestBody):
    """A plugin's directory on the daemon's machine, or `gallery:NAME`."""

    path: Annotated[
        str, Field(min_length=1, max_length=MAX_PATH_CHARS, pattern=r"^[^\x00]+$")
    ]  # the system knows no path with a NUL, and Python says so with a ValueError


Digest = Annotated[str, Field(pattern=r"^[A-Za-z0-9:+/=_-]{8,256}$")]


class ConsentIn(PluginPathIn):
    """The operator's yes to exactly the files that the preview showed."""

    digest: Digest


class ApproveChangedFilesIn(RequestBody):
    """The operator's yes to an installed plugin's changed files."""

    digest: Digest


class ConsentAnswerIn(RequestBody):
    """The operator's answer to a question that a project's plugins raised."""

    allowed: Annotated[bool, Field(description="Yes or no.")]
    digest: Annotated[
        Digest | None, Field(description="Of the prompt that was shown, for a yes to installing.")
    ] = None
    path: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=MAX_PATH_CHARS,
            description="The plugin's directory, when the project names no source.",
        ),
    ] = None


class KnobWriteIn(RequestBody):
    """A new value of a knob, for one agent of a loaded project."""

    project_id: Annotated[str, Field(pattern=r"^prj_[A-Za-z0-9]{1,64}$")]
    agent_path: Annotated[str, Field(min_length=1, max_length=1024)] = "primary"
    value: Any


class ConsentsOut(ApiModel):
    """Questions to the operator."""

    items: list[dict[str, Any]]


class PluginsOut(ApiModel):
    """The installed plugins, and the data that is kept of others."""

    items: list[dict[str, Any]]
    kept: list[dict[str, Any]]
