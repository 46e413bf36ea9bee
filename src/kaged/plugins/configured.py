"""What `config.toml` and `local.toml` say about plugins."""

from __future__ import annotations

from collections.abc import Mapping

from kaged.base import JsonObject
from kaged.config.localconfig import ModelTrait
from kaged.config.settings import Settings
from kaged.plugins.installed import InstalledPlugin
from kaged.plugins.settings import thaw


def model_traits(settings: Settings) -> Mapping[str, frozenset[ModelTrait]]:
    """Return the operator's model aliases with what each is said to be good at."""
    return {
        alias: frozenset(model.traits) for alias, model in settings.local.value.models.good.items()
    }


def system_config(settings: Settings, plugin: InstalledPlugin) -> JsonObject:
    """Return the operator's secrets for a plugin. Raises ConfigInvalid for an unusable one."""
    found = thaw(settings.local.value.plugin(plugin.package, plugin.name).values.reveal())
    return found if isinstance(found, dict) else {}
