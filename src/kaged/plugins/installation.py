"""`PluginStore`: the plugins of this machine on disk: discover, install, upgrade, uninstall.

prepare (check, digest, prompt) → the operator's yes → install with that digest: copy to staging →
journal → rename → pin and local.toml → audit → journal removed. A failure takes everything back;
after a crash `recover` carries the journal's change out. So a plugin's directory is always whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from kaged.audit import AuditEvent, AuditLog
from kaged.base import Clock, Ids, JsonObject, JsonValue, KagedError, iso_utc
from kaged.base.log import get_logger
from kaged.kernel.policy import CageLimits
from kaged.plugins.errors import PluginNotFound, consent_missing, store_failed
from kaged.plugins.installed import InstalledPlugin
from kaged.plugins.journal import JournalEntry, JournalOperation, Pin
from kaged.plugins.kept import OWNER_PREFIX, KeptData, kept_id
from kaged.plugins.prompt import Change, InstallPrompt
from kaged.plugins.storereader import (
    Discovered,
    StoreProblem,
    StoreReader,
    Trouble,
    read_manifest,
)
from kaged.plugins.storesteps import Before, StoreSteps, remove_tree
from kaged.plugins.treecopy import copy_tree


class PluginTablesPort(Protocol):
    """The tables that plugins own in the daemon's database, for uninstalling.

    They go last, after the removal is in the journal and in the audit log: a crash before leaves
    them to the plugin, a crash after is finished at the next start.
    """

    def tables_of(self, plugin: str) -> list[str]:
        """Return the names of a plugin's tables, as the plugin knows them."""
        ...

    async def drop(self, plugin: str) -> list[str]:
        """Drop every table of a plugin and return their names; none are left to drop twice."""
        ...

    async def hand_over(self, owner: str, heir: str) -> list[str]:
        """Make every table of one owner another's; none are left to hand over twice."""
        ...


def _default_limits(_name: str) -> CageLimits:
    return CageLimits()


