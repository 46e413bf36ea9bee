from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.cage.arguments import DescriptorSlot, Token
from kaged.cage.base_programs import BaseProgramDir
from kaged.cage.compile import CageCommand, Resolved, compile_cage
from kaged.cage.errors import PolicyConflict, UnsafeArgument
from kaged.cage.facts import HostFacts, RootEntry
from kaged.cage.layout import ShownPath
from kaged.cage.programs import ProgramPlan
from kaged.cage.request import CageKind, CageRequest, HostMount, Programs, Pty
from kaged.kernel.net import NetTarget
from kaged.kernel.policy import CageLimits, CagePolicy, CageState, FsGrant, FsMode

RO, RW = FsMode.RO, FsMode.RW


def shown(*grants: tuple[str, FsMode]) -> tuple[ShownPath, ...]:
    return tuple(ShownPath(path, mode, is_dir=True) for path, mode in grants)


def request(**more: object) -> CageRequest:
    base = CageRequest("plugin:memory", CagePolicy(), ("/usr/bin/python3", "main.py"))
    return replace(base, **more)


def lines(command: CageCommand) -> list[str]:
    """Write an option list one option per line, descriptors by label."""
    found: list[str] = []
    for token in command.options:
        text = f"<{token.label}>" if isinstance(token, DescriptorSlot) else token
        if text.startswith("--"):
            found.append(text)
        else:
            found[-1] += f" {text}"
    return found


GOLDEN = """\
--unshare-user
--unshare-pid
--unshare-ipc
--unshare-uts
--unshare-net
--unshare-cgroup-try
--disable-userns
--uid 1000
--gid 1000
--hostname cage
--die-with-parent
--new-session
--cap-drop ALL
--clearenv
--setenv PATH /usr/bin:/usr/local/bin
--setenv HOME /srv/plugins/memory
--setenv LANG C.UTF-8
--setenv TMPDIR /tmp
--setenv XDG_CACHE_HOME /tmp/.cache
--setenv KAGED_PLUGIN_NAME memory
--ro-bind /var/cache/kaged/shelf-1 /kaged-base
--perms 0755
--dir /usr
--symlink usr/bin /bin
--symlink usr/lib /lib
--symlink usr/lib64 /lib64
--perms 0755
--dir /etc
--proc /proc
--dev /dev
--perms 1777
--size 8388608
--tmpfs /run
--perms 1777
--size 67108864
--tmpfs /tmp
--ro-bind /usr/lib64 /usr/lib64
--ro-bind /usr/share /usr/share
--symlink /kaged-base/etc/ld.so.cache /etc/ld.so.cache
--perms 0444
--file <file:/etc/hosts> /etc/hosts
--perms 0444
--file <file:/etc/nsswitch.conf> /etc/nsswitch.conf
--perms 1777
--size 67108864
--tmpfs /dev/shm
--ro-bind /var/cache/kaged/bin-6b03f96f34a671290fd42e7d /usr/bin
--ro-bind /usr/lib/x86_64-linux-gnu /usr/lib/x86_64-linux-gnu
--perms 0755
--dir /usr/local/bin
--ro-bind /etc/ssl/certs /etc/ssl/certs
--ro-bind /usr/bin/python3.11 /usr/bin/python3.11
--ro-bind-fd <runtime:0> /usr/lib/python3.11
--ro-bind-fd <grant:0> /srv/plugins/memory
--bind-fd <grant:1> /srv/data/memory/store
--remount-ro /dev
--remount-ro /proc
--remount-ro /
--seccomp <seccomp>
--info-fd <info>
--block-fd <block>
--chdir /srv/plugins/memory
"""

PYTHON = ProgramPlan(
    links=(("/usr/bin/python3", "python3.11"),),
    files=("/usr/bin/python3.11",),
    dirs=("/usr/lib/python3.11",),
)


def sample(facts: HostFacts) -> CageCommand:
    return compile_cage(
        request(home="/srv/plugins/memory", env=(("KAGED_PLUGIN_NAME", "memory"),)),
        facts,
        Resolved(
            grants=shown(("/srv/plugins/memory", RO), ("/srv/data/memory/store", RW)),
            programs=PYTHON,
        ),
    )


