"""`write_archive` and `restore_archive`: all that a daemon keeps, in one file, and back.

An archive is a tar file: the files of the home and of the configuration, the database as SQLite's
own backup interface copies it beside a daemon that goes on writing, as those of plugins are, and at
its end a manifest with the digest of each. It is read again after it was written. What can be made
anew (caches, logs, sockets, copies of the database) is left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import tarfile
from collections.abc import Generator, Iterator
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, cast

from kaged import __version__
from kaged.base import Clock, KagedError, iso_utc
from kaged.base.lazy_dataclass import dataclass
from kaged.config.settings import Settings
from kaged.store.backends.choose import backend_for
from kaged.store.backends.sqlite_snapshot import SIDECARS, snapshot

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
DATABASE: Final = "database"
MAX_MANIFEST_BYTES: Final = 64 * 1024 * 1024
MAX_FILES: Final = 1_000_000
_PIECE: Final = 1024 * 1024
_TRIES: Final = 3
_LEFT_OUT: Final = frozenset(
    {"run", "logs", "cache", "backups", "daemon.lock", "daemon.log", "daemon.log.1"}
)
_KEYS: Final = ("audit.key", "vault.key", "vault.replacement.key")


@dataclass(frozen=True, slots=True)
class Archived:
    """What an archive holds."""

    created_at: str
    version: str
    files: int
    bytes: int
    database: str

    @classmethod
    def of(cls, manifest: dict[str, Any]) -> Archived:
        """Return what a manifest says."""
        sizes = [one["size"] for one in manifest["files"].values()]
        return cls(
            manifest["created_at"], manifest["version"], len(sizes), sum(sizes),
            manifest["database"],
        )  # fmt: skip


def write_archive(settings: Settings, target: Path, clock: Clock) -> Archived:
    """Write an archive of a home into a new file, beside a daemon or without one.

    Raises:
        KagedError: `archive_target_exists`, `archive_unwritable`; nothing was written.
        StoreError: the database cannot be read.
    """
    if os.path.lexists(target):
        raise KagedError(
            f"{target} exists.", code="archive_target_exists", fix="Name a file that does not."
        )
    partial = target.with_name(f".{target.name}.partial")
    try:
        with _private_file(partial) as file:
            manifest = _write_unchanged(settings, target, file, clock)
            file.flush()
            os.fsync(file.fileno())
        with partial.open("rb") as file:
            _check(file, manifest)
        partial.rename(target)
    except OSError as error:
        raise KagedError(
            f"{target} cannot be written: {error.strerror or error}.",
            code="archive_unwritable",
            fix="Check the folder, its permissions and the free space.",
        ) from error
    finally:
        with contextlib.suppress(OSError):  # a folder that cannot be written to holds none of ours
            partial.unlink()
    return Archived.of(manifest)


def restore_archive(settings: Settings, source: Path, clock: Clock, *, replace: bool) -> Archived:
    """Put what an archive holds into an empty home; call it while holding the home's lock.

    With `replace` files that are in the way are moved to a folder `replaced-<time>` first.

    Raises:
        KagedError: `archive_invalid`; it is damaged, or none of ours. Nothing was changed.
        KagedError: `restore_not_empty`; there are files in the way. Nothing was changed.
        KagedError: `archive_unwritable`; the home cannot be written.
    """
    roots = {name: root for root, name in _roots(settings).items()}
    staging = settings.places.data_dir / ".restore"
    try:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(mode=0o700)
        with source.open("rb") as file:
            manifest = _unpack(file, staging)
        places = {
            staging / name: _place(name, roots, manifest, settings) for name in manifest["files"]
        }
        in_the_way = [one for one in places.values() if os.path.lexists(one)]
        if in_the_way and not replace:
            raise KagedError(
                f"{len(in_the_way)} files of the archive are there already, "
                f"{in_the_way[0]} among them.",
                code="restore_not_empty",
                fix="Restore into an empty home, or add --replace to move them aside.",
            )
        stamp = iso_utc(clock.now_ms()).replace("-", "").replace(":", "").replace(".", "")
        _move_aside(in_the_way, settings.places.data_dir / f"replaced-{stamp}", settings)
        # The database comes last: before it is there, no daemon takes this home for a whole one.
        for staged, place in sorted(places.items(), key=lambda one: one[0].name == DATABASE):
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.move(staged, place)
    except OSError as error:
        raise KagedError(
            f"The archive cannot be restored: {error.strerror or error}.",
            code="archive_unwritable",
            fix="Check the file, the home's permissions and the free space.",
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return Archived.of(manifest)


# -- writing ---------------------------------------------------------------------------------------


def _write_unchanged(
    settings: Settings, target: Path, file: IO[bytes], clock: Clock
) -> dict[str, Any]:
    """Write all of it, anew when a key was replaced or a file cut meanwhile."""
    for _ in range(_TRIES):
        file.seek(0)
        file.truncate()
        keys = _keys(settings)
        with contextlib.suppress(_FileShrank):
            manifest = _write(settings, target, file, clock)
            if keys == _keys(settings):
                return manifest
    raise KagedError(
        "Files of the home change while they are copied.",
        code="archive_unwritable",
        fix="Try again in a moment, or stop the daemon first.",
    )


def _write(settings: Settings, target: Path, file: IO[bytes], clock: Clock) -> dict[str, Any]:
    files: dict[str, Any] = {}
    url = settings.database_url
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": __version__,
        "created_at": iso_utc(clock.now_ms()),
        "database": "" if settings.daemon.value.storage.url is None else url,
        "files": files,
    }
    with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as tar:
        # The audit log's head comes before the database: a log that has grown since is as after a
        # kill, one that is shorter than its head looks as if rows had been taken away.
        copy = target.with_name(f".{target.name}.database")
        try:
            _add_files(tar, files, _files(settings, target), copy)
            copy.unlink(missing_ok=True)
            backend = backend_for(url, settings.places.backup_dir)
            conn = backend.connect_reader()
            try:
                backend.backup(conn, copy)
            finally:
                conn.close()
            files[DATABASE] = _add(tar, DATABASE, copy)
        finally:
            copy.unlink(missing_ok=True)
        text = json.dumps(manifest, indent=1).encode()
        member = tarfile.TarInfo(MANIFEST)
        member.size, member.mode = len(text), 0o600
        tar.addfile(member, BytesIO(text))
    return manifest


def _add_files(
    tar: tarfile.TarFile, files: dict[str, Any], found: Iterator[tuple[str, Path]], copy: Path
) -> None:
    """Add the files of a home. A daemon and its plugins go on: what is gone meanwhile is gone."""
    snapshots: set[str] = set()
    for name, path in found:
        if name.endswith(SIDECARS) and name.rpartition("-")[0] in snapshots:
            continue  # what was in it is in the snapshot, into which it does not fit any more
        with contextlib.suppress(FileNotFoundError):
            if snapshot(path, copy):
                snapshots.add(name)
                files[name] = _add(tar, name, copy, like=path)
            else:
                files[name] = _add(tar, name, path)


def _files(settings: Settings, target: Path) -> Iterator[tuple[str, Path]]:
    database = backend_for(settings.database_url, settings.places.backup_dir).place
    left_out = {f"{database}{end}" for end in ("", "-wal", "-shm", "-journal")} | {
        str(target.parent / f".{target.name}.{own}") for own in ("partial", "database")
    }
    for root, prefix in _roots(settings).items():
        for folder, folders, names in os.walk(root):
            if Path(folder) == root:
                folders[:] = [
                    one for one in folders
                    if one not in _LEFT_OUT and not one.startswith(("replaced-", ".restore"))
                ]  # fmt: skip
            for name in sorted([*names, *_links(folder, folders)]):
                path = Path(folder, name)
                if path.parent == root and name in _LEFT_OUT:
                    continue
                try:
                    kind = path.lstat().st_mode
                except FileNotFoundError:
                    continue
                if str(path) in left_out or not (stat.S_ISREG(kind) or stat.S_ISLNK(kind)):
                    continue
                yield f"{prefix}/{path.relative_to(root)}", path


def _links(folder: str, folders: list[str]) -> list[str]:
    return [name for name in folders if Path(folder, name).is_symlink()]


def _roots(settings: Settings) -> dict[Path, str]:
    places = settings.places
    # With KAGED_HOME both are one folder; the first name stays.
    return {places.config_dir: "config", places.data_dir: "data"}


def _add(
    tar: tarfile.TarFile, name: str, path: Path, *, like: Path | None = None
) -> dict[str, Any]:
    """Add a file; with `like` its mode and time are those of another one."""
    info = (like or path).lstat()
    member = tarfile.TarInfo(name)
    member.mode, member.mtime = stat.S_IMODE(info.st_mode), int(info.st_mtime)
    if stat.S_ISLNK(info.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, str(path.readlink())
        tar.addfile(member)
        return {"size": 0, "mode": 0o777, "link": member.linkname}
    member.size = info.st_size if like is None else path.stat().st_size
    with path.open("rb") as file:
        reader = _DigestReader(file)
        # One that grows meanwhile is cut where it ended; one that shrinks is begun again with.
        tar.addfile(member, cast("IO[bytes]", reader))
    return {"size": member.size, "mode": member.mode, "sha256": reader.digest.hexdigest()}


class _FileShrank(Exception):
    """A file became shorter while it was copied."""


class _DigestReader:
    """Reads a file, and its digest with it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, size: int) -> bytes:
        piece = self._file.read(size)
        if len(piece) < size:
            raise _FileShrank
        self.digest.update(piece)
        return piece


