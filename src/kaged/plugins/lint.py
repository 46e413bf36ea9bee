"""`check_plugin`: everything that can be said about a plugin's directory before it is installed.

Manifest with line numbers, files, command, and a dry handshake in a real cage. For authors; the
store checks again by itself.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from kaged.audit import Anchor, AuditLog, AuditRow, ChainHead, ChainKey
from kaged.audit.chain import EMPTY
from kaged.base import Ids, JsonObject, SystemClock
from kaged.base.lazy_dataclass import dataclass
from kaged.cage import Spawner
from kaged.cage.programs import PATH_DIRS
from kaged.config.files import read_text
from kaged.config.manifest import Manifest, load_manifest
from kaged.config.nodes import Node
from kaged.config.pluginwords import MANIFEST_NAME
from kaged.config.problems import ConfigFileInvalid, Mark, Problem, Severity
from kaged.config.yamldoc import parse_yaml
from kaged.kernel.describe import describe_grant
from kaged.plugins.conversation import PluginConversation
from kaged.plugins.errors import PluginConfigInvalid, StartFailed, TreeRefused
from kaged.plugins.installed import InstalledPlugin
from kaged.plugins.parts import HostParts, HostSettings
from kaged.plugins.settings import ConfigSchemas
from kaged.plugins.treecopy import read_tree

HANDSHAKE: Final = "handshake"
_ENV_PROGRAMS: Final = frozenset({"/usr/bin/env", "/bin/env", "env"})


@dataclass(frozen=True, slots=True)
class LintReport:
    """What was found; `shook_hands` is None when no handshake was tried."""

    directory: Path
    problems: tuple[Problem, ...]
    name: str = ""
    version: str = ""
    shook_hands: bool | None = None

    @property
    def ok(self) -> bool:
        """Whether there is no error; warnings are fine."""
        return all(problem.severity is not Severity.ERROR for problem in self.problems)

    def lines(self) -> tuple[str, ...]:
        """Return the report as text, one problem per line, in the form that editors understand."""
        found = [str(problem) for problem in self.problems]
        errors = sum(problem.severity is Severity.ERROR for problem in self.problems)
        what = f"{self.name} {self.version}".strip() or str(self.directory)
        hands = {None: "not tried", True: "ok", False: "failed"}[self.shook_hands]
        warnings = len(found) - errors
        mark = "✓" if self.ok else "✗"
        summary = f"{errors} error(s), {warnings} warning(s), handshake {hands}"
        return (*found, f"{mark} {what}: {summary}")

    def as_json(self) -> JsonObject:
        """Return the fields as JSON."""
        return {
            "ok": self.ok,
            "name": self.name or None,
            "version": self.version or None,
            "handshake": self.shook_hands,
            "problems": [problem.as_json() for problem in self.problems],
        }


async def check_plugin(
    path: Path,
    spawner: Spawner | None = None,
    *,
    runtimes: Mapping[str, Path] | None = None,
    search_path: Sequence[str] = (),
) -> LintReport:
    """Check a plugin's directory; with a spawner its process is started once, in its cage.

    `search_path` are the directories beyond the usual ones in which cages look for programs.

    Never raises for what is wrong with the plugin: that is what the report is for.
    """
    directory = await asyncio.to_thread(path.resolve)
    checked = await asyncio.to_thread(_check_files, directory, runtimes or {}, search_path)
    manifest = checked.manifest
    if manifest is None:
        return LintReport(directory, tuple(checked.problems))
    shook_hands: bool | None = None
    if spawner is not None and checked.startable:
        found = await _shake_hands(directory, manifest, spawner, runtimes or {})
        checked.problems += found
        shook_hands = all(problem.severity is not Severity.ERROR for problem in found)
    return LintReport(
        directory,
        tuple(checked.problems),
        manifest.name,
        str(manifest.version),
        shook_hands,
    )


class _Files:
    """What the files alone say."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = str(directory / MANIFEST_NAME)
        self.problems: list[Problem] = []
        self.manifest: Manifest | None = None
        self.startable = True
        self._document: Node | None = None

    def read(self) -> None:
        """Read the manifest and its lines."""
        try:
            loaded = load_manifest(self.directory)
        except ConfigFileInvalid as error:
            self.problems += error.problems
            return
        self.problems += loaded.warnings
        self.manifest = loaded.value
        text = read_text(self.directory / MANIFEST_NAME, inside=self.directory).text
        self._document = parse_yaml(text, self.file).node

    def note(
        self,
        key: str,
        message: str,
        fix: str,
        code: str,
        *,
        index: int | None = None,
        severity: Severity = Severity.ERROR,
    ) -> None:
        """Take note of a problem at a key of the manifest, or at an item of its list."""
        mark = self._mark(key, index)
        where = key if index is None else f"{key}[{index}]"
        line, column = (None, None) if mark is None else (mark.line, mark.column)
        self.problems.append(Problem(self.file, line, column, where, message, fix, severity, code))

    def _mark(self, key: str, index: int | None) -> Mark | None:
        node = None if self._document is None else self._document.child(key)
        if node is None:
            return None
        items = node.value
        if index is not None and isinstance(items, tuple) and index < len(items):
            return items[index].mark
        return node.mark


def _check_files(
    directory: Path, runtimes: Mapping[str, Path], search_path: Sequence[str]
) -> _Files:
    files = _Files(directory)
    files.read()
    if files.manifest is None:
        return files
    _check_tree(files)
    _check_command(files, files.manifest, runtimes, ":".join((*PATH_DIRS, *search_path)))
    _check_capabilities(files, files.manifest)
    if not any(directory.glob("README*")):
        message = "there is no README that says what the plugin does"
        files.problems.append(
            Problem(
                str(directory),
                None,
                None,
                "",
                message,
                "write a README.md",
                Severity.WARNING,
                "readme_missing",
            )
        )
    return files