def test_a_plugin_compiles_to_bwrap_around_its_command(facts: HostFacts) -> None:
    command = sample(facts)
    argv = command.argv(9)
    assert argv == ["/usr/bin/bwrap", "--args", "9", "--", "/usr/bin/python3", "main.py"]
    assert "\n".join(lines(command)) + "\n" == GOLDEN


def test_the_same_request_compiles_to_the_same_cage(facts: HostFacts) -> None:
    assert sample(facts) == sample(facts)
    assert len(sample(facts).cage_id) == 32


def test_the_id_changes_with_every_grant_and_never_with_a_secret(facts: HostFacts) -> None:
    def cage_id(**more: object) -> str:
        found = request(**more)
        paths = tuple(ShownPath(one.path, one.mode, is_dir=True) for one in found.policy.fs)
        return compile_cage(found, facts, Resolved(grants=paths)).cage_id

    policies = [
        CagePolicy(),
        CagePolicy(fs=(FsGrant("/srv/a", RO),)),
        CagePolicy(fs=(FsGrant("/srv/a", RW),)),
        CagePolicy(net=(NetTarget("api.test", 443),)),
        CagePolicy(net=(NetTarget(None, None),)),
        CagePolicy(limits=CageLimits(memory_mb=64)),
    ]
    assert len({cage_id(policy=policy) for policy in policies}) == len(policies)
    assert cage_id(env=(("TOKEN", "one"),)) == cage_id(env=(("TOKEN", "two"),))
    assert cage_id(env=(("TOKEN", "one"),)) != cage_id(env=(("OTHER", "one"),))


def test_an_upgraded_base_program_does_not_change_the_id(facts: HostFacts) -> None:
    other = replace(
        facts, base_programs=replace(facts.base_programs, path="/var/cache/kaged/shelf-2")
    )
    assert sample(facts).cage_id == sample(other).cage_id
    assert sample(facts).options != sample(other).options


def test_parents_are_mounted_before_children(facts: HostFacts) -> None:
    grants = shown(("/srv/a/b/c", RO), ("/srv/a", RW), ("/srv/a/b", RO))
    command = compile_cage(request(), facts, Resolved(grants=grants))
    mounted = [line.split()[-1] for line in lines(command) if "<grant" in line]
    assert mounted == ["/srv/a", "/srv/a/b", "/srv/a/b/c"]


@given(
    paths=st.lists(
        st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4).map(
            lambda parts: "/srv/" + "/".join(parts)
        ),
        unique=True,
        max_size=8,
    )
)
def test_no_mount_is_ever_hidden_by_a_later_one(paths: list[str]) -> None:
    command = compile_cage(
        request(), FACTS, Resolved(grants=shown(*((path, RO) for path in paths)))
    )
    dests = [line.split()[-1] for line in lines(command) if line.startswith("--ro-bind-fd")]
    assert sorted(dests) == sorted(paths)
    for place, dest in enumerate(dests):
        assert not any(
            later == dest or dest.startswith(f"{later}/") for later in dests[place + 1 :]
        )


def test_everything_is_made_read_only_after_it_was_put_there(facts: HostFacts) -> None:
    found = lines(sample(facts))
    last_mount = max(
        place
        for place, line in enumerate(found)
        if line.split()[0] in {"--bind-fd", "--ro-bind-fd", "--tmpfs", "--symlink", "--file"}
    )
    for path in ("/dev", "/proc", "/"):
        assert found.index(f"--remount-ro {path}") > last_mount


def test_a_plugin_has_no_passwd_and_others_have_a_made_up_one(facts: HostFacts) -> None:
    plugin = compile_cage(request(), facts, Resolved())
    agent = compile_cage(request(kind=CageKind.AGENT), facts, Resolved())
    assert not any("/etc/passwd" in line or "/etc/group" in line for line in lines(plugin))
    files = dict(agent.files)
    assert files["file:/etc/passwd"].startswith(b"cage:x:1000:1000:")
    assert b"root" not in files["file:/etc/passwd"]


def test_only_a_plugin_is_strict_by_default_and_it_cannot_be_otherwise(facts: HostFacts) -> None:
    agent = lines(compile_cage(request(kind=CageKind.AGENT), facts, Resolved()))
    assert "--ro-bind /usr /usr" in agent
    assert "--ro-bind /etc/alternatives /etc/alternatives" in agent
    narrowed = request(kind=CageKind.AGENT, programs=Programs.STRICT)
    assert "--ro-bind /usr /usr" not in lines(compile_cage(narrowed, facts, Resolved()))
    widened = request(kind=CageKind.PLUGIN, programs=Programs.SYSTEM)
    assert "--ro-bind /usr /usr" not in lines(compile_cage(widened, facts, Resolved()))


