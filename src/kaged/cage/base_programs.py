"""The base directory: the base programs and small /etc files that every strict cage shows.

Showing a hundred programs one by one costs a mount each and tens of milliseconds per cage; one
directory costs one mount, and links into it cost nothing. The files are copies in a cache directory
of the daemon, named by what they were copied from, so an upgraded program gives another base
directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

from kaged.base.lazy_dataclass import dataclass

# Where the base directory is seen inside: in the root, because /usr may be the host's own and
# read-only.
BASE_PROGRAMS_INSIDE = "/kaged-base"

# The base set of programs (PH-AMB-52): env, sh and the coreutils. Documented in
# docs/reference/cage.md; nothing else is on PATH without an exec entry.
_BASE = """
sh env [ arch b2sum base32 base64 basename basenc cat chcon chgrp chmod chown cksum comm cp csplit
cut date dd df dir dircolors dirname du echo expand expr factor false fmt fold groups head hostid id
install join link ln logname ls md5sum mkdir mkfifo mknod mktemp mv nice nl nohup nproc numfmt od
paste pathchk pinky pr printenv printf ptx pwd readlink realpath rm rmdir runcon seq sha1sum
sha224sum sha256sum sha384sum sha512sum shred shuf sleep sort split stat stdbuf stty sum sync tac
tail tee test timeout touch tr true truncate tsort tty uname unexpand uniq unlink users vdir wc who
whoami yes
"""
BASE_PROGRAMS: tuple[str, ...] = tuple(_BASE.split())
# On the base directory but not on PATH: gives a command on a pseudo-terminal its own session
# inside.
SESSION_PROGRAM = "setsid"

BASE_ETC: tuple[str, ...] = (
    "ld.so.cache",
    "localtime",
    "mime.types",
    "protocols",
    "services",
    "ssl/openssl.cnf",
)

_SOURCE_DIRS = ("/usr/bin", "/bin", "/usr/local/bin")
_MAX_FILE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BaseProgramDir:
    """A base directory on disk: its directory and what lies on it."""

    path: str
    programs: tuple[str, ...]
    etc: tuple[str, ...]
    session_program: bool


@dataclass(frozen=True, slots=True)
class _BaseFile:
    name: str  # below the base directory, e.g. "bin/cat"
    source: str
    mode: int
    identity: tuple[int, int, int, int]  # device, inode, size, mtime_ns


def base_program_sources() -> tuple[_BaseFile, ...]:
    """List what a base directory would hold now: every base program and file of this host."""
    items: list[_BaseFile] = []
    for name in (*BASE_PROGRAMS, SESSION_PROGRAM):
        for folder in _SOURCE_DIRS:
            item = _item(f"bin/{name}", f"{folder}/{name}", 0o555)
            if item is not None:
                items.append(item)
                break
    for name in BASE_ETC:
        item = _item(f"etc/{name}", f"/etc/{name}", 0o444)
        if item is not None:
            items.append(item)
    return tuple(items)


def base_program_key(items: tuple[_BaseFile, ...]) -> str:
    """Return a base directory's name, made of its contents."""
    digest = hashlib.sha256()
    for item in items:
        digest.update(repr((item.name, item.source, item.identity)).encode())
    return digest.hexdigest()[:24]


def build_base_programs(cache_dir: Path) -> BaseProgramDir:
    """Return the base directory for this host as it is now; copy what is needed when it is new.

    Safe when several daemons do it at once: a base directory appears whole, by rename, or not at
    all.

    Raises:
        OSError: the cache directory is a link, somebody else's, or others may write to it, so that
            they could put programs of their own into every cage; or it cannot be written.
    """
    items = base_program_sources()
    place = cache_dir / f"shelf-{base_program_key(items)}"
    _open_cache(cache_dir)
    if not _whole(place, items):
        _build(cache_dir, place, items)
    names = [item.name for item in items]
    return BaseProgramDir(
        path=str(place),
        programs=tuple(name for name in BASE_PROGRAMS if f"bin/{name}" in names),
        etc=tuple(name for name in BASE_ETC if f"etc/{name}" in names),
        session_program=f"bin/{SESSION_PROGRAM}" in names,
    )


def _open_cache(cache_dir: Path) -> None:
    try:
        cache_dir.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        cache_dir.mkdir()
        cache_dir.chmod(0o755)  # whatever the umask is: cages of other users read from it
    except FileExistsError:
        found = cache_dir.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise OSError(f"{cache_dir} is not a directory, or a link to one") from None
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise OSError(f"{cache_dir} can be changed by other users") from None


def _item(name: str, source: str, mode: int) -> _BaseFile | None:
    try:
        found = Path(source).stat()
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_FILE_BYTES:
        return None
    identity = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    return _BaseFile(name, source, mode, identity)


def _whole(place: Path, items: tuple[_BaseFile, ...]) -> bool:
    # A crash of the machine may leave a renamed directory with empty files in it.
    try:
        return all((place / item.name).stat().st_size == item.identity[2] for item in items)
    except OSError:
        return False


def _build(cache_dir: Path, place: Path, items: tuple[_BaseFile, ...]) -> None:
    work = Path(tempfile.mkdtemp(prefix="shelf-new-", dir=cache_dir))
    try:
        work.chmod(0o755)
        for folder in ("bin", "etc", "etc/ssl"):
            (work / folder).mkdir()
            (work / folder).chmod(0o755)
        copied: dict[tuple[int, int, int, int], Path] = {}
        for item in items:
            target = work / item.name
            first = copied.get(item.identity)
            if first is not None:  # one program under many names: busybox, uutils
                os.link(first, target)
                continue
            shutil.copyfile(item.source, target)
            target.chmod(item.mode)
            copied[item.identity] = target
        if place.exists():  # damaged: put it aside first, rename replaces only empty directories
            place.rename(work.with_name(work.name + "-old"))
            shutil.rmtree(work.with_name(work.name + "-old"), ignore_errors=True)
        with contextlib.suppress(
            OSError
        ):  # another daemon was faster; its base directory is the same
            work.rename(place)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if not _whole(place, items):
        raise OSError(f"the base programs could not be written to {place}")
