"""Credentials at the network gate: `CredentialGate` opens one `CageGate` for each cage."""

from kaged.credentials.cage_gate import CageGate, CredentialGate, ValueOf
from kaged.credentials.events import RequestEvent

__all__ = ["CageGate", "CredentialGate", "RequestEvent", "ValueOf"]
