"""A scope from systemd: a stand-in for `busctl` plays the manager on a made-up cgroup tree.

What it is asked for is checked to the letter; that a real manager obeys is not shown here.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from integration.cage.conftest import Events
from kaged.cage import CageRequest, CageSettings, Spawner, spawn
from kaged.cage.collect import collect
from kaged.cage.limits import (
    LimitedResource,
    RlimitsBackend,
    ScopeRequest,
    choose_backend,
    scope,
    tree,
)
from kaged.cage.probe import probe_host
from kaged.cage.proberow import Status
from kaged.kernel.policy import CageLimits, CagePolicy

# Makes the scope's group with what the manager hands down, and moves the caller into it.
MANAGER = """#!{python}
import json, os, pathlib, sys
root, proc = pathlib.Path("{root}"), pathlib.Path("{proc}")
said = {{"argv": sys.argv[1:], "env": dict(os.environ)}}
(root.parent / "asked.json").write_text(json.dumps(said))
if {code}:
    sys.exit("Failed to connect to bus: {words}")
unit = sys.argv[sys.argv.index("ssa(sv)a(sa(sv))") + 1]
group = root / "user.slice" / "app.slice" / unit
group.mkdir(parents=True)
(group / "cgroup.controllers").write_text("{controllers}")
(group / "cgroup.subtree_control").write_text("{controllers}")
if {moves}:
    (proc / "self/cgroup").write_text(f"0::/user.slice/app.slice/{{unit}}\\n")
