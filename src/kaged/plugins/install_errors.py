"""What can go wrong between a plugin's source and the store, from the caller's side."""

from __future__ import annotations

from typing import ClassVar

from kaged.base import KagedError


class TreeRefused(KagedError):
    """A directory holds something that is never copied into the store: `path` says what."""

    code: ClassVar[str] = "plugin_tree_refused"


class AlreadyInstalled(KagedError):
    """This version of the plugin is installed already."""

    code: ClassVar[str] = "plugin_already_installed"


class ConsentMissing(KagedError):
    """The files are not the ones that the operator was shown; nothing was changed."""

    code: ClassVar[str] = "plugin_consent_missing"


class PluginInUse(KagedError):
    """Sessions use the plugin; it is not removed without force."""

    code: ClassVar[str] = "plugin_in_use"


class StoreFailed(KagedError):
    """The store could not be changed; the previous state stays."""

    code: ClassVar[str] = "plugin_store_failed"


class SourceUnavailable(KagedError):
    """The plugin could not be fetched from its source."""

    code: ClassVar[str] = "plugin_source_unavailable"


class SourceNotAllowed(KagedError):
    """The operator's configuration does not allow this kind of source."""

    code: ClassVar[str] = "plugin_source_not_allowed"


class ConsentUnknown(KagedError):
    """There is no open consent request of this id."""

    code: ClassVar[str] = "plugin_consent_unknown"


class KnobUnknown(KagedError):
    """The plugin has no knob of this name, or the agent does not declare the plugin."""

    code: ClassVar[str] = "knob_not_found"


class KnobRefused(KagedError):
    """The value is outside the knob's bounds or does not fit the config schema."""

    code: ClassVar[str] = "knob_value_refused"


class ScaffoldRefused(KagedError):
    """A new plugin cannot be written there, or under that name."""

    code: ClassVar[str] = "plugin_scaffold_refused"
