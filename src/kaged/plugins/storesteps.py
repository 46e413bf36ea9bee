"""`StoreSteps`: the steps of a change of the store, on the disk. Blocks; called under the lock.

<store>/<name>/ is a plugin. <store>/.kaged/ holds what people need not see: `staging` (copies in
the making), `retired` (copies on their way out), `pins` (what was agreed to), `kept` (what was left
by `uninstall --keep-data`) and the journal.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kaged.base import JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.config.editing import edit_toml
from kaged.config.files import Privacy, is_missing, read_text
from kaged.config.problems import ConfigFileInvalid
from kaged.config.tomledit import TomlEdit
from kaged.config.yamledit import EditRefused
from kaged.plugins.errors import store_failed
from kaged.plugins.journal import JournalEntry, JournalOperation, Pin, StoreJournal
from kaged.plugins.journal_files import read_json, write_json
from kaged.plugins.kept import KeptData, KeptRecords, kept_settings
from kaged.plugins.treecopy import sync_directory

PRIVATE: Final = ".kaged"
KEPT: Final = ".kept"  # beside the data folders, so that one is moved by renaming it
ENABLED: Final = ("plugins", "enabled")


@dataclass(frozen=True, slots=True)
class Before:
    """What `undo` puts back."""

    pin: Pin | None
    entry: dict[str, JsonValue] | None


class StoreSteps:
    """The store's directory, the data of plugins, and the operator's two files about them."""

    def __init__(
        self, directory: Path, data_dir: Path, local_toml: Path, config_toml: Path
    ) -> None:
        self.directory = directory
        self._data_dir = data_dir
        self._local_toml = local_toml
        self._config_toml = config_toml
        self._private = directory / PRIVATE
        self.journal = StoreJournal(self._private / "journal.json")
        self.kept = KeptRecords(self._private / "kept")

    # -- places --------------------------------------------------------------------------------

    def make_places(self) -> None:
        """Make the directories of the store that are missing."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o755)
        for name in ("staging", "retired", "pins"):
            (self._private / name).mkdir(parents=True, exist_ok=True, mode=0o755)

    def target(self, name: str) -> Path:
        """Return the directory of an installed plugin."""
        return self.directory / name

    def data(self, name: str) -> Path:
        """Return the data folder of a plugin, which is what `config:` stands for."""
        return self._data_dir / name

    def _kept_data(self, kept: KeptData) -> Path:
        return self._data_dir / KEPT / kept.id

    def staged(self, token: str) -> Path:
        """Return the place of a copy in the making."""
        return self._private / "staging" / token

    def _retired(self, token: str) -> Path:
        return self._private / "retired" / token

    @contextmanager
    def locked(self) -> Generator[None]:
        """Keep other programs out of the store. Raises `plugin_store_failed` when one is in it."""
        self.make_places()
        handle = os.open(self._private / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise store_failed(
                    "another program is changing the plugin store", "try again"
                ) from error
            yield
        finally:
            os.close(handle)

    # -- a change ------------------------------------------------------------------------------

    def before(self, name: str) -> Before:
        """Take note of what a change would overwrite."""
        return Before(self.pin(name), self._host_keys(name))

    def apply(self, entry: JournalEntry) -> None:
        """Carry a change out, from wherever it stands."""
        if entry.operation is JournalOperation.FORGET:
            return
        target, retired = self.target(entry.name), self._retired(entry.token)
        if entry.operation is JournalOperation.UNINSTALL:
            _move(target, retired)
            return
        staged = self.staged(entry.token)
        if staged.exists():
            _move(target, retired)
            _move(staged, target)
        if entry.pin is not None:
            self.write_pin(entry.pin)
        self._note_installed(entry.name, entry.version, local=entry.local)

    def forget(self, entry: JournalEntry) -> None:
        """Take the last of an uninstalled plugin away: its pin, its data and its entries.

        Its secrets are among the entries. What stayed would be the next plugin's of that name.
        """
        self._pin_path(entry.name).unlink(missing_ok=True)
        remove_tree(self.data(entry.name))
        for section in dict.fromkeys((entry.name, *entry.sections)):
            self._edit_local(lambda edit, section=section: _delete_section(edit, section))
        self.set_enabled(entry.name, enabled=False)

    # -- kept data -----------------------------------------------------------------------------

    def has_data(self, name: str) -> bool:
        """Return whether there is anything in the data folder of a plugin."""
        folder = self.data(name)
        return folder.is_dir() and any(folder.iterdir())

    def has_kept_data(self, kept: KeptData) -> bool:
        """Return whether a data folder is kept."""
        return self._kept_data(kept).is_dir()

    def kept_sections(self, sections: tuple[str, ...]) -> dict[str, dict[str, JsonValue]]:
        """Return what these sections of local.toml say and is kept, as it is written there."""
        found = {name: kept_settings(self._section(name) or {}) for name in sections}
        return {name: values for name, values in found.items() if values}

    def keep(self, kept: KeptData) -> None:
        """Put a plugin's data folder and settings where no plugin gets at them."""
        self.kept.write(kept)
        if kept.folder:
            target = self._kept_data(kept)
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _move(self.data(kept.name), target)

    def give_back(self, kept: KeptData) -> None:
        """Return kept data to its plugin. What local.toml says by now stays as it says it."""

        def change(edit: TomlEdit) -> None:
            for section, values in kept.sections.items():
                for key, value in values.items():
                    try:
                        edit.get(("plugins", section, key))
                    except KeyError:
                        edit.set(("plugins", section, key), value)

        _move(self._kept_data(kept), self.data(kept.name))
        self._edit_local(change)
        self.kept.remove(kept)

    def remove_kept(self, kept: KeptData) -> None:
        """Remove kept data for good."""
        remove_tree(self._kept_data(kept))
        self.kept.remove(kept)

    def undo(self, entry: JournalEntry, before: Before) -> None:
        """Put back what was there before `apply`."""
        if entry.operation is JournalOperation.FORGET:
            return
        target, retired = self.target(entry.name), self._retired(entry.token)
        if (
            entry.operation is not JournalOperation.UNINSTALL
            and not self.staged(entry.token).exists()
        ):
            _move(target, self.staged(entry.token))
        _move(retired, target)
        if entry.operation is JournalOperation.UNINSTALL:
            return
        if before.pin is None:
            self._pin_path(entry.name).unlink(missing_ok=True)
        else:
            self.write_pin(before.pin)
        if self._host_keys(entry.name) != before.entry:
            self._restore(entry.name, before.entry)

    def sweep(self) -> None:
        """Remove copies that belong to no change."""
        for folder in ("staging", "retired"):
            for left in (self._private / folder).iterdir():
                remove_tree(left)

    # -- pins ----------------------------------------------------------------------------------

    def pin(self, name: str) -> Pin | None:
        """Return what was agreed to about a plugin. Raises ValueError when that is unreadable."""
        data = read_json(self._pin_path(name))
        return None if data is None else Pin.from_json(data)

    def write_pin(self, pin: Pin) -> None:
        """Keep what was agreed to."""
        write_json(self._pin_path(pin.name), pin.as_json())

    def _pin_path(self, name: str) -> Path:
        return self._private / "pins" / f"{name}.json"

    # -- the operator's files ------------------------------------------------------------------

    def enabled(self) -> tuple[str, ...]:
        """Return the names in `[plugins] enabled` of config.toml."""
        try:
            found = read_text(self._config_toml, privacy=Privacy.TRUSTED)
        except ConfigFileInvalid as error:
            if is_missing(error):
                return ()
            raise
        return tuple(_names(TomlEdit(found.text, str(self._config_toml))))

    def set_enabled(self, name: str, *, enabled: bool) -> bool:
        """Put a name into the enabled list or take it out; return whether that changed the file."""

        def change(edit: TomlEdit) -> None:
            names = _names(edit)
            if enabled == (name in names):
                return
            kept: list[JsonValue] = [other for other in names if other != name]
            edit.set(ENABLED, [*kept, name] if enabled else kept)

        if not enabled and not self._config_toml.exists():
            return False
        return edit_toml(self._config_toml, change)

    def note_version(self, name: str, version: str) -> None:
        """Write the installed version after the operator agreed to changed files."""
        self._edit_local(lambda edit: edit.set(("plugins", name, "installed"), version))

    def _note_installed(self, name: str, version: str, *, local: bool) -> None:
        def change(edit: TomlEdit) -> None:
            edit.set(("plugins", name, "installed"), version)
            edit.set(("plugins", name, "local"), local)

        self._edit_local(change)

    def _host_keys(self, name: str) -> dict[str, JsonValue] | None:
        section = self._section(name)
        if section is None:
            return None
        return {key: section[key] for key in ("installed", "local") if key in section}

    def _section(self, name: str) -> dict[str, JsonValue] | None:
        try:
            found = read_text(self._local_toml, privacy=Privacy.PRIVATE)
        except ConfigFileInvalid as error:
            if is_missing(error):
                return None
            raise
        try:
            section = TomlEdit(found.text, str(self._local_toml)).get(("plugins", name))
        except KeyError:
            return None
        return section if isinstance(section, dict) else None

    def _restore(self, name: str, keys: dict[str, JsonValue] | None) -> None:
        def change(edit: TomlEdit) -> None:
            if keys is None:
                _delete_section(edit, name)
                return
            for key in ("installed", "local"):
                if key in keys:
                    edit.set(("plugins", name, key), keys[key])
                else:
                    edit.delete(("plugins", name, key))

        self._edit_local(change)

    def _edit_local(self, change: Callable[[TomlEdit], None]) -> None:
        edit_toml(self._local_toml, change, privacy=Privacy.PRIVATE)


def remove_tree(path: Path) -> None:
    """Remove a file, a link or a whole directory; what is not there is fine."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    # A directory without write permission would keep its entries.
    for folder, names, _ in os.walk(path):
        for name in names:
            below = Path(folder, name)
            if not below.is_symlink():
                below.chmod(0o700)
    shutil.rmtree(path)


def _delete_section(edit: TomlEdit, name: str) -> None:
    try:
        edit.delete(("plugins", name))
    except EditRefused:
        # The last of the sections takes the table above it along, which has no header of its own.
        if edit.get(("plugins",)) != {name: edit.get(("plugins", name))}:
            raise
        edit.delete(("plugins",))


def _names(edit: TomlEdit) -> list[str]:
    try:
        names = edit.get(ENABLED)
    except KeyError:
        return []
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _move(source: Path, target: Path) -> None:
    """Rename a directory if it is there, durably."""
    try:
        os.rename(source, target)  # noqa: PTH104 - one name for all renames of the store
    except FileNotFoundError:
        return
    sync_directory(source.parent)
    sync_directory(target.parent)