def test_an_unmerged_host_gets_its_own_directories(facts: HostFacts) -> None:
    unmerged = replace(
        facts,
        root_entries=(RootEntry("bin", None), RootEntry("sbin", None), RootEntry("lib", None)),
    )
    strict = lines(compile_cage(request(), unmerged, Resolved()))
    assert "--ro-bind /lib /lib" in strict
    assert [line.split()[-1] for line in strict if "/bin-" in line] == ["/bin", "/usr/bin"]
    assert not any(line.endswith(" /sbin") for line in strict)
    whole = lines(compile_cage(request(kind=CageKind.AGENT), unmerged, Resolved()))
    assert "--ro-bind /sbin /sbin" in whole


def test_the_programs_of_a_cage_lie_in_one_directory_that_is_named_by_them(
    facts: HostFacts,
) -> None:
    (folder,) = sample(facts).folders
    assert dict(folder.links) == {
        "sh": "/kaged-base/bin/sh",
        "env": "/kaged-base/bin/env",
        "cat": "/kaged-base/bin/cat",
        "python3": "python3.11",
    }
    assert folder.places == ("python3.11",)
    (bare,) = compile_cage(request(), facts, Resolved()).folders
    assert bare.path != folder.path
    assert bare.places == ()
    newer = replace(
        facts, base_programs=replace(facts.base_programs, path="/var/cache/kaged/shelf-2")
    )
    assert sample(newer).folders == (folder,)


def test_the_cage_id_is_the_same_wherever_the_cache_lies(facts: HostFacts) -> None:
    moved = replace(
        facts, base_programs=replace(facts.base_programs, path="/home/me/.cache/kaged/shelf-1")
    )
    assert sample(moved).cage_id == sample(facts).cage_id
    assert sample(moved).options != sample(facts).options


@pytest.mark.parametrize("path", ["/usr", "/usr/bin", "/usr/bin/tools"])
def test_a_grant_that_reaches_into_the_programs_keeps_the_directory_as_it_was(
    facts: HostFacts, path: str
) -> None:
    found = [
        compile_cage(request(), facts, Resolved(grants=shown((path, RO)))),
        compile_cage(request(mounts=(HostMount(path, path, RO),)), facts, Resolved()),
    ]
    if path == "/usr":  # a mount of the host's own covers what lies below it, as before
        found.pop()
    assert all(command.folders == () for command in found)


def test_variables_win_in_the_stated_order(facts: HostFacts) -> None:
    command = compile_cage(
        request(
            env=(("A", "host"), ("B", "host"), ("C", "host"), ("PATH", "host")),
            policy=CagePolicy(env=(("B", "policy"), ("C", "policy"), ("LANG", "de_DE.UTF-8"))),
            fixed_env=(("C", "fixed"),),
        ),
        facts,
        Resolved(net_environment=(("A", "gate"), ("HTTP_PROXY", "http://127.0.0.1:808"))),
    )
    found = dict(command.environment)
    assert (found["A"], found["B"], found["C"]) == ("host", "policy", "fixed")
    assert found["PATH"] == "host"
    assert found["LANG"] == "de_DE.UTF-8"
    assert found["HTTP_PROXY"] == "http://127.0.0.1:808"


def test_a_terminal_gives_the_command_a_session_of_its_own(facts: HostFacts) -> None:
    command = compile_cage(request(stdio=Pty(), command=("sh",)), facts, Resolved())
    assert command.command == ("/kaged-base/bin/setsid", "--ctty", "sh")
    assert dict(command.environment)["TERM"] == "xterm-256color"
    bare = replace(facts, base_programs=replace(facts.base_programs, session_program=False))
    assert compile_cage(request(stdio=Pty(), command=("sh",)), bare, Resolved()).command == ("sh",)