print('o "/org/freedesktop/systemd1/job/7"')
"""


class Machine:
    """A made-up /proc and cgroup tree, with this process in a group that is not its to divide."""

    def __init__(self, folder: Path, own: str = "/user.slice/session-3.scope") -> None:
        self.root, self.proc, self.bin = folder / "cg", folder / "proc", folder / "bin"
        for one in (self.root / own[1:], self.proc / "self", self.bin):
            one.mkdir(parents=True)
        (self.root / "cgroup.controllers").write_text("cpu io memory pids", encoding="ascii")
        (self.proc / "self/cgroup").write_text(f"0::{own}\n", encoding="ascii")
        mount = f"33 30 0:29 / {self.root} rw - cgroup2 cgroup rw\n"
        (self.proc / "self/mountinfo").write_text(mount, encoding="ascii")

    def manager(
        self,
        *,
        code: int = 0,
        words: str = "",
        controllers: str = "cpu memory pids",
        moves: bool = True,
    ) -> ScopeRequest:
        tool = self.bin / "busctl"
        text = MANAGER.format(
            python=sys.executable,
            root=self.root,
            proc=self.proc,
            code=code,
            words=words,
            controllers=controllers,
            moves=moves,
        )
        tool.write_text(text, encoding="utf-8")
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        return self.request()

    def request(self, *, root: bool = False) -> ScopeRequest:
        environ = {"XDG_RUNTIME_DIR": "/run/user/7", "KAGED_TOKEN": "secret"}
        return ScopeRequest(environ=environ, search_path=str(self.bin), root=root)

    @property
    def asked(self) -> dict[str, object]:
        return json.loads((self.root.parent / "asked.json").read_text(encoding="utf-8"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_a_group_of_its_own_the_daemon_is_moved_into_a_delegated_scope(
    machine: Machine,
) -> None:
    backend = choose_backend(machine.proc, scope=machine.manager())
    assert backend.name == "systemd-scope"
    assert backend.enforces == frozenset(LimitedResource)
    unit = f"{tree.instance_name()}.scope"
    assert machine.asked["argv"] == [
        "--user", "--timeout=5", "call",
        "org.freedesktop.systemd1", "/org/freedesktop/systemd1",
        "org.freedesktop.systemd1.Manager", "StartTransientUnit", "ssa(sv)a(sa(sv))",
        unit, "fail", "4",
        "Description", "s", "kaged daemon and its cages",
        "PIDs", "au", "1", str(os.getpid()),
        "Delegate", "b", "true",
        "CollectMode", "s", "inactive-or-failed",
        "0",
    ]  # fmt: skip
    env = machine.asked["env"]
    assert isinstance(env, dict)
    assert env["XDG_RUNTIME_DIR"] == "/run/user/7"
    assert "KAGED_TOKEN" not in env
    group = backend.create("cage-1", CageLimits(memory_mb=64))
    (joined,) = group.join_files
    home = machine.root / "user.slice/app.slice" / unit / tree.instance_name()
    assert Path(joined).is_relative_to(home)
    assert (Path(joined).parent / "memory.max").read_text(encoding="ascii") == str(64 << 20)


def test_a_second_back_end_of_the_daemon_uses_the_scope_it_is_in(machine: Machine) -> None:
    asker = machine.manager()
    assert choose_backend(machine.proc, scope=asker).name == "systemd-scope"
    unit = f"{tree.instance_name()}.scope"
    leaf = f"0::/user.slice/app.slice/{unit}/kaged-daemon\n"
    (machine.proc / "self/cgroup").write_text(leaf, encoding="ascii")
    (machine.bin / "busctl").unlink()
    again = choose_backend(machine.proc, scope=asker)
    assert again.name == "systemd-scope"
    (joined,) = again.create("cage-2", CageLimits()).join_files
    assert "kaged-daemon" not in joined


def test_root_asks_the_systems_manager(machine: Machine) -> None:
    assert machine.request(root=True).words("x.scope")[0] == "--system"
    assert machine.request(root=False).words("x.scope")[0] == "--user"


@pytest.mark.parametrize(
    ("manager", "why"),
    [
        (
            {"code": 1, "words": "No medium found"},
            "systemd gave no scope: Failed to connect to bus",
        ),
        ({"moves": False}, "did not move the daemon"),
        ({"controllers": "cpu"}, "not delegated to this daemon"),
    ],
)
def test_a_manager_that_does_not_help_leaves_the_next_best_and_says_why(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, manager: dict[str, object], why: str
) -> None:
    monkeypatch.setattr(scope, "MOVE_TRIES", 2)
    backend = choose_backend(machine.proc, scope=machine.manager(**manager))  # type: ignore[arg-type]
    assert isinstance(backend, RlimitsBackend)
    assert "systemd scope: " in backend.why
    assert why in backend.why


def test_a_host_without_systemd_falls_to_the_next_best_and_says_so(machine: Machine) -> None:
    backend = choose_backend(machine.proc, scope=machine.request())
    assert isinstance(backend, RlimitsBackend)
    assert "systemd is not there to ask" in backend.why
    assert "systemd scope" not in getattr(choose_backend(machine.proc), "why", "systemd scope")


@pytest.mark.parametrize(
    ("own", "asked"),
    [
        ("/system.slice/kaged.service", False),
        ("/user.slice/user-7.slice/user@7.service/app.slice/kaged.service/inner", False),
        ("/user.slice/user-7.slice/user@7.service/app.slice/term-1.scope", True),
        ("/user.slice/user-7.slice/user@7.service", True),
    ],
)
def test_the_main_process_of_a_service_is_not_taken_out_of_its_unit(
    tmp_path: Path, own: str, asked: bool
) -> None:
    machine = Machine(tmp_path, own)
    backend = choose_backend(machine.proc, scope=machine.manager())
    assert (backend.name == "systemd-scope") is asked
    if not asked:
        assert "kaged.service, whose unit has no Delegate=yes" in getattr(backend, "why", "")
        assert not (tmp_path / "asked.json").exists()


def test_a_hybrid_host_whose_controllers_are_in_version_1_is_not_asked(machine: Machine) -> None:
    asker = machine.manager()
    (machine.root / "cgroup.controllers").write_text("", encoding="ascii")
    backend = choose_backend(machine.proc, scope=asker)
    assert "no memory and pids controllers" in getattr(backend, "why", "")
    assert not (machine.root.parent / "asked.json").exists()


def test_a_delegated_group_is_used_without_asking_anybody(machine: Machine) -> None:
    asker = machine.manager()
    own = machine.root / "user.slice/session-3.scope"
    for name in ("cgroup.controllers", "cgroup.subtree_control"):
        (own / name).write_text("cpu memory pids", encoding="ascii")
    assert choose_backend(machine.proc, scope=asker).name == "cgroup2"
    assert not (machine.root.parent / "asked.json").exists()


class InScope(RlimitsBackend):
    """Limits of this machine's own kind under the scope's name: what matters is who is told."""

    name = "systemd-scope"
    enforces = frozenset(LimitedResource)


async def test_the_scope_is_named_wherever_the_back_end_is(
    cage_cache: Path, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[ScopeRequest | None] = []

    def choose(*, allow_cgroups: bool, scope: ScopeRequest | None) -> InScope:
        assert allow_cgroups
        wanted.append(scope)
        return InScope()

    monkeypatch.setattr(spawn, "choose_backend", choose)
    settings = CageSettings(cache_dir=cage_cache, ask_systemd=True)
    spawner = Spawner(settings, on_event=events)
    try:
        process = await spawner.spawn(CageRequest("t", CagePolicy(), ("true",)))
        assert process.cage is not None
        assert process.cage.backend == "systemd-scope"  # what a plugin's status shows
        await collect(process)
    finally:
        await spawner.close()
    assert events.last("cage.started")["limits"] == "systemd-scope"
    rows = {row.id: row for row in await probe_host(settings)}
    assert (rows["cage.limits"].status, rows["cage.limits"].detail) == (
        Status.OK,
        "by systemd-scope",
    )
    assert all(isinstance(one, ScopeRequest) for one in wanted)
    await Spawner(CageSettings(cache_dir=cage_cache)).close()
    assert wanted[-1] is None
