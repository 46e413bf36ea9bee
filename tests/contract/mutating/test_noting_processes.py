"""What a process that tests start has run is noted for the test module that it served."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from requirements.rows import ROOT

# As the command server does it: loaded for one module, and a child does a command for the next.
SERVER = """
import atexit, json, os, sys
from pathlib import Path
from mutating import tracing

switch = Path(sys.argv[1])
tracing.started_here(str(switch))
sys.path.insert(0, json.loads(switch.read_text())["source"])
import made

def serve(module, work):
    told = json.loads(switch.read_text())
    switch.write_text(json.dumps({**told, "module": module}))
    child = os.fork()
    if child == 0:
        work()
        atexit._run_exitfuncs()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

serve("tests/one.py", made.first)
serve("tests/two.py", made.second)
os._exit(0)
"""

MADE = "def first():\n    return 1\n\n\ndef second():\n    return 2\n"


def test_what_a_forked_command_ran_is_noted_for_the_module_that_it_ran_for(tmp_path: Path) -> None:
    source, folder, switch = tmp_path / "source", tmp_path / "noted", tmp_path / "switch.json"
    for made in (source, folder):
        made.mkdir()
    (source / "made.py").write_text(MADE, encoding="utf-8")
    told = {"source": str(source), "folder": str(folder), "module": "tests/before.py"}
    switch.write_text(json.dumps(told), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", SERVER, str(switch)],
        env={"PYTHONPATH": str(ROOT / "scripts"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    noted = [json.loads(one.read_text(encoding="utf-8")) for one in folder.iterdir()]
    inside = {one["module"]: set(one["lines"]["made.py"]) & {2, 6} for one in noted}
    assert inside == {"tests/one.py": {2}, "tests/two.py": {6}}
