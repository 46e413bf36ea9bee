"""`require_private`: a file with a secret in it is a plain file that only its owner can read."""

from __future__ import annotations

import stat
from pathlib import Path

from kaged.base.errors import KagedError


def require_private(path: Path, code: str) -> None:
    """Return if there is no such file, or one that nobody else can read, change or redirect.

    Raises:
        KagedError: `code`; it is a link or another special file, or its mode lets others in.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise KagedError(
            f"{path} cannot be looked at: {error.strerror}.",
            code=code,
            fix=f"Make {path.parent} accessible for the user who runs the daemon.",
        ) from error
    if not stat.S_ISREG(mode):
        raise KagedError(
            f"{path} is not a plain file.",
            code=code,
            fix="Make it a plain file that belongs to the daemon's user.",
        )
    if mode & 0o077:
        raise KagedError(
            f"{path} can be read or changed by others (mode {stat.S_IMODE(mode):04o}).",
            code=code,
            fix=f"chmod 600 {path}, and think about who could have read it.",
        )
