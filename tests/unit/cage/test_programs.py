from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fakes.file_clock import FileClock
from kaged.cage import programs
from kaged.cage.errors import PolicyConflict, ProgramMissing
from kaged.cage.facts import HostFacts
from kaged.cage.programs import ProgramPlan, plan_programs

ELF = "\x7fELF"


class Host:
    """A made-up file system below a directory, with a /usr/bin of its own."""

    def __init__(self, root: Path, facts: HostFacts) -> None:
        self.root = root
        self.facts = replace(facts, search_path=(self.path("elsewhere/bin"),))

    def path(self, name: str) -> str:
        return str(self.root / name)

    def program(self, name: str, text: str = ELF) -> str:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(0o755)
        return str(file)

    def link(self, name: str, target: str) -> str:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to(target)
        return str(file)

    def plan(self, *command: str, execs: tuple[str, ...] = (), **more: object) -> ProgramPlan:
        return plan_programs(command, execs, self.facts, **more)  # pyright: ignore[reportArgumentType] - keywords of one function


@pytest.fixture
def host(tmp_path: Path, facts: HostFacts, monkeypatch: pytest.MonkeyPatch) -> Host:
    found = Host(tmp_path.resolve(), facts)
    system = (found.path("usr/bin"), found.path("usr/local/bin"))
    monkeypatch.setattr(programs, "PATH_DIRS", system)
    monkeypatch.setattr(programs, "_SYSTEM_BIN", system)
    monkeypatch.setattr(programs, "_SHOWN_DIR", found.path("usr/local/bin"))
    monkeypatch.setattr(programs, "companions", lambda _: ())
    return found


def test_a_base_program_needs_nothing(host: Host) -> None:
    assert host.plan("sh", "-c", "true").files == ()
    assert host.plan("env", "cat").files == ()


def test_a_system_program_is_shown_with_the_links_that_lead_to_it(host: Host) -> None:
    host.program("usr/bin/awk1")
    host.link("etc/alternatives/awk", host.path("usr/bin/awk1"))
    host.link("usr/bin/awk", host.path("etc/alternatives/awk"))
    found = host.plan("awk")
    assert found.files == (host.path("usr/bin/awk1"),)
    assert found.links == (
        (host.path("etc/alternatives/awk"), host.path("usr/bin/awk1")),
        (host.path("usr/bin/awk"), host.path("etc/alternatives/awk")),
    )
    assert found.path_dirs == ()


def test_env_brings_the_program_it_will_look_for(host: Host) -> None:
    host.program("usr/bin/ruby1")
    for command in (
        ("env", "ruby1", "x.rb"),
        ("env", "-i", "A=b", "ruby1"),
        ("env", "-S", "ruby1 -w", "x.rb"),
        ("env", "-Sruby1 -w"),
        ("env", "-u", "HOME", "ruby1"),
    ):
        assert host.plan(*command).files == (host.path("usr/bin/ruby1"),)
    assert host.plan("env").files == ()


def test_a_script_brings_its_interpreters(host: Host) -> None:
    host.program("usr/bin/lua1")
    host.program("usr/bin/tool", f"#!{host.path('usr/bin/lua1')} -x\nprint()")
    assert host.plan("tool").files == (host.path("usr/bin/lua1"), host.path("usr/bin/tool"))


def test_a_script_in_a_granted_directory_brings_only_its_interpreter(host: Host) -> None:
    host.program("usr/bin/lua1")
    host.program("srv/plugin/run", f"#!{host.path('usr/bin/lua1')}\n")
    visible = (host.path("srv/plugin"),)
    assert host.plan(host.path("srv/plugin/run"), visible=visible).files == (
        host.path("usr/bin/lua1"),
    )
    relative = host.plan("./run", visible=visible, cwd=host.path("srv/plugin"))
    assert relative.files == (host.path("usr/bin/lua1"),)


def test_interpreters_that_never_end_are_refused(host: Host) -> None:
    host.program("usr/bin/one", f"#!{host.path('usr/bin/two')}\n")
    host.program("usr/bin/two", f"#!{host.path('usr/bin/one')}\n")
    with pytest.raises(ProgramMissing, match="does not end"):
        host.plan("one")
    host.link("usr/bin/circle", "circle2")
    host.link("usr/bin/circle2", "circle")
    with pytest.raises(ProgramMissing):
        host.plan("circle")


