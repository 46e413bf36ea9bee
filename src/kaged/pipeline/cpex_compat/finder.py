"""Answers `import cpex…` with our own classes, so that published plugins run unmodified.

Nothing of the published framework is installed or imported. The finder stands in front of all
others from the first load of a plugin class on; it does nothing until somebody imports the name.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from kaged.base import KagedError
from kaged.pipeline.cpex_compat.names import CPEX_NAMES

_MARK = "__kaged_cpex_compat__"


class _CpexLoader(Loader):
    """Makes one stand-in module: real names, our classes behind them."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name, "Stand-in of kaged for plugins of the published framework.")
        setattr(module, _MARK, True)
        return module

    def exec_module(self, module: ModuleType) -> None:
        for name, (home, own_name) in CPEX_NAMES[module.__name__].items():
            setattr(module, name, getattr(importlib.import_module(home), own_name))
        setattr(module, "__all__", sorted(CPEX_NAMES[module.__name__]))  # noqa: B010 - no attribute of modules


class _CpexFinder(MetaPathFinder):
    """Finds the modules of the stand-in, and nothing else."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        del path, target
        if fullname not in CPEX_NAMES:
            return None
        is_package = any(name.startswith(f"{fullname}.") for name in CPEX_NAMES)
        return ModuleSpec(fullname, _CpexLoader(), is_package=is_package)


def install_cpex_compat() -> None:
    """Let `import cpex.framework` find the stand-in from now on. Safe to call again.

    Raises:
        KagedError: `pipeline_standin_unavailable`; the published framework was imported earlier.
    """
    present = sys.modules.get("cpex.framework")
    if present is not None and not hasattr(present, _MARK):
        raise KagedError(
            "the published cpex framework is already loaded in this process",
            code="pipeline_standin_unavailable",
            fix="load pipeline plugins before it, or run them with kind: caged",
        )
    if not any(isinstance(finder, _CpexFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _CpexFinder())


def remove_cpex_compat() -> None:
    """Take the stand-in and its modules away again; plugins already loaded keep their classes."""
    sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, _CpexFinder)]
    for name in CPEX_NAMES:
        if hasattr(sys.modules.get(name), _MARK):
            del sys.modules[name]
