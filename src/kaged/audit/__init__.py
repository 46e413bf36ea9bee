"""What happened, for good: `AuditEvent`, `AuditLog`, `AuditRow`, `AuditSink` and `ChainKey`.

An event is checked against its declaration, copied, queued, redacted and sealed into a hash chain
with the others that wait, and handed to a sink in one commit:

    record → Pending → AuditPump (queue, one thread) → Redactor → ChainWriter (seal) → AuditSink
"""

from kaged.audit.chain import Anchor, ChainHead, ChainKey
from kaged.audit.errors import (
    AuditEventInvalid,
    AuditKeyInvalid,
    AuditUnavailable,
    ChainMoved,
)
from kaged.audit.event import AuditEvent
from kaged.audit.events import EVENT_TYPES, EventType
from kaged.audit.export import ExportWriter, verify_export
from kaged.audit.filter import AuditFilter
from kaged.audit.keyfile import HeadFile, load_key, open_key
from kaged.audit.log import AuditHealth, AuditLog
from kaged.audit.pump import AuditLimits
from kaged.audit.redact import Redactor
from kaged.audit.row import AuditRow
from kaged.audit.sink import AuditSink
from kaged.audit.verify import ChainVerifier, Finding, FindingKind, VerifyReport, verify_chain

__all__ = [
    "EVENT_TYPES",
    "Anchor",
    "AuditEvent",
    "AuditEventInvalid",
    "AuditFilter",
    "AuditHealth",
    "AuditKeyInvalid",
    "AuditLimits",
    "AuditLog",
    "AuditRow",
    "AuditSink",
    "AuditUnavailable",
    "ChainHead",
    "ChainKey",
    "ChainMoved",
    "ChainVerifier",
    "EventType",
    "ExportWriter",
    "Finding",
    "FindingKind",
    "HeadFile",
    "Redactor",
    "VerifyReport",
    "load_key",
    "open_key",
    "verify_chain",
    "verify_export",
]
