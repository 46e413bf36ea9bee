"""Service capabilities: acting on people's accounts without their credentials.

Nouns: `CapabilityProvider` and what it defines, `CapabilityRpc` (params to arguments), the manager
(token, gates, account, provider, hardened result), auth flows, accounts, the vault.
"""