class PluginStore(StoreReader):
    """The store directory with `local.toml` (what is installed) and `config.toml` (what is on)."""

    def __init__(
        self,
        directory: Path,
        *,
        data_dir: Path,
        local_toml: Path,
        config_toml: Path,
        audit: AuditLog,
        clock: Clock,
        ids: Ids,
        environ: Mapping[str, str] | None = None,
        limits: Callable[[str], CageLimits] = _default_limits,
        tables: PluginTablesPort | None = None,
    ) -> None:
        super().__init__(
            StoreSteps(directory, data_dir, local_toml, config_toml),
            local_toml=local_toml,
            environ=dict(environ or {}),
            limits=limits,
        )
        self._audit = audit
        self._clock = clock
        self._ids = ids
        self._tables = tables
        self._turn = asyncio.Lock()
        self._log = get_logger("kaged.plugins.store")

    @property
    def directory(self) -> Path:
        """Where plugins are installed."""
        return self._steps.directory

    # -- at start ------------------------------------------------------------------------------

    async def open(self) -> Discovered:
        """Finish what a crash left unfinished, then look what is there and tell the audit log."""
        await self.recover()
        found = await asyncio.to_thread(self.discover)
        for problem in found.problems:
            self._log.warning(
                "plugin.disabled", plugin=problem.name, why=problem.state, detail=problem.detail
            )
            self._audit.post(_told(problem))
        return found

    async def recover(self) -> str | None:
        """Finish the change that a crash interrupted; return the plugin's name if there was one.

        A change that cannot be carried out now stays in the journal; its plugin is not used.
        """
        async with self._turn:
            try:
                with self._steps.locked():
                    return await self._carry_out()
            except (KagedError, OSError, ValueError) as error:
                self._log.error("plugin.store_not_recovered", problem=str(error))
                return None

    async def _carry_out(self) -> str | None:
        entry = await asyncio.to_thread(self._steps.journal.read)
        if entry is None:
            await asyncio.to_thread(self._steps.sweep)
            return None
        await asyncio.to_thread(self._steps.apply, entry)
        await self._audit.record(AuditEvent(entry.event, entry.event_data))
        await self._finish(entry)
        return entry.name

    async def _finish(self, entry: JournalEntry) -> None:
        if self._tables is not None:
            await self._settle_tables(entry, self._tables)
        await asyncio.to_thread(self._put_away, entry)

    async def _settle_tables(self, entry: JournalEntry, tables: PluginTablesPort) -> None:
        """Drop or hand over tables; that cannot be taken back, so it waits for the audit log."""
        kept, uninstalls = entry.kept, entry.operation is JournalOperation.UNINSTALL
        if kept is None:
            if uninstalls:
                await tables.drop(entry.name)
        elif uninstalls:
            await tables.hand_over(entry.name, kept.owner)
        elif entry.operation is JournalOperation.FORGET:
            await tables.drop(kept.owner)
        else:
            await tables.hand_over(kept.owner, entry.name)

    def _put_away(self, entry: JournalEntry) -> None:
        kept = entry.kept
        if entry.operation is JournalOperation.UNINSTALL:
            if kept is not None:
                self._steps.keep(kept)
            self._steps.forget(entry)
        elif entry.operation is JournalOperation.FORGET:
            if kept is not None:
                self._steps.remove_kept(kept)
        elif kept is not None:
            self._steps.give_back(kept)
        self._steps.journal.finish()
        self._steps.sweep()

    # -- looking -------------------------------------------------------------------------------

    def enabled(self) -> tuple[str, ...]:
        """Return the names in `[plugins] enabled` of config.toml."""
        return self._steps.enabled()

    async def prepare(self, path: Path, *, source: str = "") -> InstallPrompt:
        """Check a plugin's directory and return what the operator is to be shown. Changes nothing.

        Raises:
            ConfigInvalid: there is no manifest, or it is invalid.
            KagedError: `reserved_plugin_name`; the name belongs to a built-in namespace.
            TreeRefused: the directory holds something that is never copied.
            KagedError: `plugin_already_installed`; this very version is installed.
        """
        return await asyncio.to_thread(self.prompt_for, path, source)

    # -- changing ------------------------------------------------------------------------------

    async def install(
        self,
        path: Path,
        digest: str,
        *,
        source: str = "",
        project_id: str | None = None,
        request_id: str | None = None,
    ) -> tuple[InstallPrompt, InstalledPlugin]:
        """Install or upgrade a plugin that the operator said yes to; it stays disabled.

        `digest` is the one of the prompt that was answered. With `project_id` the plugin is for
        that project alone, unless it is everybody's already.

        Raises:
            KagedError: `plugin_consent_missing`; the files are others than those that were shown.
            KagedError, TreeRefused, ConfigInvalid: `plugin_store_failed`,
                `plugin_already_installed`; nothing was changed.
        """
        async with self._turn:
            with self._steps.locked():
                await self._settle()
                prompt = await asyncio.to_thread(self.prompt_for, path, source)
                if prompt.digest != digest:
                    raise consent_missing(
                        f"the files of {prompt.name} are not the ones that were shown",
                        "look at them again and answer again",
                    )
                token = self._ids.tagged("copy")
                try:
                    await asyncio.to_thread(self._stage, path, token, digest)
                    kept = await asyncio.to_thread(self._to_give_back, prompt)
                    entry = await asyncio.to_thread(self._entry, prompt, token, project_id, kept)
                    await self._commit(entry, request_id)
                except OSError as error:
                    raise store_failed(
                        f"the plugin could not be copied: {error.strerror or error}",
                        "check free space and permissions; nothing was changed",
                    ) from error
                finally:
                    remove_tree(self._steps.staged(token))
            return prompt, await asyncio.to_thread(self.get, prompt.name)

    async def uninstall(
        self, name: str, *, keep_data: bool = False, request_id: str | None = None
    ) -> KeptData | None:
        """Remove a plugin: directory, data, tables, pin, and its entries in both files.

        Its secrets are among the entries. With `keep_data` they, its data and its tables are
        sealed to the files that the operator agreed to; return what was kept.

        Raises:
            KagedError: `plugin_store_failed`; nobody agreed to its files, or data of these very
                files is kept already. Nothing was changed.
        """
        async with self._turn:
            with self._steps.locked():
                await self._settle()
                self.require(name)
                agreed, _ = await asyncio.to_thread(self.agreed, name)
                version = agreed or "unknown"
                data: JsonObject = {"name": name, "version": version}
                tables: list[JsonValue] = []
                if self._tables is not None:
                    tables.extend(self._tables.tables_of(name))
                if tables:
                    data["tables"] = tables
                sections = await asyncio.to_thread(self.sections_of, name)
                kept = None
                if keep_data:
                    names = tuple(str(one) for one in tables)
                    kept = await asyncio.to_thread(self._to_keep, name, sections, names)
                if kept is not None:
                    data["kept"] = list(kept.words())
                entry = JournalEntry(
                    JournalOperation.UNINSTALL,
                    name,
                    self._ids.tagged("copy"),
                    version=version,
                    local=False,
                    pin=None,
                    event="plugin.uninstalled",
                    event_data=data,
                    sections=sections,
                    kept=kept,
                )
                try:
                    await self._commit(entry, request_id)
                except OSError as error:
                    raise store_failed(
                        f"{name} could not be removed: {error.strerror or error}",
                        "check permissions, then try again",
                    ) from error
                return kept

    def require_keepable(self, name: str) -> Pin:
        """Return what the data of an installed plugin would be sealed to. Blocks.

        Raises:
            KagedError: `plugin_store_failed`; there is nothing to seal it to, or data of these
                very files is kept already.
        """
        self.require(name)
        try:
            pin = self._steps.pin(name)
        except (OSError, ValueError):
            pin = None
        if pin is None:
            raise store_failed(
                f"the data of {name} cannot be kept: there is no record of which files it is of",
                f"uninstall it without --keep-data; kaged plugin export {name} saves its tables",
            )
        sealed = kept_id(name, pin.digest)
        if any(path.stem == sealed for path in self.unreadable_kept()):
            raise store_failed(
                f"the record of what is kept of these very files of {name} cannot be read",
                "put it back from a backup (`kaged doctor` names it), or remove what it is about: "
                f"kaged plugin forget '{OWNER_PREFIX}{sealed}'",
            )
        if any(one.digest == pin.digest for one in self.kept(name)):
            raise store_failed(
                f"data of these very files of {name} is kept already",
                f"remove that for good: kaged plugin forget {name}",
            )
        return pin

    async def forget_kept(
        self, name: str, *, request_id: str | None = None
    ) -> tuple[KeptData, ...]:
        """Remove for good what is kept of plugins of this name; return what that was.

        `~ID` is what is left beside an unreadable record: its tables, its folder and the record.

        Raises:
            PluginNotFound: nothing is.
        """
        async with self._turn:
            with self._steps.locked():
                await self._settle()
                if name.startswith(OWNER_PREFIX):
                    lost = await asyncio.to_thread(self._lost, name.removeprefix(OWNER_PREFIX))
                    found = () if lost is None else (lost,)
                else:
                    found = await asyncio.to_thread(self.kept, name)
                if not found:
                    raise PluginNotFound(
                        f"no data of a plugin {name!r} is kept",
                        fix="`kaged plugin list` shows what is, `kaged doctor` what has no record",
                        name=name,
                    )
                for kept in found:
                    entry = JournalEntry(
                        JournalOperation.FORGET,
                        kept.name,
                        self._ids.tagged("copy"),
                        version=kept.version,
                        local=False,
                        pin=None,
                        event="plugin.kept_data_removed",
                        event_data={
                            "name": kept.name,
                            "version": kept.version,
                            "digest": kept.digest,
                            "kept": list(kept.words()),
                        },
                        kept=kept,
                    )
                    await self._commit(entry, request_id)
                return found

    async def approve(
        self, name: str, digest: str, *, request_id: str | None = None
    ) -> InstalledPlugin:
        """Approve the files of an installed plugin as they are now (see `prepare_approval`)."""
        async with self._turn:
            with self._steps.locked():
                prompt = await asyncio.to_thread(self.changed_files_prompt, name)
                if prompt.digest != digest:
                    raise consent_missing(
                        f"the files of {name} changed again", "look at them again"
                    )
                old = await asyncio.to_thread(self._steps.pin, name)
                pin = self._pin(prompt, () if old is None else old.projects)
                await self._audit.record(
                    AuditEvent(
                        "plugin.consent_answered",
                        {
                            "name": name,
                            "step": "renew",
                            "allowed": True,
                            "capabilities": list(pin.capabilities),
                        },
                        request_id=request_id,
                    )
                )
                await asyncio.to_thread(self._steps.write_pin, pin)
                await asyncio.to_thread(self._steps.note_version, name, prompt.version)
            return await asyncio.to_thread(self.get, name)

    async def prepare_approval(self, name: str) -> InstallPrompt:
        """Return the prompt for approving changed files. Raises ConfigInvalid."""
        return await asyncio.to_thread(self.changed_files_prompt, name)

    async def allow_project(self, name: str, project_id: str) -> None:
        """Let a further project use a plugin that is not everybody's."""
        async with self._turn:
            with self._steps.locked():
                self.require(name)
                pin = await asyncio.to_thread(self._steps.pin, name)
                if pin is None:
                    raise PluginNotFound(f"{name} was not installed for a project", name=name)
                if project_id not in pin.projects:
                    more = replace(pin, projects=(*pin.projects, project_id))
                    await asyncio.to_thread(self._steps.write_pin, more)

    async def set_enabled(self, name: str, *, enabled: bool) -> bool:
        """Put a plugin into config.toml's enabled list or remove it; return whether it changed."""
        if enabled:
            await asyncio.to_thread(self.get, name)
        return await asyncio.to_thread(self._steps.set_enabled, name, enabled=enabled)

    async def _settle(self) -> None:
        """Finish an earlier change first; one that cannot be finished lets nothing else begin."""
        try:
            await self._carry_out()
        except (OSError, ValueError) as error:
            raise store_failed(
                f"an earlier change of the plugin store cannot be finished: {error}",
                "check free space and permissions",
            ) from error

    def _stage(self, directory: Path, token: str, digest: str) -> None:
        staged = self._steps.staged(token)
        facts = copy_tree(directory.resolve(), staged)
        if facts.digest != digest:
            raise consent_missing("the files changed while they were copied", "look at them again")
        read_manifest(staged)

    def _to_keep(
        self, name: str, sections: tuple[str, ...], tables: tuple[str, ...]
    ) -> KeptData | None:
        """Return what `--keep-data` is about; None when there is nothing."""
        pin = self.require_keepable(name)
        kept = KeptData(
            name=name,
            version=pin.version,
            digest=pin.digest,
            kept_at=iso_utc(self._clock.now_ms()),
            tables=tables,
            folder=self._steps.has_data(name),
            sections=self._steps.kept_sections(sections),
        )
        return kept if kept.words() else None

    def _lost(self, record: str) -> KeptData | None:
        """Return what is left beside an unreadable record; None when there is no such record."""
        if not any(path.stem == record for path in self.unreadable_kept()):
            return None
        unknown = "unknown"
        lost = KeptData(record, unknown, unknown, iso_utc(self._clock.now_ms()), lost_id=record)
        tables = () if self._tables is None else tuple(self._tables.tables_of(lost.owner))
        return replace(lost, tables=tables, folder=self._steps.has_kept_data(lost))

    def _to_give_back(self, prompt: InstallPrompt) -> KeptData | None:
        """Return what was kept of the files that are installed; it needs an empty place."""
        if not prompt.given_back:
            return None
        name = prompt.name
        (kept,) = (one for one in self.kept(name) if one.digest == prompt.digest)
        tables = [] if self._tables is None else self._tables.tables_of(name)
        if tables or self._steps.has_data(name):
            raise store_failed(
                f"what was kept of {name} cannot be given back: there is other data of that name",
                f"move {self._steps.data(name)} away, or run: kaged plugin forget {name}",
            )
        return kept

    def _entry(
        self, prompt: InstallPrompt, token: str, project_id: str | None, kept: KeptData | None
    ) -> JournalEntry:
        upgrade = prompt.change is not Change.INSTALL
        before = self._steps.pin(prompt.name) if upgrade else None
        local = project_id is None or (upgrade and self.is_local(prompt.name))
        projects = () if before is None else before.projects
        if project_id is not None and project_id not in projects:
            projects = (*projects, project_id)
        pin = self._pin(prompt, projects)
        data: JsonObject = {"name": prompt.name, "source": prompt.source}
        if upgrade:
            data["old_version"], data["new_version"] = prompt.old_version, prompt.version
            data["capability_diff"] = {
                "added": [line.text for line in prompt.added],
                "removed": [line.text for line in prompt.removed],
                "widens": prompt.widens,
            }
        else:
            data["version"], data["local"] = prompt.version, local
            data["capabilities"] = list(pin.capabilities)
            if kept is not None:
                data["given_back"] = list(kept.words())
        return JournalEntry(
            JournalOperation.UPGRADE if upgrade else JournalOperation.INSTALL,
            prompt.name,
            token,
            version=prompt.version,
            local=local,
            pin=pin,
            event="plugin.upgraded" if upgrade else "plugin.installed",
            event_data=data,
            kept=kept,
        )

    def _pin(self, prompt: InstallPrompt, projects: tuple[str, ...]) -> Pin:
        return Pin(
            name=prompt.name,
            version=prompt.version,
            digest=prompt.digest,
            capabilities=tuple(
                line.text for line in prompt.capabilities if not line.operator_added
            ),
            source=prompt.source,
            projects=projects,
            approved_at=iso_utc(self._clock.now_ms()),
            files=dict(prompt.files),
        )

    async def _commit(self, entry: JournalEntry, request_id: str | None) -> None:
        """Carry a change out; a failure before the audit log has it takes it back."""
        steps = self._steps
        before = await asyncio.to_thread(steps.before, entry.name)
        await asyncio.to_thread(steps.journal.begin, entry)
        try:
            await asyncio.to_thread(steps.apply, entry)
            await self._audit.record(
                AuditEvent(entry.event, entry.event_data, request_id=request_id)
            )
        except BaseException:
            await asyncio.shield(asyncio.to_thread(self._take_back, entry, before))
            raise
        await self._finish(entry)

    def _take_back(self, entry: JournalEntry, before: Before) -> None:
        self._steps.undo(entry, before)
        self._steps.journal.finish()


def _told(problem: StoreProblem) -> AuditEvent:
    """Return the row about a plugin that is not used; one that claims another's name has its own.

    Such a plugin can only have been put there by hand: what is installed bears its folder's name.
    """
    if problem.trouble is Trouble.TOOL_NAME_COLLISION:
        owner = problem.tool.partition(".")[0]
        first = problem.directory.parent / owner
        return AuditEvent(
            "plugin.tool_name_collision",
            {
                "first": f"{owner} ({first})",
                "second": f"{owner} ({problem.directory})",
                "tool": problem.tool,
            },
        )
    return AuditEvent(
        "plugin.disabled",
        {"name": problem.name, "reason": problem.trouble.value, "detail": problem.detail},
    )
