"""What can go wrong with the audit log, as errors with a code."""

from __future__ import annotations

from kaged.base import KagedError


class AuditEventInvalid(KagedError):
    """An event is not declared, or not made with its declared fields: a bug in the caller."""

    code = "audit_event_invalid"


class AuditUnavailable(KagedError):
    """The event could not be made durable, so the action that it gates must not happen."""

    code = "audit_unavailable"


class AuditKeyInvalid(KagedError):
    """The key file is missing for an existing chain, readable by others, or no key."""

    code = "audit_key_invalid"


class ChainMoved(KagedError):
    """The rows do not continue the stored chain: its head is another one than the writer thinks.

    Raised by a sink's `append`; nothing of the batch was written.
    """

    code = "audit_chain_moved"
