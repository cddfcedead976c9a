"""Grades, rewards and metrics of completions from any source; no torch."""
