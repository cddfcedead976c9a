"""Completions judged, ours or anybody's: grades, rewards and metrics; no torch."""
