"""Which programs a command needs: the command, its interpreters, and what exec entries name.

`plan_programs` follows links and `#!` lines on the host and says what must be shown inside so that
exactly these programs can be started. The outcome is a value; nothing is opened or kept.
"""

from __future__ import annotations

import os
import posixpath
import re
import shlex
import stat
from dataclasses import field
from pathlib import Path, PurePosixPath

from kaged.base.file_stamp import stamp_of
from kaged.base.lazy_dataclass import dataclass
from kaged.cage.errors import PolicyConflict, ProgramMissing
from kaged.cage.facts import HostFacts
from kaged.cage.runtimes import companions, runtime_layout

PATH_DIRS = ("/usr/bin", "/usr/local/bin")  # PH-SUP-10
_SHOWN_DIR = "/usr/local/bin"
_SYSTEM_BIN = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/bin", "/sbin")
_MAX_LINKS = 16
_MAX_CHAIN = 6
_SHEBANG_BYTES = 512
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@-]*|\[")


@dataclass(frozen=True, slots=True)
class ProgramPlan:
    """What must be shown inside for a command and its exec entries.

    `links` are paths and targets, `files` and `dirs` are shown at their own paths, `moved` are
    single-file programs of other places shown below /usr/local/bin as (host path, inside path).
    `path_dirs` go to the end of PATH. `seen` are the host paths whose change makes the plan stale.
    """

    links: tuple[tuple[str, str], ...] = ()
    files: tuple[str, ...] = ()
    dirs: tuple[str, ...] = ()
    moved: tuple[tuple[str, str], ...] = ()
    path_dirs: tuple[str, ...] = ()
    seen: tuple[tuple[str, tuple[int, ...] | None], ...] = ()

    @property
    def path(self) -> str:
        """Return the PATH of the cage (PH-AMB-64)."""
        return ":".join((*PATH_DIRS, *self.path_dirs))

    def still_true(self) -> bool:
        """Return whether every file looked at is still the same one."""
        return all(
            identity is not None and _identity(path) == identity for path, identity in self.seen
        )


def plan_programs(
    command: tuple[str, ...],
    exec_names: tuple[str, ...],
    facts: HostFacts,
    *,
    visible: tuple[str, ...] = (),
    runtimes: tuple[tuple[str, str], ...] = (),
    cwd: str = "/",
) -> ProgramPlan:
    """Find everything `command` and the exec entries need to be started by name.

    `visible` are directories that the cage shows anyway (its grants), `runtimes` are programs that
    config.toml names.

    Raises:
        ProgramMissing: a program is not on this host; the error names it.
    """
    search = _Search(facts, visible, dict(runtimes), cwd)
    search.add_command(command)
    for name in exec_names:
        search.add(name)
    return search.plan()


@dataclass
class _Search:
    facts: HostFacts
    visible: tuple[str, ...]
    runtimes: dict[str, str]
    cwd: str
    links: dict[str, str] = field(default_factory=dict[str, str])
    files: dict[str, None] = field(default_factory=dict[str, None])
    dirs: dict[str, None] = field(default_factory=dict[str, None])
    moved: dict[str, str] = field(default_factory=dict[str, str])
    path_dirs: dict[str, None] = field(default_factory=dict[str, None])
    seen: dict[str, tuple[int, ...] | None] = field(
        default_factory=dict[str, tuple[int, ...] | None]
    )

    def plan(self) -> ProgramPlan:
        dirs = [one for one in self.dirs if not self._shown_by_others(one)]
        return ProgramPlan(
            links=tuple(sorted(self.links.items())),
            files=tuple(sorted(self.files)),
            dirs=tuple(sorted(dirs)),
            moved=tuple(sorted((source, dest) for dest, source in self.moved.items())),
            path_dirs=tuple(self.path_dirs),
            seen=tuple(sorted(self.seen.items())),
        )

    def add_command(self, command: tuple[str, ...], depth: int = 0) -> None:
        """Add a command line's program, and the one that `env` will look for."""
        self.add(command[0], depth)
        if PurePosixPath(command[0]).name == "env":
            wanted = _program_after_env(command[1:])
            if wanted is not None:
                self.add(wanted, depth)

    def add(self, name: str, depth: int = 0) -> None:
        """Add one program by name or path, with its interpreters."""
        if depth > _MAX_CHAIN:
            raise ProgramMissing(name, "its chain of interpreters does not end")
        if (
            "/" not in name
            and name in self.facts.base_programs.programs
            and name not in self.runtimes
        ):
            return
        path = self._locate(name)
        base = self._base_program_behind(path) if name in self.runtimes else None
        if base is not None and posixpath.basename(base) != name:
            self.links[f"{_SHOWN_DIR}/{name}"] = base
        if base is not None or self._is_base_program(path):
            return
        real = self._follow(path)
        if not self._in_visible(real):
            self._show(name, path, real)
        for wanted in _interpreters(real):
            self.add_command(wanted, depth + 1)

    def _locate(self, name: str) -> str:
        if "/" in name:
            path = posixpath.normpath(posixpath.join(self.cwd, name))
            if _is_program(path):
                return path
            raise ProgramMissing(name, "no such program on this host")
        if not _NAME.fullmatch(name):
            raise ProgramMissing(ascii(name), "not a program name")
        named = self.runtimes.get(name)
        if named is not None:
            if named.startswith("/") and _is_program(named):
                return posixpath.normpath(named)
            raise ProgramMissing(name, f"config.toml names {named}, which is not a program")
        for folder in (*PATH_DIRS, *self.facts.search_path):
            path = f"{folder}/{name}"
            if _is_program(path):
                return _past_shim(path)
        raise ProgramMissing(
            name,
            "not found on this host",
            fix=f"install {name}, or name its place as a runtime in config.toml",
        )

    def _is_base_program(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        return folder in {"/usr/bin", "/bin"} and name in self.facts.base_programs.programs

    def _base_program_behind(self, path: str) -> str | None:
        """Return the program of every cage that a runtime of config.toml is, or links to."""
        for _ in range(_MAX_LINKS):
            self.seen[path] = _identity(path)
            folder, name = posixpath.split(path)
            path = f"{os.path.realpath(folder)}/{name}"
            if self._is_base_program(path):
                return path
            try:
                target = os.readlink(path)  # noqa: PTH115 - string paths throughout
            except OSError:
                return None
            path = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        return None

    def _follow(self, path: str) -> str:
        """Follow links to the file itself, noting each link that must exist inside too."""
        for _ in range(_MAX_LINKS):
            self.seen[path] = _identity(path)
            folder = posixpath.dirname(path)
            real_folder = os.path.realpath(folder)
            if real_folder != folder:  # e.g. /bin, a link to usr/bin that every cage has
                path = f"{real_folder}/{posixpath.basename(path)}"
                continue
            try:
                target = os.readlink(path)  # noqa: PTH115 - string paths throughout
            except OSError:
                return path
            if not self._in_visible(path):
                self.links[path] = target
            self._note_venv(path)
            path = posixpath.normpath(posixpath.join(folder, target))
        raise ProgramMissing(path, "too many links")

    def _note_venv(self, path: str) -> None:
        root = posixpath.dirname(posixpath.dirname(path))
        if root != "/" and Path(root, "pyvenv.cfg").is_file():
            self.dirs[root] = None
            self.links.pop(path, None)
            self.path_dirs[f"{root}/bin"] = None

    def _show(self, name: str, path: str, real: str) -> None:
        folder, _, base = real.rpartition("/")
        layout = runtime_layout(real)
        for one in (*layout.dirs, *companions(base)):
            self.dirs[one] = None
        for link, target in layout.links:
            self.links.setdefault(link, target)
        asked = name if "/" not in name else path.rpartition("/")[2]
        if folder in _SYSTEM_BIN:
            self.files[real] = None
            sbin = folder in {"/usr/sbin", "/usr/local/sbin"}
            if "/" not in name and (sbin or name in self.runtimes):
                self.links[f"{_SHOWN_DIR}/{asked}"] = real
        elif layout.at_own_path:
            self.files[real] = None
            self.path_dirs[folder] = None
            if "/" not in name and asked != base and f"{folder}/{asked}" not in self.links:
                # Packages name their programs by links: node_modules/.bin/bun -> bun/bin/bun.exe.
                self.links[f"{_SHOWN_DIR}/{asked}"] = real
        elif "/" in name:  # asked for by its own path: show it there
            self.files[real] = None
        else:
            self._move(asked, path, real)

    def _move(self, asked: str, path: str, real: str) -> None:
        dest = f"{_SHOWN_DIR}/{asked}"
        if self.moved.get(dest, real) != real:
            raise PolicyConflict(f"two programs would be shown as {dest}", path=dest)
        self.moved[dest] = real
        for link in [one for one in self.links if one == path or not one.startswith("/usr/")]:
            self.links.pop(link)  # the links led here from outside /usr; the file is shown directly

    def _in_visible(self, path: str) -> bool:
        return any(path == one or path.startswith(f"{one}/") for one in self.visible)

    def _shown_by_others(self, path: str) -> bool:
        shown = (*self.visible, *self.facts.library_dirs, *self.facts.data_dirs)
        others = (one for one in self.dirs if one != path)
        return any(path == one or path.startswith(f"{one}/") for one in (*shown, *others) if one)


def _program_after_env(words: tuple[str, ...]) -> str | None:
    """Find the program in the words after `env`, past its options and assignments."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in {"-S", "--split-string"} and rest:
            rest = [*shlex.split(rest.pop(0)), *rest]
        elif word.startswith("-S"):
            rest = [*shlex.split(word[2:]), *rest]
        elif word in {"-u", "--unset", "-C", "--chdir"} and rest:
            rest.pop(0)
        elif not word.startswith("-") and "=" not in word:
            return word
    return None


def _interpreters(path: str) -> tuple[tuple[str, ...], ...]:
    """Read the `#!` line of a script; empty for a binary."""
    try:
        with Path(path).open("rb") as file:
            head = file.read(_SHEBANG_BYTES)
    except OSError:
        return ()
    if not head.startswith(b"#!"):
        return ()
    line = os.fsdecode(head[2:].split(b"\n", 1)[0]).strip()
    program, _, argument = line.partition(" ")
    if not program.startswith("/"):
        return ()
    return ((program, argument.strip()) if argument.strip() else (program,),)


def _past_shim(path: str) -> str:
    """Return the program behind a version manager's shim, which itself needs the whole manager."""
    folder, _, name = path.rpartition("/")
    root, _, last = folder.rpartition("/")
    if last != "shims":
        return path
    versions = f"{root}/versions"
    try:
        preferred = Path(root, "version").read_text(encoding="utf-8").split()
    except OSError:
        preferred = []
    try:
        installed = sorted((one.name for one in Path(versions).iterdir()), reverse=True)
    except OSError:
        installed = []
    for version in (*preferred, *installed):
        candidate = f"{versions}/{version}/bin/{name}"
        if "/" not in version and _is_program(candidate):
            return candidate
    raise ProgramMissing(name, f"{path} is a version manager's shim with nothing behind it")


def _is_program(path: str) -> bool:
    return Path(path).is_file() and os.access(path, os.X_OK)


def _identity(path: str) -> tuple[int, ...] | None:
    """Return what a file is known by; None while it may change without another."""
    try:
        found = os.lstat(path)
    except OSError:
        return ()
    if stat.S_ISDIR(found.st_mode):  # a directory's time changes with every file in it
        return (found.st_dev, found.st_ino)
    return stamp_of(found)
