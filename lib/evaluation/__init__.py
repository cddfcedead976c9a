"""Completions of problems by any model, for evaluation, validation and preference pairs."""
