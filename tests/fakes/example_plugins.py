"""Load an example plugin's Python module fresh, as its own process would."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parents[2] / "plugins" / "examples"


def load_example(name: str) -> ModuleType:
    """Return a new instance of `plugins/examples/<name>/main.py`, with its siblings importable."""
    folder = EXAMPLES / name
    siblings = {path.stem for path in folder.glob("*.py")}
    for sibling in siblings:
        sys.modules.pop(sibling, None)
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location(f"example_{name}", folder / "main.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
        for sibling in siblings:
            sys.modules.pop(sibling, None)
    return module