def test_a_persistent_cage_keeps_its_scratch_in_a_directory(facts: HostFacts) -> None:
    kept = request(
        kind=CageKind.AGENT, policy=CagePolicy(state=CageState.PERSISTENT), state_dir="/srv/state"
    )
    found = lines(compile_cage(kept, facts, Resolved()))
    assert "--bind-fd <state> /tmp" in found
    assert "--tmpfs /tmp" not in found
    with pytest.raises(PolicyConflict, match="directory"):
        compile_cage(replace(kept, state_dir=None), facts, Resolved())


def test_the_gates_files_replace_the_made_up_ones(facts: HostFacts) -> None:
    resolved = Resolved(net_files=(("/etc/hosts", "127.77.0.1 api.test\n"),))
    files = dict(compile_cage(request(), facts, resolved).files)
    assert files["file:/etc/hosts"] == b"127.77.0.1 api.test\n"
    for path in ("/usr/x", "/etc/a/b", "/etc/"):
        with pytest.raises(PolicyConflict):
            compile_cage(request(), facts, Resolved(net_files=((path, ""),)))


def test_a_granted_etc_shows_the_hosts_and_keeps_the_made_up_files_on_top(
    facts: HostFacts,
) -> None:
    found = lines(compile_cage(request(), facts, Resolved(grants=shown(("/etc", RO)))))
    assert "--ro-bind-fd <grant:0> /etc" in found
    assert "--ro-bind-data <file:/etc/hosts> /etc/hosts" in found
    assert not any("/etc/ssl" in line or "ld.so.cache" in line for line in found)
    without = replace(facts, etc_present=())
    found = lines(compile_cage(request(), without, Resolved(grants=shown(("/etc", RO)))))
    assert not any("/etc/hosts" in line for line in found)


def test_a_granted_usr_leaves_out_what_it_shows_anyway(facts: HostFacts) -> None:
    found = lines(
        compile_cage(request(), facts, Resolved(grants=shown(("/usr", RO)), programs=PYTHON))
    )
    assert [line for line in found if line.endswith("/usr")] == ["--ro-bind-fd <grant:0> /usr"]
    assert not any("/usr/bin" in line and "PATH" not in line for line in found)


def test_a_granted_file_in_etc_is_the_hosts_own(facts: HostFacts) -> None:
    resolved = Resolved(grants=(ShownPath("/etc/hosts", RO, is_dir=False),))
    command = compile_cage(request(), facts, resolved)
    assert "file:/etc/hosts" not in dict(command.files)


def test_a_grant_where_a_moved_program_must_go_is_a_conflict(facts: HostFacts) -> None:
    plan = ProgramPlan(moved=(("/opt/bun/bin/bun", "/usr/local/bin/bun"),))
    with pytest.raises(PolicyConflict, match="/usr/local/bin/bun"):
        compile_cage(
            request(), facts, Resolved(grants=shown(("/usr/local/bin", RO)), programs=plan)
        )


def test_what_the_host_adds_is_mounted_where_it_says(facts: HostFacts) -> None:
    mounts = (HostMount("/opt/sdk", "/kaged-sdk"), HostMount("/srv/a/lib", "/srv/a/lib"))
    resolved = Resolved(grants=shown(("/srv/a", RW)))
    found = lines(compile_cage(request(mounts=mounts), facts, resolved))
    assert "--ro-bind /opt/sdk /kaged-sdk" in found
    assert found.index("--ro-bind /srv/a/lib /srv/a/lib") > found.index(
        "--bind-fd <grant:0> /srv/a"
    )
    with pytest.raises(PolicyConflict):
        compile_cage(request(mounts=(HostMount("/opt/sdk", "/srv/a/sdk"),)), facts, resolved)
    writable = request(mounts=(HostMount("/opt/out", "/out", RW),))
    assert "--bind /opt/out /out" in lines(compile_cage(writable, facts, Resolved()))


def test_a_working_directory_that_is_not_there_is_refused(facts: HostFacts) -> None:
    with pytest.raises(UnsafeArgument, match="/srv/other"):
        compile_cage(request(cwd="/srv/other"), facts, Resolved(grants=shown(("/srv/plugin", RO))))
    above = request(cwd="/srv")
    resolved = Resolved(grants=shown(("/srv/plugin", RO)))
    assert compile_cage(above, facts, resolved).cwd == "/srv"


def test_without_a_sandbox_tool_nothing_compiles(facts: HostFacts) -> None:
    with pytest.raises(PolicyConflict):
        compile_cage(request(), replace(facts, bwrap=None), Resolved())


