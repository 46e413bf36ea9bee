"""`lay_out`: what lies where in a cage. Pure, and kept: most cages of a daemon look alike."""

from __future__ import annotations

import functools
import posixpath
from dataclasses import field

from kaged.base.lazy_dataclass import dataclass
from kaged.cage.arguments import DescriptorSlot, Token
from kaged.cage.base_programs import BASE_PROGRAMS_INSIDE
from kaged.cage.binfolder import BinFolder, fold_name
from kaged.cage.errors import PolicyConflict
from kaged.cage.facts import HostFacts
from kaged.cage.mount_targets import MountTargets
from kaged.cage.programs import ProgramPlan
from kaged.cage.request import CageKind, HostMount, Programs
from kaged.kernel.policy import FsMode

INSIDE_UID = 1000
INSIDE_GID = 1000
INSIDE_NAME = "cage"
SCRATCH = "/tmp"  # noqa: S108 - the cage's own, made new for each one

_HOSTS = "127.0.0.1\tlocalhost cage\n::1\tlocalhost cage\n"
_NSSWITCH = "passwd: files\ngroup: files\nhosts: files\n"
_PASSWD = f"{INSIDE_NAME}:x:{INSIDE_UID}:{INSIDE_GID}:{INSIDE_NAME}:{SCRATCH}:/bin/sh\n"
_GROUP = f"{INSIDE_NAME}:x:{INSIDE_GID}:\n"
_MIB = 1024 * 1024
# /run holds nothing of ours; programs put a lock or a pid there.
_RUN_MIB = 8


@dataclass(frozen=True, slots=True)
class ShownPath:
    """One granted path after it was walked: what it is, without its descriptor."""

    path: str
    mode: FsMode
    is_dir: bool


@dataclass(frozen=True, slots=True)
class Blueprint:
    """Everything that decides what lies where in a cage, beside the facts of the host."""

    kind: CageKind
    programs: Programs
    persistent: bool
    tmpfs_mb: int
    mounts: tuple[HostMount, ...] = ()
    grants: tuple[ShownPath, ...] = ()
    plan: ProgramPlan = field(default_factory=ProgramPlan)
    net_files: tuple[tuple[str, str], ...] = ()
    own_files: tuple[str, ...] = ()
    pipes: tuple[str, ...] = ()
    as_root: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """Mounts as bwrap options, the files they need by label, and the same as lines of text.

    `folders` are directories of the daemon's cache that some of the mounts show.
    """

    options: tuple[Token, ...]
    files: tuple[tuple[str, bytes], ...]
    lines: tuple[str, ...]
    dests: frozenset[str]
    folders: tuple[BinFolder, ...] = ()

    def visible(self, path: str) -> bool:
        """Return whether a directory of this name can exist inside, at, above or below a place."""
        return path == "/" or any(
            path == dest or path.startswith(f"{dest}/") or dest.startswith(f"{path}/")
            for dest in self.dests
        )


@functools.lru_cache(maxsize=128)
def lay_out(plan: Blueprint, facts: HostFacts) -> Layout:
    """Work out the mounts of a cage.

    Raises:
        PolicyConflict: two entries claim one place with different meanings.
    """
    places = MountTargets(plan.grants)
    if plan.programs is Programs.STRICT:
        _strict_system(places, facts)
    else:
        _whole_system(places, facts)
    _etc(places, facts)
    files = _made_up(places, plan, facts)
    _kernel_and_scratch(places, plan, facts)
    _programs(places, plan.plan)
    folders = _fold(places, plan, facts) if plan.programs is Programs.STRICT else ()
    for mount in plan.mounts:
        places.mount(mount.source, mount.dest, mount.mode)
    for number, grant in enumerate(plan.grants):
        places.grant(number, grant)
    for path in plan.own_files:
        places.own_file(path, DescriptorSlot(own_file_label(path)))
    for path in plan.pipes:
        places.cover_pipe(path)
    options = places.options()
    lines = _lines(options, facts, frozenset(folder.path for folder in folders))
    return Layout(options, files, lines, places.dests, folders)


def own_file_label(path: str) -> str:
    """Return the label of the descriptor with what a file of the cage's own holds."""
    return f"own:{path}"


def _strict_system(places: MountTargets, facts: HostFacts) -> None:
    for path in (*facts.library_dirs, *facts.data_dirs):
        places.bind(path)
    for path, target in facts.library_links:
        places.link(path, target)
    places.show(facts.base_programs.path, BASE_PROGRAMS_INSIDE)
    places.directory("/usr")
    places.directory("/usr/local/bin")
    for entry in facts.root_entries:
        if entry.target is not None:
            places.link(f"/{entry.name}", entry.target)
        elif entry.name.startswith("lib"):
            places.bind(f"/{entry.name}")
    for folder in _bins(facts):
        for name in facts.base_programs.programs:
            places.link(f"{folder}/{name}", f"{BASE_PROGRAMS_INSIDE}/bin/{name}")


