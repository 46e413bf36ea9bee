"""Cache directories for the spawners of tests, with the base programs in them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fakes.base_programs_stock import STOCK, USELESS
from kaged.cage.base_programs import build_base_programs


def stocked(cache_dir: Path) -> Path:
    """Return this cache directory, made if need be, with the base programs in it."""
    if USELESS:
        cache_dir.mkdir(parents=True, exist_ok=True)
    elif not STOCK.lend(cache_dir):
        with tempfile.TemporaryDirectory(prefix="kgd-first-") as folder:
            first = Path(folder) / "cache"
            build_base_programs(first)
            STOCK.keep(first)
        STOCK.lend(cache_dir)
    return cache_dir
