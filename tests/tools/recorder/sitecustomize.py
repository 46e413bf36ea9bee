"""Write down, in order, which of the named functions a process enters.

Python imports this by itself where its folder is on PYTHONPATH. `KAGED_RECORD` names the file with
the functions, one dotted path a line, and `KAGED_RECORDED` the file that gets them as they are
entered; several processes may write to it.
"""

import os
import sys
import threading
from types import CodeType, FrameType


def _install(wanted: list[str], target: int) -> None:
    # By qualified name and the end of the file's path: nothing of the product is imported here.
    table: dict[str, list[tuple[str, str]]] = {}
    for path in wanted:
        parts = path.split(".")
        for cut in range(len(parts) - 1, 0, -1):
            module = "/".join(parts[:cut]) + ".py"
            table.setdefault(".".join(parts[cut:]), []).append((module, path))
    known: dict[CodeType, str] = {}

    def record(frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        path = known.get(code)
        if path is None:
            found = table.get(code.co_qualname, ())
            ends = [name for module, name in found if code.co_filename.endswith("/" + module)]
            path = known[code] = ends[0] if ends else ""
        if path:
            os.write(target, (path + "\n").encode())

    threading.setprofile(record)
    sys.setprofile(record)


if "KAGED_RECORD" in os.environ:
    with open(os.environ["KAGED_RECORD"], encoding="utf-8") as names:  # noqa: PTH123 - no imports
        _install(
            names.read().split(),
            os.open(os.environ["KAGED_RECORDED"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        )
