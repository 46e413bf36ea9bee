"""git-insight: questions about a repository's history, answered by git in a read-only cage."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

from kaged.sdk import CallContext, InvalidParams, NotApplicable, Plugin, PluginError

TIMEOUT_S = 20
OUTPUT_LIMIT_BYTES = 2 * 1024 * 1024
UNIT = "\x1f"

plugin = Plugin("git-insight", "0.1.0")


def project_root() -> Path:
    """Find the project this plugin was given."""
    root = os.environ.get("KAGED_PROJECT_ROOT")
    if root is None:
        raise NotApplicable("no project is loaded that uses this plugin, or more than one is")
    return Path(root)


def inside(path: str) -> str:
    """Refuse paths that leave the project; git would show what the cage lets it see."""
    if path.startswith("/") or "\0" in path or ".." in Path(path).parts:
        raise InvalidParams(f"{path!r} is not a path inside the project")
    return path


def git(*args: str) -> str:
    """Run git in the project without hooks, pagers, or anyone's configuration."""
    import subprocess  # noqa: PLC0415 - not needed while waiting

    options = ("--no-pager", "-c", "safe.directory=*", "-c", "core.fsmonitor=false")
    environ = {
        "PATH": os.environ.get("PATH", "/usr/bin"),
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "LC_ALL": "C.UTF-8",
    }
    try:
        done = subprocess.run(  # noqa: S603 - git, with paths that were checked, in a cage
            ["git", *options, *args],  # noqa: S607 - the cage has one git
            cwd=project_root(),
            env=environ,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PluginError(f"git took longer than {TIMEOUT_S} s") from None
    if done.returncode != 0:
        reason = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise PluginError(f"git: {reason[0] if reason else done.returncode}")
    return done.stdout[:OUTPUT_LIMIT_BYTES].decode("utf-8", "replace")


@plugin.tool("history")
def history(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
    """Return the newest commits."""
    limit = int(params.get("limit", 20))
    where = ["--", inside(params["path"])] if "path" in params else []
    out = git("log", f"-{limit}", f"--format=%h{UNIT}%aI{UNIT}%an{UNIT}%s", *where)
    commits = [
        dict(zip(("hash", "date", "author", "subject"), line.split(UNIT), strict=False))
        for line in out.splitlines()
    ]
    return {"commits": commits}


@plugin.tool("blame")
def blame(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
    """Return who last changed which lines, neighbouring lines of one commit together."""
    start = int(params.get("start", 1))
    span = f"{start},{params['end']}" if "end" in params else f"{start},"
    out = git("blame", "--line-porcelain", "-L", span, "--", inside(params["path"]))
    ranges: list[dict[str, Any]] = []
    current: dict[str, Any] = {}
    line = start - 1
    for row in out.splitlines():
        if row.startswith("author "):
            current["author"] = row[7:]
        elif row.startswith("summary "):
            current["subject"] = row[8:]
        elif row.startswith("\t"):
            line += 1
            if ranges and ranges[-1]["hash"] == current["hash"]:
                ranges[-1]["end"] = line
            else:
                ranges.append({**current, "start": line, "end": line})
        elif len(row.split(" ", 1)[0]) == 40:
            current = {"hash": row[:10]}
    return {"ranges": ranges}


@plugin.tool("hot_spots")
def hot_spots(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
    """Count in how many commits each file changed."""
    commits = int(params.get("commits", 500))
    out = git("log", f"-{commits}", "--format=", "--name-only", "--no-renames")
    counts = Counter(line for line in out.splitlines() if line)
    top = counts.most_common(int(params.get("limit", 20)))
    return {"files": [{"path": path, "commits": count} for path, count in top]}


if __name__ == "__main__":
    plugin.start()
