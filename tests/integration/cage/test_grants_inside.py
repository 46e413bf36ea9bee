"""What capability strings come to inside a real cage."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from fakes import runtimes
from integration.cage.conftest import Events
from kaged.cage import (
    CageKind,
    CageRequest,
    CageSettings,
    GrantRefused,
    ProgramMissing,
    Spawner,
    UnsafeArgument,
)
from kaged.cage.collect import Collected, collect
from kaged.kernel.capabilities import CapabilityBases, cage_policy, parse_capabilities
from kaged.kernel.policy import CagePolicy, FsGrant, FsMode
from requirements import requirement


class Plugin:
    """A plugin with a directory of its own and a list of capabilities."""

    def __init__(self, spawner: Spawner, place: Path) -> None:
        self.spawner = spawner
        self.place = place
        self.install = place / "plugins/sample"
        self.config = place / "config/sample"
        for folder in (self.install, self.config):
            folder.mkdir(parents=True)

    def policy(self, *capabilities: str) -> CagePolicy:
        return cage_policy(
            parse_capabilities(list(capabilities)),
            str(self.install),
            CapabilityBases(config=str(self.config)),
        )

    async def run(self, *command: str, can: tuple[str, ...] = (), **more: Any) -> Collected:
        request = CageRequest(
            "plugin:sample", self.policy(*can), command, home=str(self.install), **more
        )
        return await collect(await self.spawner.spawn(request))

    async def sh(self, script: str, *can: str) -> Collected:
        return await self.run("sh", "-c", script, can=can)


@pytest.fixture
def plugin(spawner: Spawner, place: Path) -> Plugin:
    return Plugin(spawner, place)


def folder(place: Path, name: str) -> str:
    found = place / name
    found.mkdir(parents=True)
    (found / "deep").mkdir()
    (found / "deep/file").write_text("content\n", encoding="utf-8")
    # Everybody may write here, so that only the cage can be what stands in the way.
    for path, mode in ((found, 0o777), (found / "deep", 0o777), (found / "deep/file", 0o666)):
        path.chmod(mode)
    return str(found)


@requirement("PH-CAP-01")
async def test_a_read_grant_can_be_read_and_not_written(plugin: Plugin, place: Path) -> None:
    data = folder(place, "data")
    can = f"read:fs:{data}"
    assert (await plugin.sh(f"cat {data}/deep/file", can)).stdout == b"content\n"
    for script in (f"echo x > {data}/deep/file", f"touch {data}/new", f"rm {data}/deep/file"):
        done = await plugin.sh(script, can)
        assert done.report.exit_code != 0
        assert b"Read-only file system" in done.stderr
    assert Path(data, "deep/file").read_text(encoding="utf-8") == "content\n"
    assert not Path(data, "new").exists()


@requirement("PH-CAP-02")
async def test_a_write_grant_can_be_written(plugin: Plugin, place: Path) -> None:
    data = folder(place, "data")
    script = f"mkdir -p {data}/a/b && echo new > {data}/a/b/c && echo more >> {data}/deep/file"
    done = await plugin.sh(script, f"write:fs:{data}")
    assert (done.report.exit_code, done.stderr) == (0, b"")
    assert Path(data, "a/b/c").read_text(encoding="utf-8") == "new\n"
    assert Path(data, "deep/file").read_text(encoding="utf-8") == "content\nmore\n"


async def test_the_install_directory_is_there_and_read_only(plugin: Plugin) -> None:
    (plugin.install / "main").write_text("here", encoding="utf-8")
    plugin.install.chmod(0o777)
    done = await plugin.sh(f"cat main; touch {plugin.install}/x")
    assert done.stdout == b"here"
    assert b"Read-only file system" in done.stderr


@requirement("PH-CAGE-18")
async def test_read_and_write_on_one_path_is_writable_and_a_narrower_read_is_not(
    plugin: Plugin,
) -> None:
    memory = plugin.config / "memory"
    (memory / "fixed").mkdir(parents=True)
    (memory / "fixed").chmod(0o777)
    both = ("read:fs:config:/memory", "write:fs:config:/memory")
    grants = [one for one in plugin.policy(*both).fs if one.path == str(memory)]
    assert grants == [FsGrant(str(memory), FsMode.RW)]
    done = await plugin.sh(f"echo x > {memory}/note", *both)
    assert done.report.exit_code == 0
    assert (memory / "note").exists()
    narrow = (*both, "read:fs:config:/memory/fixed")
    done = await plugin.sh(f"echo y > {memory}/second && echo z > {memory}/fixed/no", *narrow)
    assert done.report.exit_code != 0
    assert (memory / "second").exists()
    assert not (memory / "fixed/no").exists()


@requirement("PH-CAP-12")
async def test_a_declared_path_that_leads_elsewhere_is_refused(
    plugin: Plugin, place: Path, events: Events
) -> None:
    (place / "link").symlink_to("/etc")
    with pytest.raises(GrantRefused, match=r"link.*/etc") as caught:
        await plugin.sh("true", f"read:fs:{place}/link")
    assert caught.value.path == f"{place}/link"
    assert events.names() == ["cage.refused"]
    assert events.last("cage.refused")["path"] == f"{place}/link"


async def test_what_belongs_to_the_host_is_refused_by_name(
    cage_cache: Path, place: Path, events: Events
) -> None:
    home = place / "home"
    for name in ("plugins/other", "plugins/sample"):
        (home / name).mkdir(parents=True)
    for name in ("kaged.db", "local.toml", "kaged.sock"):
        (home / name).touch()
    spawner = Spawner(CageSettings(cache_dir=cage_cache, protected=(str(home),)), on_event=events)
    try:
        for path in ("/", str(home), str(home / "kaged.db"), str(home / "local.toml"),
                     str(home / "plugins/other"), str(place), str(cage_cache), "/proc", "/sys/fs",
                     "/dev", str(place / "missing")):  # fmt: skip
            request = CageRequest(
                "plugin:sample",
                CagePolicy(
                    fs=(FsGrant(str(home / "plugins/sample"), FsMode.RO), FsGrant(path, FsMode.RO))
                ),
                ("true",),
                own_dirs=(str(home / "plugins/sample"),),
            )
            with pytest.raises(GrantRefused) as caught:
                await spawner.spawn(request)
            assert caught.value.path == path
            assert not spawner.running
        assert set(events.names()) == {"cage.refused"}
    finally:
        await spawner.close()


@requirement("PH-AMB-52")
async def test_only_named_programs_can_be_started(plugin: Plugin, place: Path) -> None:
    data = folder(place, "data")
    python = "import shutil, subprocess; print(shutil.which('git')); subprocess.run(['git'])"
    done = await plugin.run("/usr/bin/python3", "-c", python)
    assert done.stdout.startswith(b"None\n")
    assert b"FileNotFoundError" in done.stderr
    done = await plugin.sh("git --version; curl --version; /usr/bin/git --version")
    assert done.stdout == b""
    assert done.stderr.count(b"not found") == 3
    done = await plugin.sh("git --version && curl", f"exec:git:{data}")
    assert done.stdout.startswith(b"git version")
    assert b"not found" in done.stderr


@requirement("PH-CAP-03")
async def test_an_exec_entry_brings_one_program_and_its_directory(
    plugin: Plugin, place: Path
) -> None:
    data = folder(place, "data")
    can = f"exec:jq:{data}"
    policy = plugin.policy(can)
    assert [(one.binary, one.cwd) for one in policy.exec] == [("jq", data)]
    done = await plugin.sh(f"cd {data} && jq -n 1 && pwd; git", can)
    assert done.stdout.decode() == f"1\n{data}\n"
    assert b"not found" in done.stderr


@requirement("PH-AMB-65")
async def test_the_directory_of_an_exec_entry_is_shown_read_only(
    plugin: Plugin, place: Path
) -> None:
    data = folder(place, "data")
    folder(place, "sibling")
    can = f"exec:bash:{data}"
    done = await plugin.sh(f"cd {data} && bash -c 'cat deep/file; touch new; cd ../sibling'", can)
    assert done.stdout == b"content\n"
    assert b"Read-only file system" in done.stderr
    assert b"sibling: No such file" in done.stderr
    with pytest.raises(GrantRefused, match="missing"):
        await plugin.sh("true", f"exec:bash:{place}/missing")


@requirement("PH-SUP-10")
async def test_path_is_exact_for_a_command_in_its_directories(plugin: Plugin) -> None:
    done = await plugin.sh("printenv PATH")
    assert done.stdout == b"/usr/bin:/usr/local/bin\n"
    done = await plugin.run("/usr/bin/env", "python3", "-c", "import os; print(os.environ['PATH'])")
    assert done.stdout == b"/usr/bin:/usr/local/bin\n"


@requirement("PH-AMB-64")
async def test_a_runtime_from_elsewhere_is_found_or_named(
    cage_cache: Path, place: Path, plugin: Plugin
) -> None:
    done = await plugin.run("/usr/bin/env", "python3", "-c", "import os; print(os.environ['PATH'])")
    assert done.stdout == b"/usr/bin:/usr/local/bin\n"
    real = runtimes.bun()
    script = "console.log('up'); console.log(process.env.PATH)"
    path = f"up\n/usr/bin:/usr/local/bin:{real.parent}\n".encode()
    named = await plugin.run("/usr/bin/env", "bun", "-e", script, runtimes=(("bun", str(real)),))
    assert named.stdout == path
    links = real.parents[2] / ".bin"  # bun -> ../bun/bin/bun.exe
    assert (links / "bun").is_symlink()
    for folders, expected in ((f"/usr/bin:{links}", path), ("/usr/bin", None)):
        spawner = Spawner(CageSettings(cache_dir=cage_cache, search_path=folders))
        try:
            found = Plugin(spawner, place / ("without" if expected is None else "with"))
            if expected is None:
                with pytest.raises(ProgramMissing, match="bun") as caught:
                    await found.run("/usr/bin/env", "bun", "-e", script)
                assert caught.value.program == "bun"
            else:
                assert (await found.run("/usr/bin/env", "bun", "-e", script)).stdout == expected
        finally:
            await spawner.close()


async def test_a_single_program_from_elsewhere_is_shown_under_the_name_it_was_given(
    place: Path, plugin: Plugin
) -> None:
    (place / "opt/bin").mkdir(parents=True)
    shutil.copy("/bin/sh", place / "opt/bin/shell-1.2")
    named = await plugin.run(
        "/usr/bin/env", "newsh", "-c", "echo up; printenv PATH",
        runtimes=(("newsh", str(place / "opt/bin/shell-1.2")),),
    )  # fmt: skip
    assert named.stdout == b"up\n/usr/bin:/usr/local/bin\n"


async def test_a_runtime_that_links_to_a_program_of_every_cage_is_found(
    place: Path, plugin: Plugin
) -> None:
    (place / "opt/bin").mkdir(parents=True)
    link = place / "opt/bin/newsh"
    link.symlink_to("/usr/bin/sh")
    for target in (str(link), "/bin/sh"):
        named = await plugin.run(
            "/usr/bin/env", "newsh", "-c", "echo up", runtimes=(("newsh", target),)
        )
        assert named.stdout == b"up\n", named


@pytest.mark.parametrize(
    "script",
    [
        "printf 'GET' | cat",
        "echo $(seq 3 | sort -r | head -1)",
        "mktemp && date +%Y && id -u",
    ],
)
async def test_the_base_set_works_together(plugin: Plugin, script: str) -> None:
    assert (await plugin.sh(script)).report.exit_code == 0


@requirement("PH-CAGE-12")
async def test_a_plugin_without_network_has_a_network_of_its_own(plugin: Plugin) -> None:
    done = await plugin.sh("readlink /proc/self/ns/net", "net:[]")
    assert done.stdout.startswith(b"net:[")
    assert done.stdout.strip().decode() != str(Path("/proc/self/ns/net").readlink())


@requirement("PH-CAGE-15")
async def test_a_plugin_without_network_cannot_connect(plugin: Plugin) -> None:
    program = (
        "import socket, errno\n"
        "for address in (('1.1.1.1', 443), ('127.0.0.1', 22), ('169.254.169.254', 80)):\n"
        "    try: socket.create_connection(address, 2); print('connected')\n"
        "    except OSError as error: print(errno.errorcode[error.errno])\n"
        "try: socket.getaddrinfo('example.org', 443); print('resolved')\n"
        "except OSError: print('unknown')\n"
    )
    done = await plugin.run("/usr/bin/python3", "-c", program, can=("net:[]",))
    assert done.stdout.decode().split() == [
        "ENETUNREACH", "ECONNREFUSED", "ENETUNREACH", "unknown",
    ]  # fmt: skip


async def test_a_nul_byte_in_anything_a_plugin_writes_starts_nothing(
    plugin: Plugin, events: Events
) -> None:
    injection = "x\0--bind\0/\0/host"
    for request in (
        CageRequest("p", CagePolicy(env=(("A", injection),)), ("true",)),
        CageRequest("p", CagePolicy(), ("true",), env=(("A", injection),)),
        CageRequest("p", CagePolicy(), ("true", injection)),
        CageRequest("p", CagePolicy(), ("true",), home=f"/{injection}"),
        CageRequest("p", CagePolicy(fs=(FsGrant(f"/{injection}", FsMode.RO),)), ("true",)),
    ):
        with pytest.raises(UnsafeArgument):
            await plugin.spawner.spawn(request)
    assert set(events.names()) == {"cage.refused"}


async def test_a_pattern_of_an_agents_cage_shows_what_it_matches(
    spawner: Spawner, place: Path
) -> None:
    for name in ("src/a.py", "src/b.txt", "src/c.py"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(name, encoding="utf-8")
    policy = CagePolicy(fs=(FsGrant(f"{place}/src/*.py", FsMode.RO),))
    script = f"cd {place}/src && ls && cat a.py && touch c.py"
    request = CageRequest("agent:x", policy, ("sh", "-c", script), kind=CageKind.AGENT)
    done = await collect(await spawner.spawn(request))
    assert done.stdout.decode() == "a.py\nc.py\nsrc/a.py"
    assert done.report.exit_code != 0
