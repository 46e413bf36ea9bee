"""What can only be seen from another process or as another user."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kaged.config import init_project


def run(code: str, *args: str) -> str:
    """Run Python code in a fresh process and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_loads_no_parser_and_no_validator() -> None:
    loaded = run(
        """
        import sys
        import kaged.config
        from kaged.config import Locations
        Locations.from_env({"HOME": "/home/me"})
        print(sorted(set(sys.modules) & {"ruamel.yaml", "tomlkit", "jsonschema_rs", "pydantic",
                                         "kaged.config.project", "kaged.config.daemonconfig"}))
        """
    )
    assert loaded == "[]"


def test_reading_the_operators_files_needs_no_yaml_and_no_editor(tmp_path: Path) -> None:
    loaded = run(
        """
        import sys
        from pathlib import Path
        from kaged.config import load_daemon_config, load_local_config
        load_daemon_config(Path(sys.argv[1], "config.toml"), {})
        load_local_config(Path(sys.argv[1], "local.toml"), {})
        print(sorted(set(sys.modules) & {"ruamel.yaml", "tomlkit", "jsonschema_rs", "pydantic"}))
        """,
        str(tmp_path),
    )
    assert loaded == "[]"


def test_every_public_name_can_be_imported() -> None:
    run(
        """
        import kaged.config
        for name in kaged.config.__all__:
            assert getattr(kaged.config, name) is not None, name
        try:
            kaged.config.nothing
        except AttributeError as error:
            assert "nothing" in str(error)
        else:
            raise SystemExit("a missing name was found")
        """
    )


@pytest.mark.parametrize("name", ["describe", "schemas"])
def test_a_function_keeps_its_name_when_its_module_is_imported(name: str) -> None:
    run(
        f"""
        import kaged.config.{name}
        from kaged.config.{name} import {name} as by_module
        from kaged.config import {name} as by_package
        assert by_module is by_package
        import kaged.config
        assert kaged.config.{name} is by_module
        """
    )


def test_a_fifo_in_place_of_a_file_does_not_hang_a_loader(tmp_path: Path) -> None:
    init_project(tmp_path)
    file = tmp_path / ".kaged" / "project.yaml"
    file.unlink()
    os.mkfifo(file)
    os.mkfifo(tmp_path / "config.toml")
    printed = run(
        """
        import sys
        from pathlib import Path
        from kaged.config import ConfigFileInvalid, load_daemon_config, load_project
        for load in (lambda: load_project(sys.argv[1]),
                     lambda: load_daemon_config(Path(sys.argv[1], "config.toml"), {})):
            try:
                load()
            except ConfigFileInvalid as error:
                print(error.problems[0].code)
        """,
        str(tmp_path),
    )
    assert printed.split() == ["file_wrong_kind", "file_wrong_kind"]


@pytest.mark.needs_root
def test_an_unreadable_file_is_a_problem_for_a_plain_user(tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents):
        if parent == Path("/tmp"):
            break
        parent.chmod(0o755)
    secret = tmp_path / "config.toml"
    secret.write_text("[daemon]\n", encoding="utf-8")
    secret.chmod(0o600)
    foreign = tmp_path / "foreign.toml"
    foreign.write_text("[daemon]\n", encoding="utf-8")
    os.chown(foreign, 4711, 4711)
    foreign.chmod(0o644)
    printed = run(
        """
        import os, sys
        from pathlib import Path
        from kaged.config import ConfigFileInvalid, load_daemon_config
        from kaged.config import daemonconfig, problems  # before the rights are dropped
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        for name in ("config.toml", "foreign.toml"):
            try:
                load_daemon_config(Path(sys.argv[1], name), {})
            except ConfigFileInvalid as error:
                print(error.problems[0].code)
        """,
        str(tmp_path),
    )
    assert printed.split() == ["file_unreadable", "file_owner"]


def test_two_processes_that_edit_one_file_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("# kept\n[plugins]\nenabled = []\n", encoding="utf-8")
    path.chmod(0o640)
    code = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from kaged.base import KagedError
        from kaged.config import edit_toml
        file, who = Path(sys.argv[1]), sys.argv[2]
        for number in range(20):
            def change(edit):
                path = ("plugins", "enabled")
                edit.set(path, [*edit.get(path), f"{who}{number}"])
            while True:
                try:
                    edit_toml(file, change)
                    break
                except KagedError as error:
                    if error.code not in ("config_busy", "config_changed"):
                        raise
        """
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(path), who]) for who in ("a", "b", "c")
    ]
    assert [process.wait(timeout=100) for process in running] == [0, 0, 0]
    import tomllib

    data = tomllib.loads(path.read_text(encoding="utf-8"))
    expected = {f"{who}{number}" for who in "abc" for number in range(20)}
    assert sorted(data["plugins"]["enabled"]) == sorted(expected)
    assert path.read_text(encoding="utf-8").startswith("# kept\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [item.name for item in tmp_path.iterdir()] == ["config.toml"]


def test_a_process_killed_in_the_middle_of_a_write_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "project.yaml"
    path.write_text("a: 1 # one\n", encoding="utf-8")
    code = textwrap.dedent(
        """
        import os, sys
        from pathlib import Path
        from kaged.config import edit_yaml
        Path.replace = lambda *_: os._exit(9)
        edit_yaml(Path(sys.argv[1]), lambda edit: edit.set(("a",), 2))
        """
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], timeout=60, check=False)
    assert done.returncode == 9
    assert path.read_text(encoding="utf-8") == "a: 1 # one\n"
    # The leftover does not disturb the next edit.
    run(
        """
        import sys
        from pathlib import Path
        from kaged.config import edit_yaml
        edit_yaml(Path(sys.argv[1]), lambda edit: edit.set(("a",), 3))
        """,
        str(path),
    )
    assert path.read_text(encoding="utf-8") == "a: 3 # one\n"


def test_a_project_made_by_init_is_described_as_json(tmp_path: Path) -> None:
    init_project(tmp_path)
    printed = run(
        """
        import json, sys
        from pathlib import Path
        from kaged.config import describe, load_daemon_config, load_local_config, load_project
        from kaged.config import resolve_agents
        tree = resolve_agents(load_project(sys.argv[1]),
                              load_daemon_config(Path(sys.argv[1], "none"), {}),
                              load_local_config(Path(sys.argv[1], "none"), {}))
        print(json.dumps(describe(tree)))
        """,
        str(tmp_path),
    )
    described = json.loads(printed)
    assert [agent["path"] for agent in described["agents"]] == ["primary"]
