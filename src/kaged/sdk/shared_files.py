"""Files that a plugin shares with its host, for a manifest with `shared_files: true`."""

from __future__ import annotations

import json
import os
from typing import Any

OUT_VARIABLE = "KAGED_FILES_OUT"
IN_VARIABLE = "KAGED_FILES_IN"


def shared_file(data: bytes, media_type: str = "application/octet-stream") -> dict[str, Any]:
    """Put bytes where the host takes them from; return the reference for an answer.

    Use it as the answer or as a member of it. The caller is given `type`, `size` and `base64`.
    """
    folder = os.environ.get(OUT_VARIABLE)
    if folder is None:
        raise RuntimeError("the manifest does not say shared_files: true")
    name = os.urandom(16).hex()
    descriptor = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    return {"$file": {"name": name, "size": len(data), "type": media_type}}


def members_of(reference: Any) -> dict[str, Any]:
    """Read the members of a message that the host wrote into a file."""
    with open(f"{os.environ[IN_VARIABLE]}/{reference['name']}", encoding="utf-8") as file:  # noqa: PTH123 - pathlib takes a tenth of a start
        members: dict[str, Any] = json.load(file)
    return members
