"""Before a plugin runs: cut the extensions down to what it may see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kaged.pipeline.tiers import RESOLVED, resolve_rights
from kaged.pipeline.view import ExtensionsView, set_origin

if TYPE_CHECKING:
    from kaged.pipeline.slots import Extensions


def filter_extensions(
    extensions: Extensions | None, capabilities: frozenset[str]
) -> Extensions | None:
    """Return a new container that holds only what these capabilities show; None for None.

    Hidden slots are None, hidden sub-fields empty. Everything in the result is a read-only copy:
    nothing done to it reaches `extensions` or another view. Names that are no capabilities give
    nothing (they are refused when the configuration is loaded).
    """
    if extensions is None:
        return None
    view = _new(ExtensionsView)
    set_origin(view, (extensions, RESOLVED.get(capabilities) or resolve_rights(capabilities)))
    return view


_new = object.__new__