def _check_tree(files: _Files) -> None:
    try:
        read_tree(files.directory)
    except TreeRefused as error:
        place = str(files.directory / str(error.data.get("path", "")))
        files.problems.append(
            Problem(place, None, None, "", error.message, error.fix or "", code=error.code)
        )
        files.startable = False


def _check_command(
    files: _Files, manifest: Manifest, runtimes: Mapping[str, Path], search_path: str
) -> None:
    words = list(enumerate(manifest.command))
    if manifest.command[0] in _ENV_PROGRAMS:
        words = words[1:]
    for place, (index, word) in enumerate(words):
        program = place == 0
        if program and "/" not in word:
            if word not in runtimes and shutil.which(word, path=search_path) is None:
                fix = "install it, or name it under [sandbox] runtimes in config.toml"
                message = f"the program {word!r} is not on this machine"
                files.note("command", message, fix, "command_missing", index=index)
                files.startable = False
            continue
        if word.startswith("/") and program:
            if not Path(word).exists():
                fix = "use a program of the plugin's own, or one that every machine has"
                message = f"{word} does not exist"
                files.note("command", message, fix, "command_missing", index=index)
                files.startable = False
        elif word.startswith("./") or (program and "/" in word):
            _check_own_file(files, word, index, program=program)


def _check_own_file(files: _Files, word: str, index: int, *, program: bool) -> None:
    own = (files.directory / word).resolve()
    if not own.is_relative_to(files.directory):
        message, code = f"{word} leaves the plugin's directory", "command_outside"
        files.note("command", message, "keep the file in the plugin", code, index=index)
    elif not own.exists():
        message = f"there is no file {word}"
        files.note("command", message, "correct the path", "command_missing", index=index)
    elif program and not own.stat().st_mode & 0o100:
        message, fix = f"{word} is not executable", f"chmod +x {word}"
        files.note("command", message, fix, "command_not_executable", index=index)
    else:
        return
    files.startable = False


def _check_capabilities(files: _Files, manifest: Manifest) -> None:
    for index, item in enumerate(manifest.capabilities):
        sentence = describe_grant(item)
        if sentence.dangerous:
            files.note(
                "capabilities",
                f"{item.text} is flagged when the plugin is installed: {sentence.warning}",
                "ask for less, if less will do",
                "dangerous_capability",
                index=index,
                severity=Severity.WARNING,
            )


async def _shake_hands(
    directory: Path, manifest: Manifest, spawner: Spawner, runtimes: Mapping[str, Path]
) -> list[Problem]:
    clock = SystemClock()
    ids = Ids(clock)
    audit = await AuditLog.open(_Nowhere(), clock=clock, ids=ids, key=ChainKey(bytes(32)))
    settings = HostSettings(daemon_version="check", runtimes=runtimes)
    parts = HostParts(spawner=spawner, audit=audit, clock=clock, ids=ids, settings=settings)
    with tempfile.TemporaryDirectory(prefix="kaged-check-") as scratch:
        installed = InstalledPlugin(
            directory=directory,
            data_dir=Path(scratch) / "data",
            manifest=manifest,
            package=manifest.package or manifest.name,
        )
        try:
            return await _converse(PluginConversation(installed, parts), manifest)
        finally:
            await audit.close()


async def _converse(conversation: PluginConversation, manifest: Manifest) -> list[Problem]:
    schemas = ConfigSchemas(manifest)

    def config() -> JsonObject | None:
        # What projects and operators must fill in is not there yet; defaults alone may not do.
        if not schemas.any or schemas.check_project({}) or schemas.check_system({}):
            return None
        return schemas.merged({}, {})

    file = str(conversation.plugin.directory / MANIFEST_NAME)

    def problem(message: str, fix: str, severity: Severity = Severity.ERROR) -> Problem:
        return Problem(file, None, None, "", message, fix, severity, HANDSHAKE)

    try:
        greeting = await conversation.open({}, config)
    except StartFailed as error:
        if isinstance(error.__cause__, PluginConfigInvalid):
            # It has shaken hands, and defaults need not do: people set the rest before they use it.
            what = f"it does not start with the defaults of its settings: {error.message}"
            return [problem(what, "tell people in its README what to set", Severity.WARNING)]
        fix = error.fix or "run it by hand and write an initialize request to its standard input"
        return [problem(f"it does not start: {error.message}", fix)]
    found = [
        problem(warning, "make manifest and handshake agree", Severity.WARNING)
        for warning in greeting.warnings
    ]
    unhealthy = await conversation.ping()
    if unhealthy is not None:
        found.append(problem(f"it does not answer ping: {unhealthy}", "answer with status ok"))
    report = await conversation.stop()
    if not report.exit.clean:
        found.append(
            problem(
                f"it does not end by itself after shutdown: it {report.exit.detail}",
                "end the process when `shutdown` arrives",
                Severity.WARNING,
            )
        )
    return found


class _Nowhere:
    """Keeps no audit rows: a dry run changes nothing that would be worth one."""

    def __init__(self) -> None:
        self._head = EMPTY
        self._anchor: Anchor | None = None

    def append(self, rows: Sequence[AuditRow], anchor: Anchor) -> None:
        self._head = ChainHead(rows[-1].seq, rows[-1].hash)
        self._anchor = anchor

    def head(self) -> ChainHead:
        return self._head

    def anchor(self) -> Anchor | None:
        return self._anchor

    def hash_at(self, seq: int) -> str | None:
        return self._head.hash if seq == self._head.seq else None
