"""`open_export` and `open_named`: files that the person at the terminal names, to write or to read.

What is wrong with such a file is theirs to mend and is told as that, never as a bug of ours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from kaged.base import KagedError


@contextmanager
def open_export(file: Path | None) -> Generator[BinaryIO]:
    """Yield where an export is written: standard output, or a new private file.

    The file must not exist, and nobody else can read it: an export holds what the original holds.
    When the export fails, nothing of it stays: half of one would be in the way of the next try.

    Raises:
        KagedError: `file_exists`, `file_write_failed`.
    """
    if file is None:
        yield sys.stdout.buffer
        sys.stdout.flush()
        return
    try:
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise KagedError(
            f"{file} exists.", code="file_exists", fix="Name a file that does not exist."
        ) from None
    except OSError as error:
        raise _unwritable(file, error) from error
    try:
        with os.fdopen(fd, "wb") as target:
            yield target
            target.flush()
            os.fsync(target.fileno())
    except BaseException as error:
        with suppress(OSError):
            file.unlink()
        if isinstance(error, OSError):
            raise _unwritable(file, error) from error
        raise


@contextmanager
def open_named(file: Path) -> Generator[BinaryIO]:
    """Open a file to read it.

    Raises:
        KagedError: `file_not_found`, `file_unreadable`.
    """
    try:
        source = file.open("rb")
    except FileNotFoundError:
        raise KagedError(
            f"There is no file {file}.", code="file_not_found", fix="Check the path."
        ) from None
    except OSError as error:
        raise _unreadable(file, error) from error
    with source:
        try:
            yield source
        except OSError as error:
            raise _unreadable(file, error) from error


def _unwritable(file: Path, error: OSError) -> KagedError:
    return KagedError(
        f"{file} cannot be written: {error.strerror or error}.",
        code="file_write_failed",
        fix="Name a new file in a folder that exists and that you can write to.",
    )


def _unreadable(file: Path, error: OSError) -> KagedError:
    return KagedError(
        f"{file} cannot be read: {error.strerror or error}.",
        code="file_unreadable",
        fix="Name a file, no folder, that you can read.",
    )
