"""Hostile answers in the main thread, another thread, a process pool and an event loop."""

import asyncio
import concurrent.futures
import multiprocessing
import resource
import time
from typing import Any

from lib.verifier.tree import forget
from tests.bench.verifier.graders import GRADERS

MEMORY_BYTES = 512 * 1024 * 1024

Row = dict[str, Any]
Graded = tuple[float, list[str]]


def in_main_thread(rows: list[Row]) -> Graded:
    """Return the slowest row's seconds, and the rows graded wrong."""
    slowest, wrong = 0.0, []
    for row in rows:
        began = time.perf_counter()
        verdict = GRADERS["reckon"](row["pred"], row["gold"], row["form"], "")
        slowest = max(slowest, time.perf_counter() - began)
        if row["expected"] is not None and verdict != row["expected"]:
            wrong.append(row["id"])
    return slowest, wrong


def in_another_thread(rows: list[Row]) -> Graded:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(in_main_thread, rows).result()


def in_a_pool(rows: list[Row]) -> Graded:
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(in_main_thread, rows).result()


def in_an_event_loop(rows: list[Row]) -> Graded:
    async def graded() -> Graded:
        return in_main_thread(rows)

    return asyncio.run(graded())


WAYS = {
    "main thread": in_main_thread,
    "other thread": in_another_thread,
    "process pool": in_a_pool,
    "event loop": in_an_event_loop,
}


def hostile(rows: list[Row]) -> dict[str, Any]:
    """Grade every hostile row in each way of calling, in 512 MB; `slowest_s` is wall time."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    measured: dict[str, Any] = {"n": len(rows)}
    for way, graded in WAYS.items():
        forget()
        slowest, wrong = graded(rows)
        measured[way] = {"slowest_s": round(slowest, 3), "wrong": wrong}
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    measured["memory"] = {"peak_mb": peak_mb}
    return measured
