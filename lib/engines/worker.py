"""Loaded by vLLM into each worker process of the server (`--worker-extension-cls`)."""

from lib.engines.compat import temper_log_probs

temper_log_probs()


class Extension:
    """Adds nothing to the worker: that this module is imported there is what it is for."""
