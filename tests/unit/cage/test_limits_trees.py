"""The cgroup back ends against made-up trees; real ones are in the integration tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kaged.cage.limits import LimitedResource, RlimitsBackend, choose_backend, rlimits_for, tree
from kaged.cage.limits.cgroup1 import Cgroup1Backend
from kaged.cage.limits.cgroup2 import Cgroup2Backend, cpu_weight
from kaged.kernel.policy import CageLimits

LIMITS = CageLimits(memory_mb=64, pids=10, cpu_shares=512)


@pytest.fixture(autouse=True)
def own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back ends of one process have different names; here the one is enough."""
    monkeypatch.setattr(tree, "backend_name", lambda: "own")


def proc(tmp_path: Path, cgroup: str, mountinfo: str) -> Path:
    folder = tmp_path / "proc"
    (folder / "self").mkdir(parents=True)
    (folder / "self/cgroup").write_text(cgroup, encoding="utf-8")
    (folder / "self/mountinfo").write_text(mountinfo, encoding="utf-8")
    return folder


def test_hierarchies_and_our_place_in_them_are_found(tmp_path: Path) -> None:
    found = tree.cgroup_mounts(
        proc(
            tmp_path,
            "4:memory:/slice/me\n3:cpu,cpuacct:/\n1:name=systemd:/x\n0::/unified/me\n",
            "30 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
            "31 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
            "32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
            "33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
            "34 30 0:30 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio\n"
            "35 30 0:31 / /proc rw - proc proc rw\n",
        )
    )
    assert [(sorted(one.controllers), str(one.folder)) for one in found] == [
        (["memory"], "/sys/fs/cgroup/memory/slice/me"),
        (["cpu", "cpuacct"], "/sys/fs/cgroup/cpu,cpuacct"),
        ([], "/sys/fs/cgroup/unified/unified/me"),
    ]


def test_a_container_whose_mount_starts_at_its_own_group_is_understood(tmp_path: Path) -> None:
    found = tree.cgroup_mounts(
        proc(
            tmp_path,
            "0::/docker/abc\n",
            "33 30 0:29 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
        )
    )
    assert [str(one.folder) for one in found] == ["/sys/fs/cgroup"]


def test_only_groups_of_dead_daemons_are_leftovers() -> None:
    assert not tree.is_stale_group(tree.instance_name())
    assert tree.is_stale_group(f"kaged-{os.getpid()}-1")
    assert tree.is_stale_group("kaged-4194305-77")
    assert not tree.is_stale_group("kaged-daemon")
    assert not tree.is_stale_group("user.slice")


def test_leftovers_are_swept_with_what_is_in_them(tmp_path: Path) -> None:
    (tmp_path / "kaged-4194305-77/cage-1").mkdir(parents=True)
    (tmp_path / tree.instance_name()).mkdir()
    (tmp_path / "other").mkdir()
    assert tree.sweep(tmp_path) == 1
    assert sorted(one.name for one in tmp_path.iterdir()) == [tree.instance_name(), "other"]
    assert tree.sweep(tmp_path / "missing") == 0


def mount(folder: Path, *controllers: str) -> tree.CgroupMount:
    folder.mkdir(parents=True, exist_ok=True)
    return tree.CgroupMount(frozenset(controllers), str(folder), "/")


