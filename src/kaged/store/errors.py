"""What can go wrong with the store, as errors with a code and a way out."""

from __future__ import annotations

from typing import ClassVar

from kaged.base import KagedError


class StoreError(KagedError):
    """The database refused something that no other class names; a bug in a query of ours."""

    code: ClassVar[str] = "store_error"


class StoreUnavailable(StoreError):
    """The database cannot be used now: disk full, read-only, no permission, locked, closed.

    Nothing was written. Works again by itself once the cause is gone.
    """

    code: ClassVar[str] = "store_unavailable"


class StoreCorrupt(StoreError):
    """The database file is damaged. It was left exactly as it is."""

    code: ClassVar[str] = "store_corrupt"


class StoreNewer(StoreError):
    """The database was written by a newer kaged and is not touched by this one."""

    code: ClassVar[str] = "store_newer_schema"


class StoreForeign(StoreError):
    """There is a database, but not one of ours."""

    code: ClassVar[str] = "store_foreign"


class StoreMigrationFailed(StoreError):
    """The database could not be brought to the newest schema; it is as it was before."""

    code: ClassVar[str] = "store_migration_failed"


class StoreConflict(StoreError):
    """A row is in the way: same key, or a reference to something that is gone."""

    code: ClassVar[str] = "store_conflict"


class StoreTimeout(StoreError):
    """A query took too long and was stopped."""

    code: ClassVar[str] = "store_timeout"


class StoreUrlInvalid(StoreError):
    """The storage URL names no database that this kaged can open."""

    code: ClassVar[str] = "store_url_invalid"


class CursorInvalid(StoreError):
    """The page cursor is not one that a page of ours ended with."""

    code: ClassVar[str] = "invalid_cursor"
