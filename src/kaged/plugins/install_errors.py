"""What can go wrong between a plugin's source and the store, from the caller's side."""

from __future__ import annotations

from kaged.base import KagedError


class TreeRefused(KagedError):
    """A directory holds something that is never copied into the store: `path` says what."""

    code = "plugin_tree_refused"
