"""The common parts of all training phases."""
