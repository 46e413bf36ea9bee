"""What crosses a trust line: framers, `messages`, the `correlator`, error numbers, signed tokens.

The modules, bottom up; guests in a cage may import all of them but `fastjson`:

- framing: `lines` (plugins), `content_length` (LSP, DAP), `length_prefixed` (sandbox socket),
  with the shared names in `framing`;
- JSON: `strictjson` (standard library, for guests) and `fastjson` (msgspec, for the host); both
  refuse the same input;
- JSON-RPC: `messages` (values), `correlator` (ids and matching), `errors` (codes and numbers),
  `methods` (names), `context` (the `_context` of a call);
- accounts: `token_keys` and `tokens` (signed context tokens), `envelope` and `bridge_methods`
  (bridge-v1).

Nothing here does I/O, and importing the package imports none of its modules, so a guest pays for
what it uses and never needs a third-party package.
"""

__all__: list[str] = []
