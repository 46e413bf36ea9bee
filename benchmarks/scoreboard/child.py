"""One benchmark in a process of its own: `python -m scoreboard.child <file> <where to write>`."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

from scoreboard.curve import Curve
from scoreboard.peers import PeerMissing
from scoreboard.row import Row, peer_missing


def main(file: str, out: str) -> None:
    """Run the file's `run()` and write what it gives."""
    try:
        found: list[Row | Curve] = runpy.run_path(file)["run"]()
    except PeerMissing as error:
        name = Path(file).stem.removeprefix("bench_")
        found = [peer_missing(f"everything of bench_{name}", "its peer", str(error))]
    data = {
        "rows": [one.as_json() for one in found if isinstance(one, Row)],
        "curves": [one.as_json() for one in found if isinstance(one, Curve)],
    }
    Path(out).write_text(json.dumps(data), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
