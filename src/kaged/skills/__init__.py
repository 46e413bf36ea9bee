"""Agent Skills: folders with a `SKILL.md`, of the operator and of projects, offered to agents.

folder (read without following links) → library (found, named, refused) → consent (inbox, digest)
→ skill_service (what an agent may load and run) → copies (the exact files that a cage sees)
"""
