"""`HostFacts`: what this machine offers to cages, gathered once and handed to pure code."""

from __future__ import annotations

import os
import platform
import re
import shutil
import stat
import subprocess
from pathlib import Path

from kaged.base.lazy_dataclass import dataclass
from kaged.cage.base_programs import BaseProgramDir, build_base_programs

BWRAP_MIN_VERSION = (0, 8, 0)
BWRAP_OPTIONS = (
    "--args",
    "--bind-fd",
    "--block-fd",
    "--cap-drop",
    "--clearenv",
    "--disable-userns",
    "--info-fd",
    "--perms",
    "--ro-bind-fd",
    "--seccomp",
    "--size",
)
MADE_UP_ETC = ("group", "hosts", "nsswitch.conf", "passwd", "resolv.conf")
_TRIAL_TIMEOUT_S = 10.0
_ROOT_ENTRIES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC_DIRS = ("/etc/ssl/certs", "/etc/pki", "/etc/crypto-policies")
# Only with the host's whole /usr: links such as awk -> /etc/alternatives/awk lead through it.
_ETC_SYSTEM = ("/etc/alternatives",)
_DATA_DIRS = ("/usr/share", "/usr/local/lib")
# What a procfs shows of the user's other processes. Each cover costs a start 0.15 ms, so that what
# everybody may know of the machine is left as it is.
_HIDDEN_PROC = ("/proc/keys", "/proc/key-users")
# Tables of the whole machine that are root's to read, or tell a guest of uid 0 more than others;
# container runtimes hide much the same.
_HIDDEN_FROM_ROOT = tuple(
    f"/proc/{name}"
    for name in (
        *("acpi", "asound", "interrupts", "iomem", "ioports", "kcore", "kmsg", "kpagecgroup"),
        *("kpagecount", "kpageflags", "latency_stats", "pagetypeinfo", "sched_debug", "scsi"),
        *("slabinfo", "timer_list", "timer_stats", "vmallocinfo"),
    )
)


@dataclass(frozen=True, slots=True)
class RootEntry:
    """One of the classic directories in `/`: a link on a merged layout, else a directory."""

    name: str
    target: str | None


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What this machine offers to cages. A value: two equal facts compile to equal cages."""

    bwrap: str | None
    bwrap_version: tuple[int, ...]
    bwrap_missing_options: tuple[str, ...]
    bwrap_setuid: bool
    machine: str
    kernel: tuple[int, ...]
    uid: int
    gid: int
    root_entries: tuple[RootEntry, ...]
    library_dirs: tuple[str, ...]
    library_links: tuple[tuple[str, str], ...]
    data_dirs: tuple[str, ...]
    etc_shown: tuple[str, ...]
    etc_system: tuple[str, ...]
    etc_present: tuple[str, ...]
    base_programs: BaseProgramDir
    search_path: tuple[str, ...]
    setpriv: str | None = None
    hidden_files: tuple[str, ...] = ()
    hidden_from_root: tuple[tuple[str, bool], ...] = ()
    """Each with whether it is a directory."""

    @property
    def is_root(self) -> bool:
        """Whether the daemon runs as uid 0."""
        return self.uid == 0


def gather_facts(
    cache_dir: Path, *, bwrap: str | None = None, search_path: str | None = None
) -> HostFacts:
    """Look at this machine. Starts `bwrap --version` and `--help`; takes a few milliseconds.

    `bwrap` names the sandbox tool when it is not on the usual PATH, `search_path` the directories
    in which runtimes outside /usr are looked for (the daemon's own PATH by default).
    """
    tool = bwrap if bwrap is not None else _find_bwrap()
    version, missing = _bwrap_words(tool)
    search = os.environ.get("PATH", "") if search_path is None else search_path
    return HostFacts(
        bwrap=tool,
        bwrap_version=version,
        bwrap_missing_options=missing,
        bwrap_setuid=tool is not None and bool(_mode(tool) & stat.S_ISUID),
        machine=platform.machine(),
        kernel=_numbers(platform.release()),
        uid=os.geteuid(),
        gid=os.getegid(),
        root_entries=_root_entries(),
        library_dirs=_library_dirs(),
        library_links=_library_links(),
        data_dirs=tuple(path for path in _DATA_DIRS if Path(path).is_dir()),
        etc_shown=tuple(path for path in _ETC_DIRS if Path(path).exists()),
        etc_system=tuple(path for path in _ETC_SYSTEM if Path(path).exists()),
        etc_present=tuple(name for name in MADE_UP_ETC if Path("/etc", name).exists()),
        base_programs=build_base_programs(cache_dir),
        search_path=tuple(
            dict.fromkeys(
                part for part in search.split(":") if part.startswith("/") and "\0" not in part
            )
        ),
        setpriv=shutil.which("setpriv", path="/usr/bin:/bin:/usr/sbin:/sbin"),
        # Which of these there are depends on the kernel; what is not there cannot be covered.
        hidden_files=tuple(path for path in _HIDDEN_PROC if Path(path).exists()),
        hidden_from_root=tuple(
            (path, Path(path).is_dir()) for path in _HIDDEN_FROM_ROOT if Path(path).exists()
        ),
    )


def _find_bwrap() -> str | None:
    found = shutil.which("bwrap", path="/usr/bin:/usr/local/bin:/bin")
    return found if found is not None else shutil.which("bwrap")


def _bwrap_words(tool: str | None) -> tuple[tuple[int, ...], tuple[str, ...]]:
    if tool is None:
        return (), BWRAP_OPTIONS
    told = _output(tool, "--version")
    # Any program may name a version; only this one names itself.
    version = _numbers(told) if told.startswith("bubblewrap ") else ()
    words = set(_output(tool, "--help").split())
    return version, tuple(option for option in BWRAP_OPTIONS if option not in words)


def _output(tool: str, option: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the tool is ours to name and gets one fixed option
            [tool, option],
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TRIAL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")


def _numbers(text: str) -> tuple[int, ...]:
    found = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _mode(path: str) -> int:
    try:
        return Path(path).stat().st_mode
    except OSError:
        return 0


def _root_entries() -> tuple[RootEntry, ...]:
    found: list[RootEntry] = []
    for name in _ROOT_ENTRIES:
        path = Path("/", name)
        if path.is_symlink():
            found.append(RootEntry(name, str(path.readlink())))
        elif path.is_dir():
            found.append(RootEntry(name, None))
    return tuple(found)


def _library_dirs() -> tuple[str, ...]:
    # Multi-arch systems keep libraries in /usr/lib/<triplet> and helper programs of every package
    # beside it; only the former is shown to a strict cage. Others keep them in /usr/lib itself.
    found: list[str] = []
    for name in ("lib", "lib64", "lib32", "libx32"):
        path = Path("/usr", name)
        if path.is_symlink() or not path.is_dir():
            continue
        whole = name != "lib" or any(path.glob("libc.so.*")) or any(path.glob("libc.musl*"))
        if whole:
            found.append(str(path))
        else:
            found.extend(str(child) for child in sorted(path.glob("*-linux-*")) if child.is_dir())
    return tuple(found)


def _library_links() -> tuple[tuple[str, str], ...]:
    # The program loader of some architectures is a link directly in /usr/lib.
    base = Path("/usr/lib")
    if str(base) in _library_dirs() or not base.is_dir():
        return ()
    return tuple(
        (str(path), str(path.readlink()))
        for path in sorted(base.glob("ld-*.so*"))
        if path.is_symlink()
    )
