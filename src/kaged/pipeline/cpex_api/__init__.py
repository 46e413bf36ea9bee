"""What stands behind the published names: `manager`, `environment`, `models`, `spans`, `utils`."""
