"""Export: a model that leaves the pipeline complete and checked."""

BATCH = 16
"""Prompts at a time; both sides of a comparison use the same, so that they round alike."""

MOST_TOKENS = 256
"""Of each completion that the proof reads along."""
