"""`build_models`: the operator's models, put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from kaged.base import Clock, Ids
from kaged.config.settings import Settings
from kaged.models.catalogue import ModelCatalogue

SCRIPT_VARIABLE = "KAGED_SCRIPT"


def build_models(
    settings: Callable[[], Settings],
    environ: Mapping[str, str],
    *,
    clock: Clock,
    ids: Ids,
    closing: AsyncExitStack,
) -> ModelCatalogue:
    """Build the catalogue over `[models]` of local.toml.

    `KAGED_SCRIPT` names what the model `scripted` plays when local.toml does not.
    """
    script = environ.get(SCRIPT_VARIABLE)
    models = ModelCatalogue(
        lambda: settings().local.value.models,
        folder=settings().places.config_dir,
        clock=clock,
        ids=ids,
        script=Path(script) if script else None,
    )
    closing.push_async_callback(models.close)
    return models
