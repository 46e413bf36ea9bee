"""`MountTargets`: what is put where inside a cage, and in which order bwrap must do it."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Protocol

from kaged.cage.arguments import DescriptorSlot, Token, check_path
from kaged.cage.errors import PolicyConflict
from kaged.kernel.policy import FsMode


class Granted(Protocol):
    """A granted path, as far as its place matters."""

    @property
    def path(self) -> str:
        """Where it lies, outside and inside."""
        ...

    @property
    def mode(self) -> FsMode:
        """Whether it is writable."""
        ...

    @property
    def is_dir(self) -> bool:
        """Whether something can lie below it."""
        ...


class MountTargets:
    """Collects one entry per place inside; `options` gives them parents first.

    A granted directory shows the host's own content, so whatever the base set would put below it
    at the same path is there already and is left out.
    """

    def __init__(self, grants: Sequence[Granted]) -> None:
        self._entries: dict[str, tuple[Token, ...]] = {}
        self._granted = tuple(grant.path for grant in grants if grant.is_dir)
        self._exact = {grant.path for grant in grants}

    def put(self, dest: str, tokens: tuple[Token, ...], *, same_path: bool = False) -> None:
        """Put an entry in its place; `same_path` says it shows what the host has there."""
        check_path(dest, "place in the cage")
        if dest in self._exact or self._below_grant(dest):
            if same_path:
                return
            raise PolicyConflict(
                f"{dest} is needed by the cage itself and a granted path covers it", path=dest
            )
        self._entries[dest] = tokens

    def bind(self, path: str) -> None:
        """Show a path of the host, read-only, where it lies."""
        self.put(path, ("--ro-bind", path, path), same_path=True)

    def show(self, source: str, dest: str) -> None:
        """Show a path of the host, read-only, in another place."""
        self.put(dest, ("--ro-bind", check_path(source), dest))

    def link(self, dest: str, target: str) -> None:
        """Put a symbolic link, unless a granted directory has one there already."""
        self.put(dest, ("--symlink", target, dest), same_path=True)

    def directory(self, dest: str) -> None:
        """Make an empty directory."""
        self.put(dest, ("--perms", "0755", "--dir", dest), same_path=True)

    def scratch(self, dest: str, size_bytes: int) -> None:
        """Make a private, empty, writable directory of at most this size; 0 is no limit."""
        size = ("--size", str(size_bytes)) if size_bytes else ()
        self.put(dest, ("--perms", "1777", *size, "--tmpfs", dest))

    def file(self, dest: str, content: DescriptorSlot, *, on_host: bool) -> bool:
        """Make a read-only file with given content; return whether it could be placed.

        Below a granted directory it covers the host's file, which must exist for that.
        """
        check_path(dest, "made-up file")
        if not (dest in self._exact or self._below_grant(dest)):
            self._entries[dest] = ("--perms", "0444", "--file", content, dest)
            return True
        if on_host and dest not in self._exact:
            self._entries[dest] = ("--ro-bind-data", content, dest)
            return True
        return False

    def own_file(self, dest: str, content: DescriptorSlot) -> None:
        """Put a file of the cage's own, which only its user can read, in its place.

        Raises:
            PolicyConflict: it would lie in a granted folder.
        """
        check_path(dest, "made-up file")
        if dest in self._exact or self._below_grant(dest):
            raise PolicyConflict(
                f"{dest} is a file of the cage's own and a granted path covers it", path=dest
            )
        self._entries[dest] = ("--perms", "0400", "--ro-bind-data", content, dest)

    def mount(self, source: str, dest: str, mode: FsMode) -> None:
        """Place a path that the host itself adds."""
        option = "--bind" if mode is FsMode.RW else "--ro-bind"
        tokens: tuple[Token, ...] = (option, check_path(source), dest)
        if source != dest:
            self.put(dest, tokens)
        else:  # stays read-only inside a wider writable grant
            self._entries[check_path(dest)] = tokens

    def grant(self, number: int, grant: Granted) -> None:
        """Place a granted path, by the descriptor that was checked."""
        option = "--bind-fd" if grant.mode is FsMode.RW else "--ro-bind-fd"
        path = check_path(grant.path)
        self._entries[path] = (option, DescriptorSlot(f"grant:{number}"), path)

    def cover_file(self, path: str) -> None:
        """Put something over a file that can neither be read nor written."""
        # Everything is mounted without devices, so that even this one cannot be opened.
        self.put(path, ("--ro-bind", "/dev/null", path))

    def cover_dir(self, path: str) -> None:
        """Put an empty folder over a folder."""
        self.put(path, ("--perms", "0555", "--tmpfs", path, "--remount-ro", path))

    def cover_pipe(self, path: str) -> None:
        """Cover a pipe of the host where a read-only grant shows it, and nowhere else.

        Call it when everything else has its place. A name of the host's is not checked: it cannot
        hold a NUL, and is as harmless here as any other.
        """
        above = posixpath.dirname(path)
        while above != "/" and above not in self._entries:
            above = posixpath.dirname(above)
        if self._entries.get(above, ("",))[0] == "--ro-bind-fd" and above in self._exact:
            self._entries[path] = ("--ro-bind", "/dev/null", path)

    def fold(self, folder: str) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]] | None:
        """Take the links out of a directory that is to be shown as a whole, with them in it.

        Gives these links, and the names of the single programs that are mounted into it. None when
        nothing is taken out: a granted directory shows the host's own content there, or something
        else lies in it.
        """
        if folder in self._exact or self._below_grant(folder):
            return None
        links: dict[str, str] = {}
        programs: list[str] = []
        for dest, tokens in self._entries.items():
            name = dest.removeprefix(f"{folder}/")
            if name == dest:
                continue
            option, *words = tokens
            if option == "--symlink" and isinstance(words[0], str) and "/" not in name:
                links[name] = words[0]
            elif option == "--ro-bind" and "/" not in name:
                programs.append(name)
            else:
                return None
        for name in links:
            del self._entries[f"{folder}/{name}"]
        return tuple(sorted(links.items())), tuple(sorted(programs))

    @property
    def dests(self) -> frozenset[str]:
        """Every place that has an entry."""
        return frozenset(self._entries)

    def options(self) -> tuple[Token, ...]:
        """Return all entries as bwrap options, parents before children."""
        ordered = sorted(self._entries.items(), key=lambda item: item[0].count("/"))
        return tuple(token for _, tokens in ordered for token in tokens)

    def _below_grant(self, dest: str) -> bool:
        return any(dest.startswith(f"{path}/") for path in self._granted)