def test_only_named_programs_are_shown(host: Host) -> None:
    for name in ("lua1", "git", "curl"):
        host.program(f"usr/bin/{name}")
    assert host.plan("lua1").files == (host.path("usr/bin/lua1"),)
    with_git = host.plan("lua1", execs=("git",))
    assert with_git.files == (host.path("usr/bin/git"), host.path("usr/bin/lua1"))


@pytest.mark.parametrize("name", ["bun", "/opt/none/bun", "b\0n", "a b", "-x", "..", ""])
def test_a_missing_program_is_refused_by_name(host: Host, name: str) -> None:
    with pytest.raises(ProgramMissing) as caught:
        host.plan("sh", execs=(name,))
    assert ascii(name).strip("'") in str(caught.value)


def test_a_file_that_is_not_executable_is_no_program(host: Host) -> None:
    (host.root / "usr/bin").mkdir(parents=True)
    (host.root / "usr/bin/notes").write_text("x", encoding="utf-8")
    with pytest.raises(ProgramMissing):
        host.plan("notes")


def test_a_single_file_from_elsewhere_is_shown_in_the_local_directory(host: Host) -> None:
    host.program("elsewhere/bin/bun")
    found = host.plan("env", "bun", "run")
    assert found.moved == ((host.path("elsewhere/bin/bun"), host.path("usr/local/bin/bun")),)
    assert found.path_dirs == ()
    assert found.files == ()


def test_a_link_from_elsewhere_is_resolved_and_shown_under_its_name(host: Host) -> None:
    host.program("elsewhere/versions/1/bun")
    host.link("elsewhere/bin/bun", "../versions/1/bun")
    found = host.plan("bun")
    assert found.moved == ((host.path("elsewhere/versions/1/bun"), host.path("usr/local/bin/bun")),)
    assert found.links == ()


def test_a_program_of_a_node_package_is_found_by_the_name_of_its_link(host: Host) -> None:
    host.program("elsewhere/node_modules/bun/bin/bun.exe")
    host.link("elsewhere/node_modules/.bin/bun", "../bun/bin/bun.exe")
    host.facts = replace(host.facts, search_path=(host.path("elsewhere/node_modules/.bin"),))
    found = host.plan("bun")
    real = host.path("elsewhere/node_modules/bun/bin/bun.exe")
    assert (host.path("usr/local/bin/bun"), real) in found.links
    assert found.dirs == (host.path("elsewhere/node_modules/bun"),)
    assert found.path_dirs == (host.path("elsewhere/node_modules/bun/bin"),)


def test_two_programs_cannot_have_one_name(host: Host) -> None:
    host.program("opt/a/tool")
    host.program("opt/b/tool")
    search = programs._Search(host.facts, (), {"tool": host.path("opt/a/tool")}, "/")
    search.add("tool")
    search.runtimes["tool"] = host.path("opt/b/tool")
    with pytest.raises(PolicyConflict, match="usr/local/bin/tool"):
        search.add("tool")


def test_a_runtime_named_in_the_configuration_wins(host: Host) -> None:
    host.program("usr/bin/lua1")
    host.program("opt/lua/lua1")
    found = host.plan("lua1", runtimes=(("lua1", host.path("opt/lua/lua1")),))
    assert found.moved == ((host.path("opt/lua/lua1"), host.path("usr/local/bin/lua1")),)
    with pytest.raises(ProgramMissing, match=r"config\.toml"):
        host.plan("lua1", runtimes=(("lua1", host.path("opt/none")),))


def test_a_runtime_that_is_or_links_to_a_base_program_is_found_under_its_name(host: Host) -> None:
    shown = host.path("usr/local/bin/newsh")
    link = host.link("opt/bin/newsh", "/usr/bin/sh")
    far = host.link("opt/bin/far", link)
    for named in ("/usr/bin/sh", "/bin/sh", link, far):
        found = host.plan("env", "newsh", "-c", "true", runtimes=(("newsh", named),))
        assert found.links == ((shown, "/usr/bin/sh"),), named
        assert (found.files, found.moved) == ((), ())
    # Under the name that every cage has, nothing needs to be shown.
    assert host.plan("sh", runtimes=(("sh", link),)).links == ()


