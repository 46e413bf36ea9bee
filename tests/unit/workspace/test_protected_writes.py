"""What git's configuration names is protected from the moment it is named."""

from __future__ import annotations

from pathlib import Path

from fakes.file_clock import FileClock
from kaged.kernel.protected_paths import ProtectedRules
from kaged.workspace.guard import PathGuard
from kaged.workspace.protected_writes import ProtectedWrites


def test_a_configuration_that_is_replaced_in_the_same_moment_counts(
    tmp_path: Path, file_clock: FileClock
) -> None:
    root = tmp_path.resolve()
    for part in ("objects", "refs"):
        (root / ".git" / part).mkdir(parents=True)
    (root / ".git/HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    config = root / ".git/config"
    paths = {name: PathGuard(root).resolve(f"./{name}/go") for name in ("one", "two", "six")}
    writes = ProtectedWrites(str(root), ProtectedRules())

    def protected() -> list[str]:
        return [name for name, path in paths.items() if writes.find(path) is not None]

    for name in ("one", "two"):
        config.write_text(f"[core]\n\thooksPath = {name}\n", encoding="utf-8")
        assert protected() == [name]
    file_clock.settle()
    assert protected() == ["two"]
    # From now on it is not read again: no text of this length has that time any more.
    config.write_text("[core]\n\thooksPath = six\n", encoding="utf-8")
    assert protected() == ["two"]
    config.unlink()  # the second state: it is not there
    assert protected() == []
