"""`@requirement("PH-WIRE-07")`: this test would fail if that row were broken."""

from __future__ import annotations

import pytest


def requirement(*ids: str) -> pytest.MarkDecorator:
    """Mark a test as the proof of these rows of docs/requirements."""
    return pytest.mark.requirement(*ids)


__all__ = ["requirement"]