@contextlib.contextmanager
def _private_file(path: Path) -> Generator[IO[bytes]]:
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "r+b") as file:
        yield file


def _keys(settings: Settings) -> list[bytes | None]:
    paths = [settings.places.data_dir / name for name in _KEYS]
    return [path.read_bytes() if path.is_file() else None for path in paths]


# -- reading ---------------------------------------------------------------------------------------


def _check(file: IO[bytes], manifest: dict[str, Any]) -> None:
    """Read an archive that was just written. Raises `archive_invalid`."""
    with _opened(file) as tar:
        found = {one.name: _digest(tar, one) for one in tar}
    found.pop(MANIFEST, None)
    wanted = {name: one.get("sha256", one.get("link")) for name, one in manifest["files"].items()}
    if found != wanted:
        raise _invalid("what was read back is not what was written")


def _unpack(file: IO[bytes], staging: Path) -> dict[str, Any]:
    """Put an archive's files below a folder of our own, and return its manifest."""
    digests: dict[str, Any] = {}
    manifest: dict[str, Any] | None = None
    with _opened(file) as tar:
        for member in tar:
            if len(digests) > MAX_FILES or manifest is not None:
                raise _invalid("it holds more than it should")
            if member.name == MANIFEST and member.isreg() and member.size <= MAX_MANIFEST_BYTES:
                manifest = _manifest(_content(tar, member))
                continue
            if member.name in digests or not _is_plain(member):
                raise _invalid(f"it holds {member.name[:200]!r}")
            place = staging / member.name
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if member.issym():
                place.symlink_to(member.linkname)
                digests[member.name] = member.linkname
            else:
                digests[member.name] = _extract(tar, member, place)
    if manifest is None:
        raise _invalid("it has no manifest; it was cut short")
    wanted = {name: one.get("sha256", one.get("link")) for name, one in manifest["files"].items()}
    if digests != wanted or DATABASE not in wanted:
        raise _invalid("a file is damaged or missing")
    return manifest


