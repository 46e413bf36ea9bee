"""What operators are told of policies while no daemon runs."""

from __future__ import annotations

import json
from pathlib import Path

from fakes.running_daemon import ANY_PORT, kaged, make_home

POLICIES = """
from kaged.pipeline import Plugin

class Refuses(Plugin):
    def __init__(self, config):
        raise RuntimeError("I will not")

    async def tool_pre_invoke(self, payload, context): ...
"""
FAULTY = """\
plugin_dirs: [mine]
plugins:
  - name: guard
    kind: stubborn_policies.Refuses
    hooks: [tool_pre_invoke]
    capabilities: [read_header]
  - name: stubborn
    kind: stubborn_policies.Refuses
    hooks: [tool_pre_invoke]
"""


def test_doctor_without_a_daemon_reads_the_file_and_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "stubborn_policies.py").write_text(POLICIES, encoding="utf-8")
    file = tmp_path / "policies.yaml"
    file.write_text(FAULTY, encoding="utf-8")
    home = make_home(tmp_path / "h", f'{ANY_PORT}[pipeline]\nfile = "{file}"\n')
    done = kaged(home, "doctor", "--json")
    (seen,) = [one for one in json.loads(done.stdout)["rows"] if one["id"] == "pipeline"]
    assert seen["status"] == "fail"
    assert "read_header" in seen["cause"]
    assert "I will not" not in seen["cause"]
