"""`PersonUploads`: files that a person gave to an agent that works for them, and for nobody else.

They lie in the daemon's own folder, apart by person and chat, and below that by session. A command
of a run that acts for the person in that chat sees them in its cage, read-only; `kaged.upload`
reads them for agents without commands. No other run sees that they exist. They go with the session.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Final

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.identity import Actor
from kaged.toolbox.project.errors import WorkError
from kaged.toolbox.project.uploads import FILE_LIMIT_BYTES, UploadPlace

INSIDE: Final = "/opt/kaged/uploads"
"""Where commands of the person's agents find the files, and how they are named."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,119}")
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class PersonUploads:
    """The uploads of people, below one folder of the daemon's."""

    folder: Path

    def place(self, owner: str, chat: str | None, session_id: str, folder: str) -> UploadPlace:
        """Return where an upload of somebody's goes. `chat` is where the agent works for them.

        Raises:
            WorkError: `upload_refused`; an id cannot name a folder.
        """
        if _PLAIN.fullmatch(session_id) is None or _PLAIN.fullmatch(folder) is None:
            raise WorkError("The folder for uploads has no proper name.", code="upload_refused")
        self.folder.mkdir(mode=0o700, exist_ok=True)
        shown = f"{INSIDE}/{session_id}/{folder}"
        return UploadPlace(str(self.folder), (_scope(owner, chat), session_id, folder), shown)

    def own(self, actor: Actor | None) -> Path | None:
        """Return the folder of whoever acts, in the chat where they act; None of the operator."""
        if actor is None or not actor.is_person or not actor.person_id:
            return None
        return self.folder / _scope(actor.person_id, actor.chat)

    def read(self, actor: Actor | None, path: str) -> bytes:
        """Return a file that the actor gave along in this chat. Blocks on the disk.

        Raises:
            WorkError: `upload_not_found`; there is none of that path, or it is somebody else's.
        """
        own, names = self.own(actor), path.removeprefix(f"{INSIDE}/").split("/")
        if own is None or len(names) != 3 or not path.startswith(f"{INSIDE}/"):
            raise _not_found(path)
        if any(one in {"", ".", ".."} or "\0" in one for one in names):
            raise _not_found(path)
        try:
            handle = os.open(own.joinpath(*names), _FILE)
            with open(handle, "rb") as file:  # noqa: PTH123 - of a descriptor, which Path cannot
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    raise _not_found(path)
                return file.read(FILE_LIMIT_BYTES)
        except OSError as error:
            raise _not_found(path) from error

    def forget(self, session_id: str) -> None:
        """Take away what was given along in a session. Blocks on the disk."""
        if _PLAIN.fullmatch(session_id) is None:
            return
        with contextlib.suppress(FileNotFoundError):
            for scope in [*self.folder.iterdir()]:
                shutil.rmtree(scope / session_id, ignore_errors=True)
                with contextlib.suppress(OSError):  # others of the person's are there
                    scope.rmdir()


def _scope(owner: str, chat: str | None) -> str:
    """Return the folder of one person in one chat. Ids may be any text, so it is a digest."""
    text = f"{owner}\0{'' if chat is None else chat}"
    return hashlib.sha256(text.encode()).hexdigest()


def _not_found(path: str) -> WorkError:
    return WorkError(
        f"You were given no file {path[:200]!r}.",
        code="upload_not_found",
        fix="use the path exactly as the answer has it",
    )
