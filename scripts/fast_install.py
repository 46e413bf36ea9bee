"""Install the locked packages with uv: the files and hashes that pip would take, in less time.

uv does not read what pip was told about indexes, mirrors and certificates. So it is used where
all of that can be told to it in its own words; else, and when it fails, the exit code is 3, a
line says why, and `scripts/setup` installs with pip. Run with the Python of `.venv`, into which it
installs uv first. What stands behind the lock is an option that both installers know.

    .venv/bin/python scripts/fast_install.py requirements-dev.lock
    .venv/bin/python scripts/fast_install.py other.lock --no-deps --target build/other
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

LOCK = Path(__file__).resolve().parent.parent / "requirements-dev.lock"
PIP = (sys.executable, "-m", "pip")
UNABLE = 3
_SECTIONS = ("global", "install", ":env:")  # the later ones count
_TOLD = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
_SEPARATED = {"UV_FIND_LINKS": ","}
_NO_MATTER = {
    *("cache-dir", "no-cache-dir", "disable-pip-version-check", "no-color", "no-input", "quiet"),
    *("progress-bar", "require-virtualenv", "retries", "root-user-action", "verbose"),
}
"""What changes neither which files are taken nor from where."""


def read_settings(listed: str) -> dict[str, str]:
    """Read what `pip config list` prints: each setting with the value that counts."""
    found: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.partition(".")
        if section in found:
            found[section][key] = str(ast.literal_eval(value))
    return {key: value for some in found.values() for key, value in some.items()}


def told(settings: Mapping[str, str]) -> dict[str, str] | None:
    """Return pip's settings in uv's words, or None where it has no word for one."""
    if settings.keys() - _TOLD.keys() - _NO_MATTER:
        return None
    words: dict[str, str] = {}
    for key, value in settings.items():
        if name := _TOLD.get(key):
            words[name] = _SEPARATED.get(name, " ").join(value.split())
    return words


def lines_of(package: str, lock: str) -> str:
    """Return what a lock says of one package: its version and the hashes of its files."""
    found = re.search(rf"^{re.escape(package)}==.*(?:\n[ \t].*)*", lock, re.MULTILINE)
    return found.group() if found else ""


def main(lock: str, *options: str) -> int:
    """Install what a lock names."""
    listed = subprocess.run([*PIP, "config", "list"], check=False, capture_output=True, text=True)
    words = told(read_settings(listed.stdout)) if listed.returncode == 0 else None
    if words is None:
        return _leave_to_pip("it has settings that uv cannot be told")
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists() and not _install_uv():
        return _leave_to_pip("it could not install uv (its words are above)")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    # By environment: an address may hold a password, and `ps` shows words. As pip does, it takes a
    # version from whichever index has it; the hashes say which file.
    own = {"UV_NO_CONFIG": "1", "UV_INDEX_STRATEGY": "unsafe-best-match"}
    done = subprocess.run(
        [
            *(uv, "pip", "install", "--quiet", "--python", sys.executable, "--require-hashes"),
            *("--link-mode", "copy", "--compile-bytecode", "--requirement", lock, *options),
        ],
        check=False,
        env={**kept, **words, **own},
    )
    return 0 if done.returncode == 0 else _leave_to_pip("uv could not (its words are above)")


def _install_uv() -> bool:
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as first:
        first.write(lines_of("uv", LOCK.read_text(encoding="utf-8")))
        first.flush()
        quiet = ("--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes")
        done = subprocess.run([*PIP, "install", *quiet, "--requirement", first.name], check=False)
    return done.returncode == 0


def _leave_to_pip(why: str) -> int:
    print(f"setup: pip installs: {why}")
    return UNABLE


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
