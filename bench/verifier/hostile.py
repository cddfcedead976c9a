"""Hostile answers in the main thread, another thread, a process pool and an event loop."""

import asyncio
import concurrent.futures
import resource
import time
from collections.abc import Callable
from typing import Any

from bench.processes import in_a_process
from bench.verifier.graders import GRADERS
from reckon_verifier.tree import forget

MEMORY_BYTES = 512 * 1024 * 1024

Row = dict[str, Any]


def slowest_and_wrong(rows: list[Row]) -> tuple[float, list[str]]:
    """Return the slowest row's seconds, and the rows graded wrong."""
    slowest, wrong = 0.0, []
    for row in rows:
        began = time.perf_counter()
        verdict = GRADERS["reckon"](row["pred"], row["gold"], row["form"], "")
        slowest = max(slowest, time.perf_counter() - began)
        if row["expected"] is not None and verdict != row["expected"]:
            wrong.append(row["id"])
    return slowest, wrong


def in_another_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result()


def in_an_event_loop(function: Callable[..., Any], *arguments: Any) -> Any:
    async def call() -> Any:
        return function(*arguments)

    return asyncio.run(call())


WAYS: dict[str, Callable[..., Any]] = {
    "main thread": lambda function, *arguments: function(*arguments),
    "other thread": in_another_thread,
    "process pool": in_a_process,
    "event loop": in_an_event_loop,
}
"""Ways to call a function with its arguments."""


def hostile(rows: list[Row]) -> dict[str, Any]:
    """Grade every hostile row in each way of calling, in 512 MB; `slowest_s` is wall time."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    measured: dict[str, Any] = {"n": len(rows)}
    for way, call in WAYS.items():
        forget()
        slowest, wrong = call(slowest_and_wrong, rows)
        measured[way] = {"slowest_s": round(slowest, 3), "wrong": wrong}
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    measured["memory"] = {"peak_mb": peak_mb}
    return measured
