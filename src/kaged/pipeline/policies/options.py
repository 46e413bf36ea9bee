"""Reading a policy's own options: a wrong or unknown one refuses the plugin at load."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from kaged.pipeline.settings import PluginConfig

M = TypeVar("M", bound=BaseModel)


class Options(BaseModel):
    """The options of a policy; unknown keys are an error, because a typo must not weaken it."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


def read_options(model: type[M], config: PluginConfig) -> M:
    """Parse the `config` of a plugin. Raises ValueError with one line per fault."""
    try:
        return model.model_validate(config.config or {})
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'config'}: {fault['msg']}"
            for fault in error.errors()
        )
        raise ValueError(faults) from error
