"""Lua scripts: `ScriptRuntime`, `Script`, `HostCalls`, `Dialogs`, `ScriptFolder`.

folder → runtime → script → caged worker (prelude.lua) → calls (files, web, programs, moves, store)
"""
