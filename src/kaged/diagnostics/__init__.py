"""The daemon about itself: `Gates` and `examine` (doctor), `DaemonState`, `CageViews`."""
