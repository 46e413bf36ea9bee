"""Who may write a project may not therefore rewrite the definition of its own cage."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.config.sealing import seal_policy
from kaged.config.toolsettings import SealWord
from kaged.kernel.mounts import Mount, MountTable, has_magic
from kaged.kernel.policy import CagePolicy, FsGrant, FsMode

ROOT = Path("/home/ann/project")
FILE = f"{ROOT}/.kaged/project.yaml"
RO, RW = FsMode.RO, FsMode.RW


def policy(*grants: str) -> CagePolicy:
    """Make a policy of entries such as `rw .` or `ro ./src`."""
    made: list[FsGrant] = []
    for grant in grants:
        mode, _, path = grant.partition(" ")
        below = path.removeprefix(".").removeprefix("/")
        made.append(FsGrant(f"{ROOT}/{below}".rstrip("/"), FsMode(mode)))
    return CagePolicy(fs=tuple(made))


def mode_at(sealed: CagePolicy, path: str) -> FsMode | None:
    mounts = [Mount(one.path, one.mode, pattern=has_magic(one.path)) for one in sealed.fs]
    return MountTable(mounts).mode_at(path)


@pytest.mark.parametrize(
    "grant", ["rw .", "rw ./**", "rw ./.*", "rw ./.*/*.yaml", "rw ./.k*/project.yaml"]
)
def test_a_grant_that_covers_the_folder_shows_it_read_only(grant: str) -> None:
    written = policy(grant)
    assert mode_at(written, FILE) is RW
    for word in (SealWord.CAGED, SealWord.ALL):
        sealed = seal_policy(written, ROOT, word)
        assert mode_at(sealed, FILE) is RO
        assert mode_at(sealed, f"{ROOT}/src/a.py") is mode_at(written, f"{ROOT}/src/a.py")


def test_a_grant_of_a_folder_above_the_project_counts_too() -> None:
    above = CagePolicy(fs=(FsGrant("/home", RW),))
    assert mode_at(seal_policy(above, ROOT, SealWord.CAGED), FILE) is RO
    everything = CagePolicy(fs=(FsGrant("/", RW),))
    assert mode_at(seal_policy(everything, ROOT, SealWord.CAGED), FILE) is RO


@pytest.mark.parametrize("grants", [("rw ./src",), ("ro .",), ("ro .", "rw ./src"), ("rw ./*",)])
def test_a_cage_that_cannot_write_the_folder_stays_as_it_is(grants: tuple[str, ...]) -> None:
    written = policy(*grants)
    assert seal_policy(written, ROOT, SealWord.CAGED) is written
    assert seal_policy(written, ROOT, SealWord.ALL) is written


@pytest.mark.parametrize("named", ["rw ./.kaged", "rw ./.kaged/project.yaml", "rw ./.kaged/*"])
def test_an_entry_that_names_the_folder_is_the_operators_word(named: str) -> None:
    written = policy("rw .", named)
    assert seal_policy(written, ROOT, SealWord.CAGED) is written
    assert mode_at(seal_policy(written, ROOT, SealWord.ALL), FILE) is RO


def test_the_operator_can_switch_it_off() -> None:
    written = policy("rw .")
    assert seal_policy(written, ROOT, SealWord.OFF) is written


_GRANTS = st.lists(
    st.sampled_from(
        ["rw .", "ro .", "rw ./src", "rw ./*", "rw ./.*", "rw ./.*/p*", "ro ./.kaged", "rw ./**/x"]
    ),
    max_size=5,
)


@given(_GRANTS)
def test_sealing_never_widens_and_twice_is_once(grants: list[str]) -> None:
    written = policy(*grants)
    sealed = seal_policy(written, ROOT, SealWord.CAGED)
    assert mode_at(sealed, FILE) is not RW
    assert seal_policy(sealed, ROOT, SealWord.CAGED) == sealed
    for path in (FILE, f"{ROOT}/src/x", f"{ROOT}/.git/config", f"{ROOT}/a/x", str(ROOT)):
        before, after = mode_at(written, path), mode_at(sealed, path)
        assert after in {before, RO}
        assert (before is None) <= (after is None)
