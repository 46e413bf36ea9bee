"""Requirements as data: the marker, the rows and the two-way check."""

from requirements.marker import requirement

__all__ = ["requirement"]
