"""Reading a file that may be anything: bounded, never hanging, with a problem that says what to do.

A configuration path can hold a directory, a FIFO, a device, a link that leaves the project, ten
megabytes or bytes that are not text. Each gives a `Problem`; none gives a traceback or a hang.
"""

from __future__ import annotations

import codecs
import errno
import os
import stat
from enum import StrEnum
from pathlib import Path
from typing import NoReturn

from kaged.base.lazy_dataclass import dataclass
from kaged.config.problems import ConfigFileInvalid, Mark, Problem, Severity

MAX_FILE_BYTES = 1024 * 1024
"""The largest configuration, project, manifest or prompt file that is read."""

_READ_CHUNK = 256 * 1024
_FOREIGN_MARKS = (
    codecs.BOM_UTF32_LE,
    codecs.BOM_UTF32_BE,
    codecs.BOM_UTF16_LE,
    codecs.BOM_UTF16_BE,
)


class Privacy(StrEnum):
    """Who else may touch a file before it is refused."""

    PRIVATE = "private"  # nobody else may read or write it (local.toml)
    TRUSTED = "trusted"  # nobody else may write it (config.toml names commands that are run)
    OPEN = "open"  # anybody may have written it (project files, manifests)


@dataclass(frozen=True, slots=True)
class FileText:
    """The text of a file and what identifies the file it came from."""

    path: Path
    real_path: Path
    text: str
    has_bom: bool
    info: os.stat_result
    warnings: tuple[Problem, ...] = ()


def read_text(
    path: Path,
    *,
    limit_bytes: int = MAX_FILE_BYTES,
    privacy: Privacy = Privacy.OPEN,
    inside: Path | None = None,
    fix_missing: str = "",
) -> FileText:
    """Read a whole regular file as UTF-8.

    `inside` names a directory that the file must really lie in, links followed. `fix_missing` is
    the advice given when there is no such file.

    Raises:
        ConfigFileInvalid: with one problem that names the file, for everything that can be wrong.
    """
    try:
        # O_NONBLOCK: opening a FIFO that nobody writes to must not hang.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        _refuse_open(path, error, fix_missing)
    try:
        info = os.fstat(handle)
        _require_regular(path, info)
        real_path = _real_path_of(handle, path, info)
        _require_inside(path, real_path, inside)
        warnings = _check_owner_and_mode(path, info, privacy)
        data = _read_all(handle, path, info, limit_bytes)
    except OSError as error:
        _refuse(path, "file_unreadable", f"cannot be read: {error.strerror}")
    finally:
        os.close(handle)
    text, has_bom = _decode(path, data)
    return FileText(
        path=path,
        real_path=real_path,
        text=text,
        has_bom=has_bom,
        info=info,
        warnings=warnings,
    )


def is_missing(error: ConfigFileInvalid) -> bool:
    """Return whether the only thing wrong is that there is no such file."""
    return [problem.code for problem in error.problems] == ["file_missing"]


def file_problem(path: Path | str, code: str, message: str, fix: str = "") -> Problem:
    """Describe a problem of a file as a whole."""
    return Problem.at(str(path), None, "", message, fix, code)


def _refuse(
    path: Path, code: str, message: str, fix: str = "", mark: Mark | None = None
) -> NoReturn:
    raise ConfigFileInvalid([Problem.at(str(path), mark, "", message, fix, code)]) from None


def _refuse_open(path: Path, error: OSError | ValueError, fix_missing: str) -> NoReturn:
    if isinstance(error, ValueError):
        _refuse(path, "file_unreadable", "is not a usable path (it contains a NUL)")
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            _refuse(path, "file_missing", "does not exist", fix_missing)
        case errno.EACCES | errno.EPERM:
            _refuse(
                path,
                "file_unreadable",
                "cannot be read: permission denied",
                "give the user that runs kaged permission to read it",
            )
        case errno.ELOOP:
            _refuse(
                path,
                "file_unreadable",
                "is a symbolic link that leads back to itself",
                "replace the link by a file",
            )
        case errno.ENXIO:
            _refuse(path, "file_wrong_kind", "is a socket, not a file", "put a text file there")
        case _:
            _refuse(path, "file_unreadable", f"cannot be opened: {error.strerror}")


