"""The report: Markdown, figures and one HTML page from what the stages wrote, and nothing else.

The same files give the same bytes: no clock, no path, no network, no randomness.
"""
