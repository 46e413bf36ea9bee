"""`Target`: what a launch starts, that is a file, a Python module or one of a file's tests."""

from __future__ import annotations

import re
from typing import Final, cast

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.toolbox.dap.adapters import AdapterPlan
from kaged.tools import InvalidToolParams, PathParam, ToolInvocation
from kaged.workspace import ProjectPath

MODULE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*", re.ASCII)
MAX_TEST_CHARS: Final = 2000
_MARK: Final = "::"
_RUNNER: Final = "pytest"


@dataclass(frozen=True, slots=True)
class Target:
    """What is started. `script` is None for a module that no file of the project was named for.

    `shown` is its name for people and the record.
    """

    script: ProjectPath | None
    cwd: ProjectPath
    module: str | None
    args: tuple[str, ...]
    shown: str


def check_target(args: JsonObject) -> None:
    """Refuse a launch of nothing, of two things, or of no name. Raises InvalidToolParams."""
    script, module = args.get("script"), args.get("module")
    if script is None and module is None:
        raise InvalidToolParams.of_field("script", "is required for launch, or module")
    if script is not None and module is not None:
        raise InvalidToolParams.of_field("module", "cannot be given together with script")
    if module is not None and MODULE.fullmatch(str(module)) is None:
        raise InvalidToolParams.of_field("module", "must be a module's name, as in `pytest`")
    test = _split(args)[1]
    if test is not None and (not test.isprintable() or not 0 < len(test) <= MAX_TEST_CHARS):
        raise InvalidToolParams.of_field(
            "script", "must name a test after `::`, as in tests/test_x.py::test_name"
        )


def target_paths(args: JsonObject) -> tuple[PathParam, ...]:
    """Return the paths that a launch touches: the file, if one is named, and where it runs."""
    where = PathParam("cwd", str(args.get("cwd", "./")), search=True)
    file = _split(args)[0]
    return (where,) if file is None else (PathParam("script", file), where)


def target_of(call: ToolInvocation) -> Target:
    """Return what a call to launch means."""
    *files, cwd = call.paths
    script = files[0] if files else None
    given = tuple(cast("list[str]", call.args.get("args") or []))
    module, test = call.args.get("module"), _split(call.args)[1]
    if script is None:
        return Target(None, cwd, str(module), given, f"-m {module}")
    if test is None:
        return Target(script, cwd, None, given, script.relative)
    # In full, so that the test is found wherever it runs.
    args = (f"{script.resolved}{_MARK}{test}", *given)
    return Target(script, cwd, _RUNNER, args, f"{script.relative}{_MARK}{test}")


def require_modules(target: Target, plan: AdapterPlan) -> None:
    """Refuse a module where the debugger starts files only. Raises InvalidToolParams."""
    if target.module is not None and plan.type != "debugpy":
        raise InvalidToolParams.of_field(
            "runtime", "must be python under debugpy, for modules and for tests by their id"
        )


def _split(args: JsonObject) -> tuple[str | None, str | None]:
    """Return the file of a launch, and which of its tests is meant; None for what is not named."""
    script = args.get("script")
    if not isinstance(script, str):
        return None, None
    file, mark, test = script.partition(_MARK)
    return (file, test) if mark and args.get("runtime") == "python" else (script, None)
