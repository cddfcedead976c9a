"""Evaluation: completions of held-out problems by any model."""
