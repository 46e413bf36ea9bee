"""The plugin host: `PluginSupervisor`, `Plugin`, `InstalledPlugin`, `PluginState`, hooks and roles.

supervisor → plugin (states, health, restart) → conversation (one process) → peer → cage
"""
