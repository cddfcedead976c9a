"""Export of a checkpoint: one complete model with its card, verified and ready for the Hub."""

BATCH = 16
"""Prompts per batch; both sides of a comparison use the same, so that they round alike."""

MOST_TOKENS = 256
"""Tokens of each completion that are compared; bounds the time of verifying."""
