"""The cage: `CageRequest` in, `CageProcess` out; `Spawner`, `compile_cage`, `HostFacts`, `NetGate`.

grants, programs → compile → spawn (limits, seccomp, gate) → process → report
"""

from kaged.cage.errors import (
    CageError,
    CageStartFailed,
    CageUnavailable,
    GrantRefused,
    PolicyConflict,
    ProgramMissing,
    SpawnFailed,
    UnsafeArgument,
    WrongThread,
)
from kaged.cage.process import CageProcess, StopReport, StopStep
from kaged.cage.report import Cause, ExitReport
from kaged.cage.request import (
    CageKind,
    CageRequest,
    HostMount,
    Pipes,
    Programs,
    Pty,
    ShownFile,
    SpawnRequest,
    Uncaged,
    UncagedRequest,
)
from kaged.cage.settings import CageSettings
from kaged.cage.spawn import Spawner

__all__ = [
    "CageError",
    "CageKind",
    "CageProcess",
    "CageRequest",
    "CageSettings",
    "CageStartFailed",
    "CageUnavailable",
    "Cause",
    "ExitReport",
    "GrantRefused",
    "HostMount",
    "Pipes",
    "PolicyConflict",
    "ProgramMissing",
    "Programs",
    "Pty",
    "ShownFile",
    "SpawnFailed",
    "SpawnRequest",
    "Spawner",
    "StopReport",
    "StopStep",
    "Uncaged",
    "UncagedRequest",
    "UnsafeArgument",
    "WrongThread",
]
