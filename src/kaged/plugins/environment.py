"""What a plugin's process is started with: command, variables, mounts, policy (PH-SUP-04 to 13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from kaged.cage import CageKind, CageRequest, HostMount
from kaged.config.manifest import KAGED_API
from kaged.kernel.capabilities import (
    CapabilityBases,
    ExecCapability,
    FsCapability,
    PathBase,
    cage_policy,
    project_paths,
)
from kaged.kernel.policy import CagePolicy
from kaged.plugins.errors import StartFailed
from kaged.plugins.installed import InstalledPlugin
from kaged.plugins.shared_files import IN_CAGE, OUT_CAGE, SharedFiles

PYTHON_PATH = "/opt/kaged/sdk/python"
PYTHON_SDK = f"{PYTHON_PATH}/kaged"
JS_SDK = "/node_modules/@kaged/plugin-sdk"
_GUEST_PARTS = ("__init__.py", "base", "wire", "sdk")
_OWN_NAME = f"{PYTHON_PATH}/kaged_sdk/__init__.py"

VARIABLES: Final = (
    ("KAGED_PLUGIN_NAME", "the plugin's name; a manifest cannot change it"),
    ("KAGED_PLUGIN_DIR", "its folder, which it may read and write; a manifest cannot change it"),
    ("KAGED_API_VERSION", "the API that the host speaks; a manifest cannot change it"),
    ("KAGED_LOG_LEVEL", "from which level on the daemon keeps log lines"),
    ("KAGED_CONFIG_ROOT", "the folder behind `config:` paths, for plugins that have one"),
    ("KAGED_PROJECT_ROOT", "the folder behind `project:` paths, where exactly one project uses it"),
    ("KAGED_PROJECT_ID", "the id of that project"),
    ("KAGED_FILES_IN", "with `shared_files: true`: files from the host, read-only"),
    ("KAGED_FILES_OUT", "with `shared_files: true`: where it puts files for the host"),
    ("HOME", "the same as KAGED_PLUGIN_DIR"),
    ("PATH", "where programs are; `exec:` entries and runtimes add to it"),
    ("LANG", "C.UTF-8"),
    ("PYTHONPATH", f"{PYTHON_PATH}, where the command is a Python: `import kaged_sdk` works"),
    ("PWD", "the plugin's folder"),
    ("TMPDIR", "a folder that is empty at each start"),
    ("XDG_CACHE_HOME", "a folder below it"),
    ("http_proxy", "the network gate, for plugins with `net:`; so are the other names for it"),
)
"""What a plugin's process finds in its environment, for the reference."""

FOLDERS: Final = (
    ("KAGED_PLUGIN_DIR", "the plugin's files; also its working directory and HOME"),
    ("KAGED_CONFIG_ROOT", "its data, kept over updates and with `uninstall --keep-data`"),
    (PYTHON_PATH, "the Python SDK, as `kaged_sdk` and `kaged.sdk`, read-only"),
    (JS_SDK, "the JavaScript SDK, read-only"),
    (IN_CAGE, "with `shared_files: true`: long payloads, while their call lasts, read-only"),
    (OUT_CAGE, "with `shared_files: true`: files that its answers name; empty at each start"),
    ("/tmp", "its own, in memory, gone when it ends"),  # noqa: S108 - a place in the cage
)
"""Which folders it finds, for the reference."""


def cage_request(
    plugin: InstalledPlugin,
    *,
    projects: Mapping[str, Path],
    log_level: str,
    runtimes: Mapping[str, Path],
    files: SharedFiles | None = None,
) -> CageRequest:
    """Return the request for a plugin's process; `projects` are the roots of those that use it.

    Raises:
        StartFailed: the command leaves the plugin's directory.
        CapabilityInvalid: the capabilities make no policy.
    """
    directory = str(plugin.directory)
    policy = plugin_policy(plugin, projects)
    _make_config_dirs(plugin)
    manifest = plugin.manifest
    return CageRequest(
        name=f"plugin:{plugin.name}",
        policy=policy,
        command=_command(plugin),
        kind=CageKind.PLUGIN,
        cwd=directory,
        home=directory,
        env=(
            ("KAGED_LOG_LEVEL", log_level),
            ("HOME", directory),
            ("LANG", "C.UTF-8"),
            *((("PYTHONPATH", PYTHON_PATH),) if _runs_python(manifest.command) else ()),
            *_roots(plugin, projects),
            *manifest.env.items(),
        ),
        fixed_env=(
            ("KAGED_PLUGIN_NAME", plugin.name),
            ("KAGED_PLUGIN_DIR", directory),
            ("KAGED_API_VERSION", str(KAGED_API)),
            *(
                ()
                if files is None
                else (("KAGED_FILES_IN", IN_CAGE), ("KAGED_FILES_OUT", OUT_CAGE))
            ),
        ),
        own_dirs=(directory, str(plugin.data_dir)),
        mounts=(*sdk_mounts(), *(() if files is None else files.mounts)),
        runtimes=tuple((name, str(path)) for name, path in runtimes.items()),
    )


