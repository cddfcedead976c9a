"""Evaluation: completions of held-out problems, graded one by one, and what they add up to."""
