"""The names of the published plugin framework, found by our own finder: `install_cpex_compat`."""

from kaged.pipeline.cpex_compat.finder import (
    CpexCompatUnavailable,
    install_cpex_compat,
    remove_cpex_compat,
)

__all__ = ["CpexCompatUnavailable", "install_cpex_compat", "remove_cpex_compat"]