def test_version_1_writes_the_limits_of_each_controller(tmp_path: Path) -> None:
    backend = Cgroup1Backend(
        (mount(tmp_path / "memory", "memory"), mount(tmp_path / "pids", "pids"),
         mount(tmp_path / "cpu", "cpu", "cpuacct"), mount(tmp_path / "blkio", "blkio")),
        "kaged-1-1",
    )  # fmt: skip
    backend.prepare()
    group = backend.create("cage-1", LIMITS)
    assert backend.enforces == frozenset(LimitedResource)

    def content(path: str) -> str:
        return (tmp_path / path).read_text(encoding="ascii")

    assert content("memory/kaged-1-1/own-cage-1/memory.limit_in_bytes") == str(64 * 1024 * 1024)
    assert content("memory/kaged-1-1/own-cage-1/memory.memsw.limit_in_bytes") == str(
        64 * 1024 * 1024
    )
    assert (
        content("pids/kaged-1-1/own-cage-1/pids.max") == "12"
    )  # bwrap's own two processes are not counted
    assert not (
        tmp_path / "cpu/kaged-1-1/own-cage-1/cpu.shares"
    ).exists()  # at full speed until then
    group.settle()
    assert content("cpu/kaged-1-1/own-cage-1/cpu.shares") == "512"
    assert group.join_files == ()
    assert group.enter_words[-4:] == (
        *(
            str(tmp_path / name / "kaged-1-1/own-cage-1/tasks")
            for name in ("memory", "pids", "cpu")
        ),
        "--",
    )
    (tmp_path / "memory/kaged-1-1/own-cage-1/memory.oom_control").write_text(
        "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", encoding="ascii"
    )
    (tmp_path / "pids/kaged-1-1/own-cage-1/pids.events").write_text("max 5\n", encoding="ascii")
    stat = group.stat()
    assert (stat.oom_kills, stat.forks_refused) == (2, 5)
    assert not group.destroy()  # plain files keep these directories, as a busy group would


def test_version_1_drops_a_controller_it_may_not_divide(tmp_path: Path) -> None:
    backend = Cgroup1Backend(
        (mount(tmp_path / "pids", "pids"), tree.CgroupMount(frozenset({"memory"}), "/proc", "/")),
        "kaged-1-1",
    )
    backend.prepare()
    assert backend.enforces == {LimitedResource.PIDS}


def delegated(tmp_path: Path, controllers: str, handed_down: str) -> Cgroup2Backend:
    (tmp_path / "cgroup.controllers").write_text(controllers, encoding="ascii")
    (tmp_path / "cgroup.subtree_control").write_text(handed_down, encoding="ascii")
    return Cgroup2Backend(mount(tmp_path), "kaged-1-1")


def test_version_2_writes_the_limits_of_the_one_group(tmp_path: Path) -> None:
    backend = delegated(tmp_path, "cpu memory pids io", "cpu memory pids")
    backend.prepare()
    group = backend.create("cage-1", LIMITS)
    folder = tmp_path / "kaged-1-1/own-cage-1"
    assert not (folder / "cpu.weight").exists()
    group.settle()
    assert {one.name: one.read_text(encoding="ascii") for one in folder.iterdir()} == {
        "memory.max": str(64 * 1024 * 1024),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "11",
        "cpu.weight": str(cpu_weight(512)),
    }
    assert (group.join_files, group.enter_words) == ((str(folder / "cgroup.procs"),), ())
    assert not (tmp_path / "kaged-daemon").exists()


def test_version_2_moves_the_daemon_into_a_leaf_before_it_divides(tmp_path: Path) -> None:
    backend = delegated(tmp_path, "cpu memory pids", "")
    backend.prepare()
    moved = (tmp_path / "kaged-daemon/cgroup.procs").read_text(encoding="ascii")
    assert moved == str(os.getpid())
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert backend.enforces == frozenset(LimitedResource)


def test_version_2_without_memory_and_pids_is_not_used(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="delegated"):
        delegated(tmp_path, "cpu", "").prepare()


def test_version_2_without_cpu_says_so(tmp_path: Path) -> None:
    backend = delegated(tmp_path, "memory pids", "memory pids")
    backend.prepare()
    assert backend.enforces == {LimitedResource.MEMORY, LimitedResource.PIDS}
    backend.create("cage-1", LIMITS).settle()
    assert not (tmp_path / "kaged-1-1/own-cage-1/cpu.weight").exists()


