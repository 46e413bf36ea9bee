"""`kaged acp`: agents for editors that speak the Agent Client Protocol.

A program of its own between the editor's pipes and the daemon's interface: it has no rights that
the person at the editor has not, and decides nothing. `AcpAgent` answers the editor, a
`Conversation` is one session that it has open, `EventFeed` brings what happens there, `updates` and
`replay` put it into the protocol's words.
"""