def test_no_string_of_a_request_reaches_the_options_with_a_nul(facts: HostFacts) -> None:
    injection = "x\0--bind\0/\0/host"
    for bad in (
        request(env=(("A", injection),)),
        request(fixed_env=((f"A{injection}", "x"),)),
        request(policy=CagePolicy(env=(("A", injection),))),
        request(command=("sh", injection)),
        request(cwd=f"/{injection}"),
        request(home=f"/{injection}"),
        request(mounts=(HostMount(f"/{injection}", "/x"),)),
        request(mounts=(HostMount("/x", f"/{injection}"),)),
    ):
        with pytest.raises(UnsafeArgument):
            compile_cage(bad, facts, Resolved())
    with pytest.raises(UnsafeArgument):
        compile_cage(request(), facts, Resolved(grants=shown((f"/{injection}", RO))))


def test_tokens_are_strings_or_labels(facts: HostFacts) -> None:
    tokens: tuple[Token, ...] = sample(facts).options
    assert {type(token) for token in tokens} == {str, DescriptorSlot}


FACTS = HostFacts(
    bwrap="/usr/bin/bwrap",
    bwrap_version=(0, 8, 0),
    bwrap_missing_options=(),
    bwrap_setuid=False,
    machine="x86_64",
    kernel=(6, 1),
    uid=1,
    gid=1,
    root_entries=(),
    library_dirs=("/usr/lib",),
    library_links=(("/usr/lib/ld.so", "x/ld.so"),),
    data_dirs=(),
    etc_shown=(),
    etc_system=(),
    etc_present=(),
    base_programs=BaseProgramDir("/c/shelf", (), (), session_program=False),
    search_path=(),
)


def test_what_a_procfs_shows_of_the_host_is_covered(facts: HostFacts) -> None:
    host = replace(
        facts,
        hidden_files=("/proc/keys",),
        hidden_from_root=(("/proc/acpi", True), ("/proc/kmsg", False)),
    )
    found = lines(compile_cage(request(), host, Resolved(as_root=True)))
    covers = [
        "--ro-bind /dev/null /proc/keys",
        "--tmpfs /proc/acpi",
        "--remount-ro /proc/acpi",
        "--ro-bind /dev/null /proc/kmsg",
    ]
    assert [line for line in found if line in covers] == covers
    plain = lines(compile_cage(request(), host, Resolved()))
    assert [line for line in plain if line in covers] == covers[:1]
    assert found.index("--proc /proc") < found.index(covers[0])
    assert found.index(covers[2]) < found.index("--remount-ro /proc")
    assert found[found.index("--tmpfs /proc/acpi") - 1] == "--perms 0555"


def test_a_pipe_is_covered_where_a_read_only_grant_shows_it_and_nowhere_else(
    facts: HostFacts,
) -> None:
    grants = shown(("/srv/p", RO), ("/srv/p/rw", RW), ("/srv/p/rw/ro", RO))
    pipes = ("/srv/p/a", "/srv/p/rw/b", "/srv/p/rw/ro/c/d", "/srv/p/own/e", "/srv/other/f")
    made = request(mounts=(HostMount("/opt/sdk", "/srv/p2"),))
    plain = compile_cage(made, facts, Resolved(grants=grants))
    command = compile_cage(made, facts, Resolved(grants=grants, pipes=(*pipes, "/srv/p2/g")))
    more = [line for line in lines(command) if line not in lines(plain)]
    assert more == [
        "--ro-bind /dev/null /srv/p/a",
        "--ro-bind /dev/null /srv/p/own/e",
        "--ro-bind /dev/null /srv/p/rw/ro/c/d",
    ]
    found = lines(command)
    assert found.index("--ro-bind-fd <grant:2> /srv/p/rw/ro") < found.index(more[-1])
    assert command.cage_id != plain.cage_id


def test_a_pipes_name_stays_one_line_of_what_is_hashed(facts: HostFacts) -> None:
    """Else a name could look like another entry of the cage."""
    grants = shown(("/srv/p", RO))
    forged = "/srv/p/x\n--bind /etc /etc"
    command = compile_cage(request(), facts, Resolved(grants=grants, pipes=(forged,)))
    assert "--bind /etc /etc" not in command.text.splitlines()
    assert forged in command.options
