"""What can go wrong with the store, as errors with a code and a way out."""

from __future__ import annotations

from kaged.base import KagedError


class StoreError(KagedError):
    """The database refused something that no other class names; a bug in a query of ours."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The database cannot be used now: disk full, read-only, no permission, locked, closed.

    Nothing was written. Works again by itself once the cause is gone.
    """

    code = "store_unavailable"


class StoreCorrupt(StoreError):
    """The database file is damaged. It was left exactly as it is."""

    code = "store_corrupt"


class StoreConflict(StoreError):
    """A row is in the way: same key, or a reference to something that is gone."""

    code = "store_conflict"