def _manifest(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
        files = found["files"]
        sound = found["format"] == FORMAT and all(
            isinstance(one["size"], int) and isinstance(one.get("sha256", one.get("link")), str)
            for one in files.values()
        )
        texts = all(isinstance(found[name], str) for name in ("version", "created_at", "database"))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _invalid("its manifest cannot be read") from error
    if not (sound and texts):
        raise _invalid("its manifest is of another kind")
    return found


def _is_plain(member: tarfile.TarInfo) -> bool:
    """Return whether a member is a file or link that stays below where it is put."""
    parts = PurePosixPath(member.name).parts
    if not parts or ".." in parts or parts[0] not in {"data", "config", DATABASE}:
        return False
    if parts[0] == DATABASE:
        return len(parts) == 1 and member.isreg()
    if member.issym():
        there = os.path.normpath(PurePosixPath(member.name).parent / member.linkname)
        return not member.linkname.startswith("/") and there.startswith(f"{parts[0]}/")
    return member.isreg() and len(parts) > 1


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> str:
    digest = hashlib.sha256()
    source = tar.extractfile(member)
    assert source is not None  # it is a file
    handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as file:
        while piece := source.read(_PIECE):
            digest.update(piece)
            file.write(piece)
        os.fchmod(file.fileno(), member.mode & 0o755 | 0o600)
        os.fsync(file.fileno())
    return digest.hexdigest()


def _digest(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    if member.issym():
        return member.linkname
    digest = hashlib.sha256()
    source = tar.extractfile(member)
    assert source is not None  # all members are files or links
    while piece := source.read(_PIECE):
        digest.update(piece)
    return digest.hexdigest()


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    source = tar.extractfile(member)
    assert source is not None  # it is a file
    return source.read()


@contextlib.contextmanager
def _opened(file: IO[bytes]) -> Generator[tarfile.TarFile]:
    try:
        with tarfile.open(fileobj=file, mode="r:gz") as tar:
            yield tar
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise _invalid("it is no whole archive") from error


def _place(name: str, roots: dict[str, Path], manifest: dict[str, Any], settings: Settings) -> Path:
    if name == DATABASE:
        url: str = manifest["database"]
        own = backend_for(url, settings.places.backup_dir).place if url else ""
        return Path(own) if own else settings.places.database
    prefix, _, rest = name.partition("/")
    # Where both were one folder only `data` is used; an archive of two goes into one as well.
    return roots.get(prefix, settings.places.data_dir) / rest


def _move_aside(paths: list[Path], folder: Path, settings: Settings) -> None:
    if not paths:
        return
    database = settings.places.database
    beside = [database.with_name(f"{database.name}{end}") for end in ("-wal", "-shm")]
    for path in [*paths, *(one for one in beside if one.exists())]:
        kept = folder / path.relative_to(path.anchor)
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.move(path, kept)


def _invalid(why: str) -> KagedError:
    return KagedError(
        f"This is not an archive of kaged that can be used: {why}.",
        code="archive_invalid",
        fix="Use another copy. Nothing was changed.",
    )
