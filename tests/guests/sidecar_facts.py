"""A sidecar that says what it is: its environment, its process, where it listens, who called."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

from kaged.sdk.bridge import Bridge, BridgeCall

sidecar = Bridge()
memory: list[str] = []


def ports() -> list[str]:
    """Return the addresses at which this process listens, as the kernel writes them."""
    inodes = {str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()}
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                found.append(words[1])
    return found


def declare(name: str) -> None:
    """Declare one capability; each has the same operations."""
    made = sidecar.capability(f"facts.{name}", "What the sidecar is.")

    @made.operation("tell", "Tell it.", requires_auth=False)
    def tell(call: BridgeCall) -> dict[str, Any]:
        memory.append(call.user_id)
        # To a file of the test's: secrets do not pass the host.
        secret = os.environ["ASH_CONTEXT_TOKEN_SECRET"]
        Path(os.environ["FACTS"], f"{os.getpid()}.secret").write_text(secret, encoding="utf-8")
        return {
            "pid": os.getpid(),
            "issued_at": call.token.issued_at,
            "listens": ports(),
            "sidecar": os.environ["ASH_SIDECAR"],
            "directory": str(Path.cwd()),
            "callers": memory,
            "env": sorted(os.environ),
        }

    @made.operation("hang", "Say nothing.", requires_auth=False)
    def hang(call: BridgeCall) -> dict[str, Any]:
        threading.Event().wait()
        return {}

    @made.operation("leave", "End.", requires_auth=False)
    def leave(call: BridgeCall) -> dict[str, Any]:
        sys.stderr.write(f"leaving with {os.environ['ASH_CONTEXT_TOKEN_SECRET']}\n")
        sys.stderr.flush()
        os._exit(3)

    @made.operation("quote", "Give the key away.", requires_auth=False)
    def quote(call: BridgeCall) -> dict[str, Any]:
        return {"key": os.environ["ASH_CONTEXT_TOKEN_SECRET"]}


declare("one")
declare("two")
raise SystemExit(sidecar.run())
