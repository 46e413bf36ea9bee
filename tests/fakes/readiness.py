"""Readiness for labs without projects to open: there are no guards to wait for."""

from __future__ import annotations


async def always_ready(_project_id: str | None) -> None:
    """Wait for nothing."""
