"""Let a checkpoint answer benchmarks, greedily and by sampling, and grade every completion.

Prompts of like length share a chunk, so that little of a batch is padding. A chunk is on the disk
as soon as it is graded (`lib.evaluation.stream`); an engine's draws depend on seed and prompt, not
on the chunks before.
"""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lib.engines.base import Engine, Sampling, encode
from lib.evaluation.grading import Grading, graded_rows
from lib.evaluation.progress import Progress
from lib.evaluation.stream import Stream
from lib.params.measuring import Decoding, Evaluate
from lib.problems.schema import Problem
from lib.prompts import Message, PromptFormat
from lib.verifier import counters

GREEDY, SAMPLED = "greedy", "sampled"

CHUNK = {"vllm": 16, "vllm-server": 16}
"""Batches per chunk by engine, 1 for those not named: one that batches by itself wants many."""

FAULTS = ("timeouts", "worker_failures", "failures")
"""What is counted of the verifier; its other counts depend on where a run was interrupted."""


def samplings(decoding: Decoding, *, prompt_format: PromptFormat, seed: int) -> dict[str, Sampling]:
    """The ways in which a benchmark is answered."""
    common: dict[str, Any] = {
        "max_new_tokens": decoding.max_new_tokens,
        "stop_strings": prompt_format.stop_strings,
        "seed": seed,
    }
    chosen = {}
    if decoding.greedy:
        chosen[GREEDY] = Sampling(num_completions=1, temperature=0.0, **common)
    if decoding.num_samples:
        chosen[SAMPLED] = Sampling(
            num_completions=decoding.num_samples,
            temperature=decoding.temperature,
            top_p=decoding.top_p,
            **common,
        )
    return chosen


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """One benchmark in one mode, cut into chunks.

    Attributes:
        prompts: one conversation per problem.
        token_ids: the same as the model reads them.
        chunks: places of problems; together, every place once.
    """

    benchmark: str
    mode: str
    sampling: Sampling
    problems: Sequence[Problem]
    prompts: Sequence[Sequence[Message]]
    token_ids: Sequence[Sequence[int]]
    chunks: Sequence[Sequence[int]]

    @property
    def num_completions(self) -> int:
        return len(self.problems) * self.sampling.num_completions

    def stream(self, folder: Path) -> Stream:
        """Its rows in `folder`."""
        sizes = [len(chunk) * self.sampling.num_completions for chunk in self.chunks]
        return Stream(folder / f"{self.benchmark}.{self.mode}.jsonl", sizes)


def tasks_of(
    engine: Engine,
    benchmarks: Mapping[str, Sequence[Problem]],
    *,
    system: str,
    evaluate: Evaluate,
    prompt_format: PromptFormat,
    seed: int,
    batches_per_chunk: int = 1,
) -> Iterator[Task]:
    """What there is to do, ordered by benchmark and mode."""
    for benchmark, problems in benchmarks.items():
        prompts = [prompt_format.prompt(p.problem, system=system) for p in problems]
        token_ids = encode(engine.tokenizer, prompts)
        order = sorted(range(len(problems)), key=lambda place: len(token_ids[place]))
        decoding = evaluate.decoding(benchmark)
        for mode, sampling in samplings(decoding, prompt_format=prompt_format, seed=seed).items():
            sequences = batches_per_chunk * evaluate.batch_size
            size = max(1, sequences // sampling.num_completions)
            yield Task(
                benchmark=benchmark,
                mode=mode,
                sampling=sampling,
                problems=problems,
                prompts=prompts,
                token_ids=token_ids,
                chunks=[order[start : start + size] for start in range(0, len(order), size)],
            )


def answer_tasks(
    engine: Engine,
    tasks: Sequence[Task],
    *,
    grading: Grading,
    folder: Path,
    label: str = "",
) -> collections.Counter[str]:
    """Answer and grade what is not yet in `folder`; returns what the verifier counted, in all."""
    streams = [task.stream(folder) for task in tasks]
    total = sum(task.num_completions for task in tasks)
    done = sum(stream.num_rows for stream in streams)
    counted: collections.Counter[str] = collections.Counter()
    with Progress(total, done=done, label=label) as progress:
        for task, stream in zip(tasks, streams, strict=True):
            for number in range(stream.num_done, len(task.chunks)):
                rows, counts = _answer_chunk(engine, task, number, grading=grading)
                stream.append(rows, counts)
                progress.made(len(rows), sum(row["num_tokens"] for row in rows))
            counted.update(stream.counts())
    return counted


def _answer_chunk(
    engine: Engine, task: Task, number: int, *, grading: Grading
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    chunk = task.chunks[number]
    prompts = [task.token_ids[place] for place in chunk]
    completions = engine.generate(prompts, task.sampling)
    before = counters()
    rows = [
        {"benchmark": task.benchmark, "mode": task.mode, "place": place, **row}
        for place, drawn in zip(chunk, completions, strict=True)
        for row in graded_rows(task.problems[place], task.prompts[place], drawn, grading=grading)
    ]
    after = counters()
    return rows, {name: after[name] - before[name] for name in FAULTS}


def ordered_rows(tasks: Sequence[Task], folder: Path) -> Iterator[dict[str, Any]]:
    """One row per completion, ordered by benchmark, mode, problem and draw."""
    for task in tasks:
        yield from task.stream(folder).rows()
