"""The report: Markdown, figures and one HTML page from the stages' files only.

The same files give the same bytes: no clock, no network, no randomness.
"""
