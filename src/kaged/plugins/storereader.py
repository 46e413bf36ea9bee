"""`StoreReader`: what lies in the plugin store, and what the operator is to be asked about it.

Blocks on the disk and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.config.localconfig import LocalConfig, PluginSettings, load_local_config
from kaged.config.manifest import Manifest, load_manifest
from kaged.config.pluginwords import plugin_name_of
from kaged.config.problems import ConfigFileInvalid
from kaged.config.reading import Loaded
from kaged.config.semver import VersionInvalid, parse_version
from kaged.kernel.capabilities import CapabilityInvalid, CapabilitySet, diff, parse_capabilities
from kaged.kernel.policy import CageLimits
from kaged.plugins.errors import PluginNotFound, store_failed
from kaged.plugins.installed import InstalledPlugin
from kaged.plugins.journal import Pin
from kaged.plugins.kept import KeptData
from kaged.plugins.prompt import Change, InstallPrompt, install_prompt
from kaged.plugins.settings import thaw
from kaged.plugins.storesteps import StoreSteps
from kaged.plugins.treecopy import read_tree

MAX_PLUGINS: Final = 1000

_log = get_logger("kaged.plugins.store")


class Trouble(StrEnum):
    """Why a plugin in the store is not used; the words that a list shows in brackets."""

    INVALID_MANIFEST = "invalid manifest"
    CONSENT_NEEDED = "consent needed"
    LOCAL_CONFIG = "local config"
    UNFINISHED = "unfinished change"
    TOOL_NAME_COLLISION = "tool_name_collision"


@dataclass(frozen=True, slots=True)
class StoreProblem:
    """A plugin in the store that is disabled for this run, and why."""

    name: str
    directory: Path
    trouble: Trouble
    detail: str
    tool: str = ""
    """With a collision: the tool's full name, which the plugin that bears it keeps."""

    @property
    def state(self) -> str:
        """The state as lists show it, for example `disabled (invalid manifest)`."""
        return f"disabled ({self.trouble.value})"


@dataclass(frozen=True, slots=True)
class Discovered:
    """What lies in the store: plugins that can be used, and those that cannot."""

    plugins: tuple[InstalledPlugin, ...]
    problems: tuple[StoreProblem, ...]


