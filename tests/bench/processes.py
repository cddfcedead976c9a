"""A function in a process of its own."""

import concurrent.futures
import multiprocessing
from collections.abc import Callable
from typing import Any


def in_a_process(function: Callable[..., Any], *arguments: Any, method: str = "spawn") -> Any:
    """Call a function in a fresh process, or in a fork of this one; return its result."""
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()
