"""`@requirement("PH-WIRE-07")`: this test would fail if that row were broken.

The level says how it shows that: `unit` (the part alone) in `tests/unit`, `contract` (parts put
together inside the test's process) elsewhere, and `whole` where the mark is `@whole(…)`.
"""

from __future__ import annotations

import pytest


def requirement(*ids: str) -> pytest.MarkDecorator:
    """Mark a test as a proof of these rows of docs/requirements, by parts of the product."""
    return pytest.mark.requirement(*ids)


def whole(*ids: str) -> pytest.MarkDecorator:
    """Mark a test as a proof of these rows by the product as people use it.

    The daemon is a process of its own with default settings; the test reaches it by commands,
    HTTP, MCP or files only, imports nothing of `kaged`, and asserts what can be seen from outside.
    `requirements.levels` refuses a mark on a test that is not like that.
    """
    return pytest.mark.requirement(*ids, level="whole")


__all__ = ["requirement", "whole"]
