"""Export of a checkpoint: one complete model with its card, verified and ready for the Hub."""

BATCH = 16
"""Prompts per batch while the checkpoint generates the completions to compare."""

MOST_TOKENS = 256
"""Tokens of each completion that are compared; bounds the time of verifying."""
