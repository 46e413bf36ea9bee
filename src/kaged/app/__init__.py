"""The composition root: `run_daemon`, `build` (wiring), `Startup`, `start_subsystems`."""