def _require_regular(path: Path, info: os.stat_result) -> None:
    if stat.S_ISREG(info.st_mode):
        return
    kinds = {
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFSOCK: "a socket",
    }
    kind = kinds.get(stat.S_IFMT(info.st_mode), "something else")
    _refuse(path, "file_wrong_kind", f"is {kind}, not a file", "put a text file there")


def _real_path_of(handle: int, path: Path, info: os.stat_result) -> Path:
    """Return the path of the file that was opened, not the one the path leads to by now."""
    try:
        named = str(Path(f"/proc/self/fd/{handle}").readlink())
    except OSError:
        return Path(os.path.realpath(path))
    if info.st_nlink == 0 or not Path(named).exists():
        # Another writer has put a new file in its place since; the kernel says so behind the name.
        named = named.removesuffix(" (deleted)")
    return Path(named)


def _require_inside(path: Path, real_path: Path, inside: Path | None) -> None:
    if inside is None or real_path.is_relative_to(os.path.realpath(inside)):
        return
    _refuse(
        path,
        "file_outside_project",
        "is a link that leaves the project",
        "replace the link by the file itself, or link to a file inside the project",
    )


def _check_owner_and_mode(
    path: Path, info: os.stat_result, privacy: Privacy
) -> tuple[Problem, ...]:
    if privacy is Privacy.OPEN:
        return ()
    if info.st_uid not in {os.geteuid(), 0}:
        _refuse(
            path,
            "file_owner",
            f"belongs to user {info.st_uid}, not to the user that runs kaged",
            f"chown {os.geteuid()} {path}",
        )
    mode = stat.S_IMODE(info.st_mode)
    if privacy is Privacy.PRIVATE and mode & 0o077:
        _refuse(
            path,
            "file_permissions",
            f"holds secrets but others may open it (mode {mode:04o})",
            f"chmod 600 {path}",
        )
    if mode & 0o002:
        _refuse(
            path,
            "file_permissions",
            f"names commands that kaged runs but any user may change it (mode {mode:04o})",
            f"chmod go-w {path}",
        )
    if mode & 0o020:
        problem = Problem(
            str(path),
            None,
            None,
            "",
            f"may be changed by its group (mode {mode:04o})",
            f"chmod g-w {path}",
            Severity.WARNING,
            "file_permissions",
        )
        return (problem,)
    return ()


def _read_all(handle: int, path: Path, info: os.stat_result, limit_bytes: int) -> bytes:
    if info.st_size <= limit_bytes:
        chunks: list[bytes] = []
        total = 0
        while total <= limit_bytes and (chunk := os.read(handle, _READ_CHUNK)):
            chunks.append(chunk)
            total += len(chunk)
        if total <= limit_bytes:
            return b"".join(chunks)
    _refuse(
        path,
        "file_too_large",
        f"is larger than {limit_bytes} bytes",
        "split it up, or move long texts into files of their own (for example prompts)",
    )


def _decode(path: Path, data: bytes) -> tuple[str, bool]:
    if data.startswith(_FOREIGN_MARKS):
        _refuse(path, "file_encoding", "is not UTF-8 (it begins like UTF-16)", "save it as UTF-8")
    has_bom = data.startswith(codecs.BOM_UTF8)
    if has_bom:
        data = data[len(codecs.BOM_UTF8) :]
    nul = data.find(b"\0")
    if nul >= 0:
        _refuse(
            path,
            "file_encoding",
            "contains a NUL byte",
            "remove it, and save the file as UTF-8 text",
            _mark_of(data, nul),
        )
    try:
        return data.decode("utf-8"), has_bom
    except UnicodeDecodeError as error:
        _refuse(
            path,
            "file_encoding",
            f"is not UTF-8 (byte 0x{data[error.start]:02x})",
            "save it as UTF-8",
            _mark_of(data, error.start),
        )


def _mark_of(data: bytes, offset: int) -> Mark:
    line_start = data.rfind(b"\n", 0, offset) + 1
    return Mark(data.count(b"\n", 0, offset) + 1, offset - line_start + 1)
