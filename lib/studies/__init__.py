"""Experiments as files: variants of the committed params, over seeds, with the claim they test."""