class StoreReader:
    """Reads the store together with `local.toml`."""

    def __init__(
        self,
        steps: StoreSteps,
        *,
        local_toml: Path,
        environ: Mapping[str, str],
        limits: Callable[[str], CageLimits],
    ) -> None:
        self._steps = steps
        self._local_toml = local_toml
        self._environ = environ
        self._limits = limits

    # -- looking -------------------------------------------------------------------------------

    def discover(self) -> Discovered:
        """Read every plugin of the store. Blocks on the disk; changes nothing."""
        plugins: list[InstalledPlugin] = []
        problems: list[StoreProblem] = []
        local, broken = self._local()
        unfinished = self._unfinished()
        for directory in self._directories():
            if broken is not None or directory.name == unfinished:
                trouble = Trouble.LOCAL_CONFIG if broken is not None else Trouble.UNFINISHED
                detail = broken or "a change of this plugin was interrupted"
                problems.append(StoreProblem(directory.name, directory, trouble, detail))
                continue
            found = self._read(directory, local)
            if isinstance(found, InstalledPlugin):
                plugins.append(found)
            else:
                problems.append(found)
        return Discovered(tuple(plugins), tuple(problems))

    def get(self, name: str) -> InstalledPlugin:
        """Read one plugin of the store. Blocks on the disk.

        Raises:
            PluginNotFound: it is not in the store.
            KagedError: `plugin_files_changed`, `plugin_store_failed`; it is, but cannot be used;
                `trouble` says why.
        """
        directory = self.require(name)
        local, broken = self._local()
        if broken is not None:
            raise KagedError(broken, code="plugin_store_failed", trouble=Trouble.LOCAL_CONFIG.value)
        found = self._read(directory, local)
        if isinstance(found, StoreProblem):
            asks = found.trouble is Trouble.CONSENT_NEEDED
            raise KagedError(
                f"{name} is {found.state}: {found.detail}",
                code="plugin_files_changed" if asks else "plugin_store_failed",
                fix=f"look at them and approve them: kaged plugin renew {name}" if asks else None,
                trouble=found.trouble.value,
            )
        return found

    def current(self, plugin: InstalledPlugin) -> InstalledPlugin:
        """Return a plugin with what the operator grants it now. Blocks. Raises ConfigFileInvalid.

        Its files are those it was read with.
        """
        settings = self._settings(plugin)
        return replace(
            plugin,
            local=settings.local,
            grants=settings.grants,
            limits=self._limits(plugin.name),
        )

    def system_config(self, plugin: InstalledPlugin) -> JsonObject:
        """Return the operator's half of a plugin's configuration, as it is now.

        Blocks. Raises ConfigFileInvalid for a section that cannot be used.
        """
        found = thaw(self._settings(plugin).values.reveal())
        return found if isinstance(found, dict) else {}

    def _settings(self, plugin: InstalledPlugin) -> PluginSettings:
        local = load_local_config(self._local_toml, self._environ).value
        return local.plugin(_package(plugin.manifest, local), plugin.name)

    def may_use(self, project_id: str, plugin: InstalledPlugin) -> bool:
        """Return whether a project may use a plugin; any may use a local one (PH-INST-15, 16)."""
        if plugin.local:
            return True
        try:
            pin = self._steps.pin(plugin.name)
        except (OSError, ValueError):
            return False
        return pin is not None and project_id in pin.projects

    def _directories(self) -> Iterator[Path]:
        try:
            entries = sorted(self._steps.directory.iterdir())
        except FileNotFoundError:
            return
        for path in entries[:MAX_PLUGINS]:
            if not path.name.startswith(".") and not path.is_symlink() and path.is_dir():
                yield path

    def _unfinished(self) -> str | None:
        try:
            entry = self._steps.journal.read()
        except (OSError, ValueError):
            return None
        return None if entry is None else entry.name

    def _read(self, directory: Path, local: LocalConfig) -> InstalledPlugin | StoreProblem:
        name = directory.name
        try:
            manifest = load_manifest(directory).value
        except ConfigFileInvalid as error:
            return StoreProblem(name, directory, Trouble.INVALID_MANIFEST, error.message)
        if manifest.name != name:
            detail = f"the manifest says {manifest.name!r}, the directory is {name!r}"
            if manifest.tools and (directory.parent / manifest.name).is_dir():
                tool = f"{manifest.name}.{manifest.tools[0].name}"
                return StoreProblem(name, directory, Trouble.TOOL_NAME_COLLISION, detail, tool)
            return StoreProblem(name, directory, Trouble.INVALID_MANIFEST, detail)
        package = _package(manifest, local)
        try:
            settings = local.plugin(package, name)
        except ConfigFileInvalid:
            # A missing variable is told when the plugin starts and asks for its config.
            settings = PluginSettings()
        changed = self._changed(directory, manifest, settings)
        if changed:
            return StoreProblem(name, directory, Trouble.CONSENT_NEEDED, changed)
        return InstalledPlugin(
            directory=directory,
            data_dir=self._steps.data(name),
            manifest=manifest,
            package=package,
            local=settings.local,
            grants=settings.grants,
            limits=self._limits(name),
            digest=self._agreed(name),
        )

    def _agreed(self, name: str) -> str | None:
        pin = self._steps.pin(name)
        return None if pin is None else pin.digest

    def _changed(self, directory: Path, manifest: Manifest, settings: PluginSettings) -> str:
        """Return what differs from what was approved; empty for one that was put there by hand."""
        try:
            pin = self._steps.pin(manifest.name)
            if pin is None:
                if settings.installed is None:
                    return ""
                return "there is no record of what the operator agreed to"
            added = diff(_capabilities(pin), manifest.capabilities).added
            if added:
                more = ", ".join(item.text for item in added)
                return f"its manifest asks for more than was agreed to: {more}"
            if read_tree(directory).digest != pin.digest:
                return "its files were changed after the operator agreed to them"
        except (KagedError, OSError, ValueError) as error:
            return f"it cannot be compared with what was agreed to: {error}"
        return ""

    def _local(self) -> tuple[LocalConfig, str | None]:
        try:
            return load_local_config(self._local_toml, self._environ).value, None
        except ConfigFileInvalid as error:
            return LocalConfig(), error.message

    def require(self, name: str) -> Path:
        """Return the directory of an installed plugin. Raises PluginNotFound."""
        directory = self._steps.target(name)
        if "/" in name or name.startswith(".") or not directory.is_dir():
            raise PluginNotFound(
                f"no plugin named {name!r} is installed",
                fix="`kaged plugin list` shows the names",
                name=name,
            )
        return directory

    # -- asking --------------------------------------------------------------------------------

    def prompt_for(self, path: Path, source: str) -> InstallPrompt:
        """Check a plugin's directory and return what is shown; see `PluginStore.prepare`."""
        directory = path.resolve()
        loaded = read_manifest(directory)
        if self._steps.directory.resolve().is_relative_to(directory):
            raise store_failed(f"{directory} holds the plugin store itself", "choose another")
        manifest = loaded.value
        old_version, old = self.agreed(manifest.name)
        change = Change.INSTALL if old_version is None else _direction(old_version, manifest)
        settings = self._settings_or_none(manifest)
        tree = read_tree(directory)
        return install_prompt(
            manifest,
            tree.digest,
            change=change,
            files=tree.files,
            source=source or str(path),
            old_version=old_version or "",
            old=old,
            grants=settings.grants,
            given=tuple(sorted(settings.values.reveal())),
            kept=self._steps.kept.all(manifest.name) if change is Change.INSTALL else (),
            problems=loaded.warnings,
        )

    def _settings_or_none(self, manifest: Manifest) -> PluginSettings:
        """Return what the operator gives a plugin; nothing where that cannot be read."""
        local, _ = self._local()
        try:
            return local.plugin(_package(manifest, local), manifest.name)
        except ConfigFileInvalid:
            return PluginSettings()

    def kept(self, name: str | None = None) -> tuple[KeptData, ...]:
        """Return what `uninstall --keep-data` has left, of all plugins or of one name. Blocks."""
        return self._steps.kept.all(name)

    def unreadable_kept(self) -> tuple[Path, ...]:
        """Return the records of kept data that cannot be read. Blocks."""
        return self._steps.kept.unreadable()

    def sections_of(self, name: str) -> tuple[str, ...]:
        """Return the sections of local.toml that an installed plugin is given, by their names."""
        local, _ = self._local()
        try:
            package = _package(load_manifest(self.require(name)).value, local)
        except ConfigFileInvalid:
            package = name
        known = {*local.plugins.good, *local.plugins.broken}
        return tuple(one for one in dict.fromkeys((name, package)) if one in known)

    def agreed(self, name: str) -> tuple[str | None, CapabilitySet]:
        """Return the installed version and what was agreed to; None when it is not installed."""
        directory = self._steps.target(name)
        if not directory.is_dir():
            return None, CapabilitySet()
        try:
            pin = self._steps.pin(name)
            if pin is not None:
                return pin.version, _capabilities(pin)
            manifest = load_manifest(directory).value
        except (KagedError, OSError, ValueError):
            return "unknown", CapabilitySet()  # so that everything counts as new
        return str(manifest.version), manifest.capabilities

    def changed_files_prompt(self, name: str) -> InstallPrompt:
        """Return the prompt for approving changed files of an installed plugin."""
        directory = self.require(name)
        loaded = read_manifest(directory)
        version, old = self.agreed(name)
        tree = read_tree(directory)
        return install_prompt(
            loaded.value,
            tree.digest,
            change=Change.RENEW,
            files=tree.files,
            agreed_files=self._agreed_files(name),
            source=str(directory),
            old_version=version or "",
            old=old,
            grants=self._settings_or_none(loaded.value).grants,
            problems=loaded.warnings,
        )

    def _agreed_files(self, name: str) -> Mapping[str, str]:
        try:
            pin = self._steps.pin(name)
        except (KagedError, OSError, ValueError):
            return {}
        return {} if pin is None else pin.files

    def is_local(self, name: str) -> bool:
        """Return whether local.toml gives an installed plugin to every project."""
        local, _ = self._local()
        try:
            return local.plugin(name, name).local
        except ConfigFileInvalid:
            return False