def test_version_2_reads_what_was_used_and_refused(tmp_path: Path) -> None:
    backend = delegated(tmp_path, "memory pids", "memory pids")
    backend.prepare()
    group = backend.create("cage-1", LIMITS)
    folder = tmp_path / "kaged-1-1/own-cage-1"
    (folder / "memory.current").write_text("4096\n", encoding="ascii")
    (folder / "pids.current").write_text("3\n", encoding="ascii")
    (folder / "memory.events").write_text("max 9\noom 1\noom_kill 1\n", encoding="ascii")
    (folder / "pids.events").write_text("max 2\n", encoding="ascii")
    stat = group.stat()
    assert (stat.memory_bytes, stat.processes, stat.oom_kills, stat.forks_refused) == (
        4096,
        3,
        1,
        2,
    )


@pytest.mark.parametrize(("shares", "weight"), [(2, 1), (0, 1), (262144, 10000), (10**9, 10000)])
def test_shares_become_weights_within_bounds(shares: int, weight: int) -> None:
    assert cpu_weight(shares) == weight


def test_a_host_without_usable_groups_falls_to_rlimits_and_says_why(tmp_path: Path) -> None:
    folder = proc(tmp_path, "0::/\n", f"33 30 0:29 / {tmp_path} rw - cgroup2 cgroup rw\n")
    backend = choose_backend(folder)
    assert isinstance(backend, RlimitsBackend)
    assert "not delegated" in backend.why
    assert isinstance(choose_backend(tmp_path / "nowhere"), RlimitsBackend)
    assert isinstance(choose_backend(folder, allow_cgroups=False), RlimitsBackend)


def test_a_delegated_tree_is_preferred(tmp_path: Path) -> None:
    group = tmp_path / "cg"
    delegated_root = group
    delegated_root.mkdir()
    (group / "cgroup.controllers").write_text("cpu memory pids", encoding="ascii")
    (group / "cgroup.subtree_control").write_text("cpu memory pids", encoding="ascii")
    folder = proc(tmp_path, "0::/\n", f"33 30 0:29 / {group} rw - cgroup2 cgroup rw\n")
    assert choose_backend(folder).name == "cgroup2"


def test_rlimits_leave_to_cgroups_what_cgroups_enforce() -> None:
    import resource as kernel

    everything = dict(rlimits_for(LIMITS, frozenset()))
    assert everything[kernel.RLIMIT_NPROC] == 11
    assert everything[kernel.RLIMIT_DATA] == 64 * 1024 * 1024
    rest = dict(rlimits_for(LIMITS, frozenset(LimitedResource)))
    assert kernel.RLIMIT_NPROC not in rest
    assert kernel.RLIMIT_DATA not in rest
    assert rest[kernel.RLIMIT_CORE] == 0
    assert rest[kernel.RLIMIT_NOFILE] == 1024
    unlimited = dict(
        rlimits_for(CageLimits(open_files=0, file_size_mb=0), frozenset(LimitedResource))
    )
    assert kernel.RLIMIT_NOFILE not in unlimited
    assert kernel.RLIMIT_FSIZE not in unlimited


def test_rlimits_keep_nothing_and_sweep_nothing() -> None:
    backend = RlimitsBackend()
    group = backend.create("x", LIMITS)
    assert (group.join_files, group.enter_words) == ((), ())
    group.settle()
    assert group.destroy()
    assert group.stat().oom_kills is None
    assert backend.sweep() == 0
    backend.close()


def test_a_back_end_that_closes_takes_its_own_groups_along_and_no_others(tmp_path: Path) -> None:
    """A group that was busy for too long, or whose cage was given up half-way, goes at the end."""
    ours = tmp_path / "kaged-1-2"
    for name in ("own-cage-1", "own-cage-2", "own2-cage-1"):
        (ours / name).mkdir(parents=True)
    tree.remove_own(ours, "own")
    assert [one.name for one in ours.iterdir()] == ["own2-cage-1"]
    tree.remove_own(ours, "own2")
    assert not ours.exists()
    tree.remove_own(ours, "own")  # nothing there any more
