"""What the kernel's property tests draw from: small worlds in which everything can be listed."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from kaged.kernel.capabilities import (
    CapabilityPath,
    CapabilitySet,
    ExecCapability,
    FsCapability,
    ManifestCapability,
    NetCapability,
    NoNetCapability,
    PathBase,
    StorageAccess,
    StorageCapability,
)
from kaged.kernel.net import ANYWHERE, NetTarget
from kaged.kernel.paths import AbsPath
from kaged.kernel.policy import FsMode

# The machine may be busy: how long an example takes proves nothing here. Nothing is kept on disk.
patiently = settings(
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
modes = st.sampled_from(FsMode)

HOSTS = ("a.example", "b.example", "localhost", "10.0.0.1", "8.8.8.8", "::1")
PORTS = (1, 2)

names = st.text("ab.-é ", min_size=1, max_size=4).filter(lambda n: n not in (".", ".."))
"""Path components, odd ones included."""

small_paths = st.lists(st.sampled_from("ab"), max_size=2).map(lambda p: AbsPath("/" + "/".join(p)))
"""Paths that meet each other often."""

paths = st.lists(names, max_size=5).map(lambda parts: AbsPath("/" + "/".join(parts)))

net_targets = st.just(ANYWHERE) | st.builds(
    NetTarget, st.sampled_from(HOSTS), st.none() | st.sampled_from(PORTS)
)


def places(of: st.SearchStrategy[AbsPath]) -> st.SearchStrategy[CapabilityPath]:
    """Draw capability paths below each of the three bases."""
    return st.builds(CapabilityPath, st.sampled_from(PathBase), of)


def capabilities(of: st.SearchStrategy[AbsPath]) -> st.SearchStrategy[ManifestCapability]:
    """Draw capabilities of every form, with paths from `of`."""
    return st.one_of(
        st.builds(FsCapability, modes, places(of)),
        st.builds(ExecCapability, st.sampled_from(["git", "g++", "python3.11"]), places(of)),
        st.builds(NetCapability, net_targets),
        st.just(NoNetCapability()),
        st.builds(StorageCapability, st.sampled_from(StorageAccess)),
    )


capability_sets = st.lists(capabilities(small_paths), max_size=6).map(CapabilitySet.of)

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=8)
    | st.sampled_from([object(), type, len, FsMode.RO, ANYWHERE]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
"""Values of any shape, as a faulty caller might hand them in."""
