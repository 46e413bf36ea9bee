"""`Copy`: the tree and a Python environment of its own, to break lines in and run tests in.

Nothing of the working tree is ever changed. The copy's environment is made of links to the
files of the checkout's, except that its `kaged` is the copy's: that holds at any distance, for
daemons that tests start with a clean environment, and in cages, which see the copy's folder only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LONG_AGO = 1_000_000_000  # no file of the tree is as old
PACKAGES = Path(f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages")
BIG = 20_000_000
SET_UP = ("tools", "policy-plugins", "cpex-framework")  # below build, by `scripts/setup --tests`
HOOK = (
    "import os; os.path.exists({at!r}) and "
    "__import__('mutating.tracing').tracing.started_here({at!r})\n"
)


class Copy:
    """One worker's copy of what is under version control, and of what is not ignored."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.source = folder / "src" / "kaged"
        self._environment = folder / ".venv"
        self._stamp = self._environment / "made-of.txt"
        self.python = self._environment / "bin" / "python"
        self.switch = self._environment / "measuring.json"
        # Python tells a compiled module's age in whole seconds; these are used up one by one.
        self._moment = LONG_AGO

    def make(self) -> None:
        """Make it anew from the working tree; its environment stays as long as nothing changed."""
        self.root.mkdir(parents=True, exist_ok=True)
        for entry in self.root.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                if entry != self._environment:
                    shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink()
        names = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
        ).stdout.decode()
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():
                target = self.root / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target, follow_symlinks=False)
        (self.root / "build").mkdir(exist_ok=True)
        for name in SET_UP:
            if (ROOT / "build" / name).exists():
                (self.root / "build" / name).symlink_to(ROOT / "build" / name)
        told = _state_of(Path(sys.prefix))
        if not self._stamp.is_file() or self._stamp.read_text(encoding="utf-8") != told:
            shutil.rmtree(self._environment, ignore_errors=True)
            self._make_environment()
            self._stamp.write_text(told, encoding="utf-8")
        self.switch.unlink(missing_ok=True)

    def write(self, path: Path, content: bytes) -> None:
        """Write a module with a time that it never had before: no compiled one is taken for it."""
        self._moment += 1
        path.write_bytes(content)
        os.utime(path, (self._moment, self._moment))

    def _make_environment(self) -> None:
        old = Path(sys.prefix)
        new, packages = self._environment, PACKAGES
        (new / packages).mkdir(parents=True)
        (new / "bin").mkdir()
        shutil.copy2(old / "pyvenv.cfg", new / "pyvenv.cfg")
        for entry in (old / packages).iterdir():
            if "kaged" not in entry.name or entry.suffix == ".dist-info":
                _bring(entry, new / packages / entry.name)
        (new / packages / "_kaged.pth").write_text(f"{self.root / 'src'}\n", encoding="utf-8")
        (new / packages / "mutating").symlink_to(self.root / "scripts" / "mutating")
        hook = HOOK.format(at=str(self.switch))
        (new / packages / "_noting.pth").write_text(hook, encoding="utf-8")
        for program in (old / "bin").iterdir():
            self._link_program(program, new / "bin" / program.name)

    def _link_program(self, old: Path, new: Path) -> None:
        if old.is_symlink():
            new.symlink_to(old.readlink())
            return
        with old.open("rb") as file:
            first = file.readline(4096)
        if first.startswith(b"#!") and str(Path(sys.prefix)).encode() in first:
            text = old.read_bytes().partition(b"\n")[2]
            new.write_bytes(f"#!{self.python}\n".encode() + text)
            new.chmod(0o755)
        else:
            new.symlink_to(old)


def _state_of(environment: Path) -> str:
    """Return what an environment consists of; it changes when something is installed."""
    folders = (environment / PACKAGES, environment / "bin")
    found = [entry for folder in folders for entry in folder.iterdir()]
    lines = [f"{entry} {entry.lstat().st_mtime_ns}" for entry in found if entry.name[0] != "_"]
    return "\n".join(sorted(lines))


def _bring(old: Path, new: Path) -> None:
    """Let a library be in a second place; a big one (a compiler) only by a symbolic link."""
    if old.is_symlink() or not old.is_dir():
        _link_or_copy(str(old), str(new))
    elif sum(one.stat().st_size for one in old.rglob("*") if one.is_file()) > BIG:
        new.symlink_to(old)
    else:
        shutil.copytree(old, new, symlinks=True, copy_function=_link_or_copy)


def _link_or_copy(old: str, new: str) -> None:
    try:
        os.link(old, new, follow_symlinks=False)
    except OSError:  # another's file, or another file system
        shutil.copy2(old, new, follow_symlinks=False)