def read_manifest(directory: Path) -> Loaded[Manifest]:
    """Read a plugin's manifest.

    Raises ConfigFileInvalid, or `reserved_plugin_name` for such a name.
    """
    try:
        return load_manifest(directory)
    except ConfigFileInvalid as error:
        for problem in error.problems:
            if problem.code == "reserved_plugin_name" and problem.severity == "error":
                _log.warning("plugin.name_reserved", directory=str(directory), why=problem.message)
                raise KagedError(
                    problem.message, code="reserved_plugin_name", fix=problem.fix
                ) from error
        raise


def _package(manifest: Manifest, local: LocalConfig) -> str:
    """Return a plugin's package: the manifest's, else the one in local.toml (PH-AMB-26)."""
    if manifest.package is not None:
        return manifest.package
    known = [*local.plugins.good, *local.plugins.broken]
    scoped = [key for key in known if key != manifest.name and plugin_name_of(key) == manifest.name]
    return scoped[0] if len(scoped) == 1 else manifest.name


def _direction(old_version: str, manifest: Manifest) -> Change:
    try:
        old = parse_version(old_version)
    except VersionInvalid:
        return Change.UPGRADE
    if old == manifest.version:
        raise KagedError(
            f"{manifest.name} {old_version} is already installed",
            code="plugin_already_installed",
            fix=f"nothing to do; `kaged plugin uninstall {manifest.name}` removes it",
            name=manifest.name,
            version=old_version,
        )
    return Change.UPGRADE if old < manifest.version else Change.DOWNGRADE


def _capabilities(pin: Pin) -> CapabilitySet:
    texts: list[JsonValue] = list(pin.capabilities)
    try:
        return parse_capabilities(texts)
    except CapabilityInvalid:
        return CapabilitySet()
