"""What `ash-sb` talks to: `SandboxRpc` (one cage's conversation), `SandboxMethods` (who answers).

frame → request (messages) → method known → the cage's own token → methods → answer
"""

from kaged.serve.sandbox_rpc.conversation import (
    ForeignToken,
    RpcLimits,
    SandboxMethods,
    SandboxRpc,
)

__all__ = ["ForeignToken", "RpcLimits", "SandboxMethods", "SandboxRpc"]
