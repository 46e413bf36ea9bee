"""The event stream: `EventHub` numbers everything that happens and keeps the latest of it.

Each event has a sequence number (`seq`) of the hub's run (`epoch`); a reader resumes after the
last number that it has seen, and is told which events it can no longer get.
"""

from kaged.events.hub import AskedOf, Event, EventHub, Gap

__all__ = ["AskedOf", "Event", "EventHub", "Gap"]
