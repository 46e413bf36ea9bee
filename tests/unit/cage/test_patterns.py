from __future__ import annotations

from pathlib import Path

import pytest

from kaged.cage import patterns
from kaged.cage.errors import GrantRefused
from kaged.cage.patterns import expand_patterns
from kaged.kernel.mounts import Mount, MountTable
from kaged.kernel.policy import FsGrant, FsMode

RO, RW = FsMode.RO, FsMode.RW


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path.resolve()
    for name in ("src/a.py", "src/b.py", "src/c.txt", "src/deep/d.py", "src/.hidden.py",
                 "app/[id]/page", "docs/x.md"):  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / "src/link.py").symlink_to("/etc/passwd")
    (root / "src/away").symlink_to("/etc")
    return root


def expanded(root: Path, *grants: tuple[str, FsMode]) -> dict[str, FsMode]:
    found = expand_patterns([FsGrant(f"{root}/{path}", mode) for path, mode in grants])
    return {str(Path(one.path).relative_to(root)): one.mode for one in found}


def test_a_pattern_grants_exactly_what_it_matches_and_no_link(project: Path) -> None:
    assert expanded(project, ("src/*.py", RO)) == {"src/a.py": RO, "src/b.py": RO}
    assert expanded(project, ("src/**/*.py", RO)) == {
        "src/a.py": RO, "src/b.py": RO, "src/deep/d.py": RO,
    }  # fmt: skip
    assert expanded(project, ("s?c/deep", RW)) == {"src/deep": RW}
    assert expanded(project, ("src/*/passwd", RO)) == {}


def test_a_path_of_exactly_that_name_is_that_path(project: Path) -> None:
    assert expanded(project, ("app/[id]", RO)) == {"app/[id]": RO}


def test_a_pattern_that_matches_nothing_grants_nothing(project: Path) -> None:
    assert expanded(project, ("none/*.py", RO), ("src/*.rs", RW)) == {}


def test_an_exact_entry_beats_a_pattern_and_read_only_decides_between_two(project: Path) -> None:
    found = expanded(project, ("src/*.py", RO), ("src/a.py", RW), ("src/b.*", RW))
    assert found == {"src/a.py": RW, "src/b.py": RO}
    found = expanded(project, ("src/b.*", RW), ("src/*.py", RO))
    assert found == {"src/b.py": RO, "src/a.py": RO}


def test_the_cage_and_the_permission_check_agree(project: Path) -> None:
    pattern = f"{project}/src/**/*.py"
    table = MountTable([Mount(pattern, RO, pattern=True)])
    granted = {one.path for one in expand_patterns([FsGrant(pattern, RO)])}
    for path in project.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert (table.mode_at(str(path)) is not None) == (str(path) in granted), path


def test_a_pattern_has_its_limits(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MAX_GRANTS", 1)
    with pytest.raises(GrantRefused, match="more than the 1 paths"):
        expanded(project, ("src/*.py", RO))
    monkeypatch.setattr(patterns, "MAX_LOOKED_AT", 2)
    with pytest.raises(GrantRefused, match="looked at"):
        expanded(project, ("src/*.none", RO))
