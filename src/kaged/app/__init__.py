"""The composition root: `run_daemon`, `build` (wiring), `InstanceLock`, `Projects`, `doctor`."""
