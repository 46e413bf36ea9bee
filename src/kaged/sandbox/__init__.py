"""`ash-sb`, the command of caged agents and skills: `arguments`, `channel`, `commands`, `lines`.

Runs inside a cage on the standard library alone and starts as fast as Python does: nothing here
imports another package of ours, typing, dataclasses or argparse. It carries the caller's token
to the host and knows no credential.
"""

__all__: list[str] = []
