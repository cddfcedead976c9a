"""A function in a process of its own."""

import concurrent.futures
import multiprocessing
from collections.abc import Callable
from typing import Any


def in_a_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a fresh process; return its result."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()