def test_a_runtime_of_the_system_under_another_name_is_found_under_its_name(host: Host) -> None:
    program = host.program("usr/bin/lua5.4")
    for named in (program, host.link("opt/bin/lua", program)):
        found = host.plan("lua1", runtimes=(("lua1", named),))
        assert found.files == (program,)
        assert (host.path("usr/local/bin/lua1"), program) in found.links


def test_a_python_of_its_own_is_shown_where_it_lies(host: Host) -> None:
    host.program("opt/py/bin/python3.11")
    host.link("opt/py/bin/python3", "python3.11")
    host.link("opt/py/bin/python", "python3")
    (host.root / "opt/py/lib/python3.11").mkdir(parents=True)
    found = host.plan(host.path("opt/py/bin/python3"), "main.py")
    assert found.files == (host.path("opt/py/bin/python3.11"),)
    assert found.dirs == (host.path("opt/py/lib"),)
    assert found.path_dirs == (host.path("opt/py/bin"),)
    assert (host.path("opt/py/bin/python"), "python3") in found.links


def test_a_virtual_environment_brings_itself_and_its_base(host: Host) -> None:
    host.program("opt/py/bin/python3.11")
    (host.root / "opt/py/lib/python3.11").mkdir(parents=True)
    host.link("venv/bin/python", host.path("opt/py/bin/python3.11"))
    (host.root / "venv/pyvenv.cfg").write_text("home = x", encoding="utf-8")
    found = host.plan(host.path("venv/bin/python"))
    assert found.dirs == (host.path("opt/py/lib"), host.path("venv"))
    assert found.path_dirs[0] == host.path("venv/bin")
    granted = host.plan(host.path("venv/bin/python"), visible=(host.path("venv"),))
    assert granted.dirs == (host.path("opt/py/lib"),)


def test_a_shim_leads_to_the_program_behind_it(host: Host) -> None:
    host.program("elsewhere/shims/node9", "#!/usr/bin/env bash\n")
    host.program("elsewhere/versions/9.1/bin/node9")
    host.program("elsewhere/versions/9.2/bin/node9")
    (host.root / "elsewhere/version").write_text("9.1\n", encoding="utf-8")
    host.facts = replace(host.facts, search_path=(host.path("elsewhere/shims"),))
    assert host.plan("node9").moved[0][0] == host.path("elsewhere/versions/9.1/bin/node9")
    (host.root / "elsewhere/version").unlink()
    assert host.plan("node9").moved[0][0] == host.path("elsewhere/versions/9.2/bin/node9")
    host.program("elsewhere/shims/lost", "#!/usr/bin/env bash\n")
    with pytest.raises(ProgramMissing, match="shim"):
        host.plan("lost")


def test_a_packaged_script_brings_its_package(host: Host) -> None:
    host.program("usr/bin/node1")
    script = "usr/lib/node_modules/npm/bin/npm-cli.js"
    host.program(script, f"#!{host.path('usr/bin/node1')}\n")
    host.link("usr/bin/npm", "../lib/node_modules/npm/bin/npm-cli.js")
    found = host.plan("npm")
    assert host.path("usr/lib/node_modules/npm") in found.dirs
    assert host.path("usr/bin/node1") in found.files


def test_path_is_exact_and_grows_only_at_its_end(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "PATH_DIRS", ("/usr/bin", "/usr/local/bin"))
    assert ProgramPlan().path == "/usr/bin:/usr/local/bin"
    assert ProgramPlan(path_dirs=("/opt/py/bin",)).path == "/usr/bin:/usr/local/bin:/opt/py/bin"


def test_a_plan_notices_that_a_program_changed(host: Host, file_clock: FileClock) -> None:
    host.program("usr/bin/lua1")
    assert not host.plan("lua1").still_true(), "it may change in the same moment"
    file_clock.settle()
    found = host.plan("lua1")
    assert found.still_true()
    host.program("usr/bin/lua1", ELF + "upgraded")
    assert not found.still_true()
    (host.root / "usr/bin/lua1").unlink()
    assert not found.still_true()
