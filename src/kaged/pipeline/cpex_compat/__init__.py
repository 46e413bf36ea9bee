"""The names of the published plugin framework, found by our own finder: `install_cpex_compat`."""

from kaged.pipeline.cpex_compat.finder import install_cpex_compat, remove_cpex_compat

__all__ = ["install_cpex_compat", "remove_cpex_compat"]