def _bins(facts: HostFacts) -> tuple[str, ...]:
    """Return the directories of base programs; two of them on a host without a merged /usr."""
    apart = any(one.name == "bin" and one.target is None for one in facts.root_entries)
    return ("/usr/bin", "/bin") if apart else ("/usr/bin",)


def _fold(places: MountTargets, plan: Blueprint, facts: HostFacts) -> tuple[BinFolder, ...]:
    """Show each directory of base programs as one mount, unless a grant or mount reaches in."""
    others = (*(mount.dest for mount in plan.mounts), *(grant.path for grant in plan.grants))
    folders: list[BinFolder] = []
    for bin_dir in _bins(facts):
        if any(one == bin_dir or one.startswith(f"{bin_dir}/") for one in others):
            continue
        found = places.fold(bin_dir)
        if found is not None:
            folder = BinFolder(posixpath.dirname(facts.base_programs.path), *found)
            places.show(folder.path, bin_dir)
            folders.append(folder)
    return tuple(folders)


def _whole_system(places: MountTargets, facts: HostFacts) -> None:
    places.bind("/usr")
    places.show(facts.base_programs.path, BASE_PROGRAMS_INSIDE)
    for entry in facts.root_entries:
        if entry.target is not None:
            places.link(f"/{entry.name}", entry.target)
        else:
            places.bind(f"/{entry.name}")
    for path in facts.etc_system:
        places.bind(path)


def _etc(places: MountTargets, facts: HostFacts) -> None:
    places.directory("/etc")
    for path in facts.etc_shown:
        places.bind(path)
    for name in facts.base_programs.etc:
        places.link(f"/etc/{name}", f"{BASE_PROGRAMS_INSIDE}/etc/{name}")


def _made_up(
    places: MountTargets, plan: Blueprint, facts: HostFacts
) -> tuple[tuple[str, bytes], ...]:
    texts: dict[str, str] = {"/etc/hosts": _HOSTS, "/etc/nsswitch.conf": _NSSWITCH}
    texts.update(plan.net_files)
    if plan.kind is not CageKind.PLUGIN:  # PH-CAGE-14: a plugin's cage has none, not even this
        texts |= {"/etc/passwd": _PASSWD, "/etc/group": _GROUP}
    files: list[tuple[str, bytes]] = []
    for path, text in texts.items():
        name = path.removeprefix("/etc/")
        if name in {path, ""} or "/" in name:
            raise PolicyConflict(f"{path} is not a file directly in /etc", path=path)
        label = f"file:{path}"
        if places.file(path, DescriptorSlot(label), on_host=name in facts.etc_present):
            files.append((label, text.encode()))
    return tuple(files)


def _kernel_and_scratch(places: MountTargets, plan: Blueprint, facts: HostFacts) -> None:
    size = plan.tmpfs_mb * _MIB
    places.put("/proc", ("--proc", "/proc"))
    for path in facts.hidden_files:
        places.cover_file(path)
    for path, is_dir in facts.hidden_from_root if plan.as_root else ():
        if is_dir:
            places.cover_dir(path)
        else:
            places.cover_file(path)
    places.put("/dev", ("--dev", "/dev"))
    places.scratch("/dev/shm", size)  # noqa: S108 - the cage's own
    places.scratch("/run", min(size, _RUN_MIB * _MIB) if size else 0)
    if plan.persistent:
        places.put(SCRATCH, ("--bind-fd", DescriptorSlot("state"), SCRATCH))
    else:
        places.scratch(SCRATCH, size)


def _programs(places: MountTargets, plan: ProgramPlan) -> None:
    for path, target in plan.links:
        places.link(path, target)
    for path in plan.files:
        places.bind(path)
    for source, dest in plan.moved:
        places.show(source, dest)
    for number, path in enumerate(plan.dirs):
        places.put(
            path, ("--ro-bind-fd", DescriptorSlot(f"runtime:{number}"), path), same_path=True
        )


def _lines(tokens: tuple[Token, ...], facts: HostFacts, folders: frozenset[str]) -> tuple[str, ...]:
    lines: list[str] = []
    for token in tokens:
        if isinstance(token, DescriptorSlot):
            lines[-1] += f" <{token.label}>"
        elif token.startswith("--"):
            lines.append(token)
        elif token in folders:
            lines[-1] += f" <{fold_name(token)}>"
        elif token == facts.base_programs.path:  # changes with every upgrade of a base program
            lines[-1] += " <base programs>"
        else:  # a pipe of the host may have any name; one entry stays one line
            lines[-1] += f" {token}" if token.isprintable() else f" {token!a}"
    return tuple(lines)