def plugin_policy(plugin: InstalledPlugin, projects: Mapping[str, Path]) -> CagePolicy:
    """Return the policy of a plugin's cage while these projects use it; makes nothing.

    Raises:
        CapabilityInvalid: the capabilities make no policy.
    """
    bases = CapabilityBases(str(plugin.data_dir), tuple(map(str, projects.values())))
    capabilities = plugin.capabilities
    absent = frozenset(
        path for path in project_paths(capabilities, bases) if not Path(path).exists()
    )
    bases = CapabilityBases(bases.config, bases.projects, absent)
    return cage_policy(capabilities, str(plugin.directory), bases, plugin.limits)


def sdk_mounts() -> tuple[HostMount, ...]:
    """Return the SDKs, read-only, where Python and JavaScript plugins find them by default.

    `import … from "@kaged/plugin-sdk"` walks up to the root's node_modules from anywhere.
    """
    package = Path(__file__).parents[1]
    mounts = [HostMount(str(package / part), f"{PYTHON_SDK}/{part}") for part in _GUEST_PARTS]
    mounts.append(HostMount(str(package / "sdk" / "own_name.py"), _OWN_NAME))
    js = _js_sdk(package)
    if js is not None:
        mounts.append(HostMount(str(js), JS_SDK))
    return tuple(mounts)


def _js_sdk(package: Path) -> Path | None:
    # In a wheel the JavaScript SDK lies in the package; in a checkout beside the sources.
    for candidate in (package / "_js_sdk", package.parents[1] / "sdk" / "js"):
        if (candidate / "package.json").is_file():
            return candidate
    return None


def _runs_python(command: Sequence[str]) -> bool:
    """Return whether a command is a Python, also one that `env` looks for."""
    words = command[1:] if Path(command[0]).name == "env" else command
    return bool(words) and Path(words[0]).name.startswith("python")


def _command(plugin: InstalledPlugin) -> tuple[str, ...]:
    first, *rest = plugin.manifest.command
    if first.startswith("/") or "/" not in first:
        return (first, *rest)
    program = (plugin.directory / first).resolve()
    if not program.is_relative_to(plugin.directory.resolve()):
        raise StartFailed("command", f"{first} leaves the plugin's directory")
    return (str(program), *rest)


def _make_config_dirs(plugin: InstalledPlugin) -> None:
    """Make the directories that `config:` entries name; they are created on demand (PH-AMB-05)."""
    for item in plugin.capabilities:
        if isinstance(item, FsCapability | ExecCapability) and item.place.base is PathBase.CONFIG:
            below = plugin.data_dir / item.place.path.lstrip("/")
            below.mkdir(parents=True, exist_ok=True, mode=0o700)


def _roots(plugin: InstalledPlugin, projects: Mapping[str, Path]) -> list[tuple[str, str]]:
    """Return where `config:` and `project:` are, for plugins granted them (PH-AMB-62)."""
    bases = {
        item.place.base
        for item in plugin.capabilities
        if isinstance(item, FsCapability | ExecCapability)
    }
    found: list[tuple[str, str]] = []
    if PathBase.CONFIG in bases:
        found.append(("KAGED_CONFIG_ROOT", str(plugin.data_dir)))
    if PathBase.PROJECT in bases and len(projects) == 1:
        ((project_id, root),) = projects.items()
        found += [("KAGED_PROJECT_ROOT", str(root)), ("KAGED_PROJECT_ID", project_id)]
    return found
