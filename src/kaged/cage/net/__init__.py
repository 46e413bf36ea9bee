"""The network gate: `NetPlan` (what a cage is shown), `NetGate`, `NetSession`, `NetEvent`."""

from kaged.cage.net.dial import Resolver, SystemResolver
from kaged.cage.net.events import AuditSink, NetEvent
from kaged.cage.net.gate import NetGate
from kaged.cage.net.limits import GateLimits
from kaged.cage.net.namespace import NamespaceHelper, NamespaceUnavailable
from kaged.cage.net.plan import NetFacts, NetPlan, NetPlanTooLarge, plan_network
from kaged.cage.net.probe import NetProbe, facts_from, probe_network
from kaged.cage.net.session import LoopbackService, NetSession, OnConnect

__all__ = [
    "AuditSink",
    "GateLimits",
    "LoopbackService",
    "NamespaceHelper",
    "NamespaceUnavailable",
    "NetEvent",
    "NetFacts",
    "NetGate",
    "NetPlan",
    "NetPlanTooLarge",
    "NetProbe",
    "NetSession",
    "OnConnect",
    "Resolver",
    "SystemResolver",
    "facts_from",
    "plan_network",
    "probe_network",
]
