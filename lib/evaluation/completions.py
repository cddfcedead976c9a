"""Let a checkpoint answer benchmarks, greedily and by sampling; nothing is graded here.

Prompts of like length share a chunk, so that little of a batch is padding. A chunk is on the disk
as soon as it is generated (`lib.evaluation.stream`), and the random numbers depend on seed and
prompt, not on the chunks before: a run that was killed resumes with the same completions.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import click
from tqdm import tqdm

from lib.artifacts import write_jsonl
from lib.artifacts.completions import GREEDY, SAMPLED
from lib.artifacts.problems import Problem, read_benchmarks
from lib.core.errors import UserError
from lib.core.process import installed_version
from lib.engines.base import Engine, GeneratedCompletion, Sampling, encode, open_engine
from lib.engines.policy import is_adapter, read_max_positions
from lib.engines.registry import ENGINES
from lib.evaluation.stream import Stream, rows_fingerprint, scratch_of
from lib.params.measuring import Decoding, Evaluate
from lib.params.model import Model, Prompt
from lib.prompts import Message, PromptFormat, format_settings, prompt_format, saved_system

TooLong = Literal["refuse", "skip", "wrong"]
"""What becomes of a problem that is too long for a model: an error, none, or a wrong answer."""


def complete_checkpoint(
    checkpoint: Path,
    *,
    completions: Path,
    base: Path,
    problems: Path,
    model: Model,
    prompt: Prompt,
    evaluate: Evaluate,
    seed: int,
) -> dict[str, Any]:
    """Let what `prepare`, `sft` or `grpo` wrote to `checkpoint` answer; returns `complete`'s facts.

    Args:
        completions: JSONL that gets one row per completion (see `Task.row`).
        base: the weights that an adapter was trained on.
        problems: folder with one set of problems per benchmark.
    """
    sections = {"model": model, "prompt": prompt, "evaluate": evaluate}
    settings = {name: section.model_dump(mode="json") for name, section in sections.items()}
    inputs = {"checkpoint": checkpoint, "base": base, "problems": problems}
    name = rows_fingerprint({**settings, "seed": seed, "name": checkpoint.name}, inputs=inputs)
    engine = open_engine(
        evaluate.engine, checkpoint, base=base, **model.loading, batch_size=evaluate.batch_size
    )
    with contextlib.closing(engine), scratch_of(name) as scratch:
        return complete(
            engine,
            read_benchmarks(problems, evaluate.benchmarks),
            label=checkpoint.name,
            prompt_format=prompt_format(**format_settings(prompt)),
            system=saved_system(base),
            evaluate=evaluate,
            seed=seed,
            scratch=scratch,
            completions=completions,
            positions=read_max_positions(base if is_adapter(checkpoint) else checkpoint),
        )


def complete(
    engine: Engine,
    benchmarks: Mapping[str, Sequence[Problem]],
    *,
    label: str,
    prompt_format: PromptFormat,
    system: str,
    evaluate: Evaluate,
    seed: int,
    scratch: Path,
    completions: Path,
    positions: int | None,
    too_long: TooLong = "refuse",
) -> dict[str, Any]:
    """Let an engine answer, whatever its model is.

    Args:
        label: the name of the model in rows and on the progress bar.
        scratch: folder of what is done so far.
        completions: JSONL that gets the rows, by benchmark, mode, problem and sample.
        positions: of the model, None where it sets no limit.
        too_long: what becomes of a problem whose prompt leaves no position for an answer.

    Returns:
        For provenance, what it takes to generate the same again beside settings and inputs.

    Raises:
        UserError: a prompt is too long for the model and `too_long` refuses it, before anything is
            generated; or no problem of a benchmark is left.
    """
    batch = ENGINES[evaluate.engine].batches_per_chunk * evaluate.batch_size
    tasks: list[Task] = []
    for benchmark, problems in benchmarks.items():
        prompts = [prompt_format.prompt(each.problem, system=system) for each in problems]
        token_ids = encode(engine.tokenizer, prompts)
        by_length = sorted(range(len(problems)), key=lambda place: len(token_ids[place]))
        room = math.inf if positions is None else positions
        fitting = [place for place in by_length if len(token_ids[place]) < room]
        if longest := by_length[len(fitting) :]:
            fault = (
                f"{benchmark}: problem {problems[longest[-1]].id} has "
                f"{len(token_ids[longest[-1]])} tokens as a prompt, and the model has {positions} "
                "positions for prompt and completion"
            )
            if too_long == "refuse" or (too_long == "skip" and not fitting):
                raise UserError(f"{fault}; leave the problem out, or take a model with more")
            outcome = "left out" if too_long == "skip" else "counted as wrong"
            counted = f"{len(longest)} of {len(problems)} problems are too long and {outcome}"
            click.echo(f"Warning: {fault}; {counted}", err=True)
        decoding = decoding_of(evaluate, benchmark)
        for mode, sampling in samplings(decoding, prompt_format=prompt_format, seed=seed).items():
            size = max(1, batch // sampling.num_completions)
            chunks = [fitting[start : start + size] for start in range(0, len(fitting), size)]
            tasks.append(
                Task(
                    benchmark=benchmark,
                    mode=mode,
                    sampling=sampling,
                    prompt_format=prompt_format,
                    problems=problems,
                    prompts=prompts,
                    token_ids=token_ids,
                    chunks=chunks,
                    too_long=longest,
                    stream=Stream(
                        scratch / f"{benchmark}.{mode}.jsonl",
                        [len(chunk) * sampling.num_completions for chunk in chunks],
                    ),
                )
            )
    generate_missing(engine, tasks, label=label)
    rows = itertools.chain.from_iterable(task.stream.rows() for task in tasks)
    if too_long == "wrong":
        rows = itertools.chain(rows, *(task.unanswered() for task in tasks))
    write_jsonl(completions, ({"checkpoint": label, **row} for row in rows))
    template = str(engine.tokenizer.chat_template)
    modes: dict[str, dict[str, Any]] = {}
    for task in tasks:
        facts = {**task.settings(), "num_problems": len(task.problems)}
        if task.too_long:
            facts |= {"too_long": too_long, "num_too_long": len(task.too_long)}
        modes.setdefault(task.benchmark, {})[task.mode] = facts
    version = installed_version(ENGINES[evaluate.engine].library)
    return {
        "engine": {"name": evaluate.engine, "version": version},
        "prompt": {
            "format": prompt_format.name,
            "template": hashlib.sha256(template.encode()).hexdigest()[:16],
            "system": system,
            "stop_strings": list(prompt_format.stop_strings),
        },
        "sampling": modes,
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """One benchmark in one mode, cut into chunks.

    Attributes:
        prompts: one conversation per problem.
        token_ids: the same as the model reads them.
        chunks: places of problems; together, every place once that is not `too_long`.
        too_long: places of problems whose prompt leaves no position for an answer.
        stream: its rows, as far as they are there.
    """

    benchmark: str
    mode: str
    sampling: Sampling
    prompt_format: PromptFormat
    problems: Sequence[Problem]
    prompts: Sequence[Sequence[Message]]
    token_ids: Sequence[Sequence[int]]
    chunks: Sequence[Sequence[int]]
    too_long: Sequence[int]
    stream: Stream

    def unanswered(self) -> Iterator[dict[str, Any]]:
        """Rows of the problems that are too long: completions that are empty and truncated."""
        empty = GeneratedCompletion(text="", token_ids=(), finish="length")
        for place in self.too_long:
            for sample in range(self.sampling.num_completions):
                yield self.row(place, sample, empty)

    def settings(self) -> dict[str, Any]:
        """The sampling, without the stop strings, which are the format's."""
        fields = dataclasses.asdict(self.sampling)
        del fields["stop_strings"]
        return fields

    def row(self, place: int, sample: int, completion: GeneratedCompletion) -> dict[str, Any]:
        """A completion with all that grading reads, so that the file is enough by itself."""
        problem = self.problems[place]
        return {
            "benchmark": self.benchmark,
            "mode": self.mode,
            "sample": sample,
            "problem_id": problem.id,
            "problem": problem.problem,
            "reference": problem.reference,
            "subject": problem.subject,
            "level": problem.level,
            "tags": problem.tags,
            "prompt_format": {"name": self.prompt_format.name, "tags": self.prompt_format.marks},
            "prompt": self.prompts[place],
            "completion": completion.text,
            "token_ids": completion.token_ids,
            "num_tokens": len(completion.token_ids),
            "finish": completion.finish,
            "sampling": self.settings(),
        }


def samplings(decoding: Decoding, *, prompt_format: PromptFormat, seed: int) -> dict[str, Sampling]:
    """The modes in which a benchmark is answered."""
    greedy = Sampling(
        num_completions=1,
        max_new_tokens=decoding.max_new_tokens,
        temperature=0.0,
        stop_strings=prompt_format.stop_strings,
        seed=seed,
    )
    sampled = dataclasses.replace(
        greedy,
        num_completions=decoding.num_samples,
        temperature=decoding.temperature,
        top_p=decoding.top_p,
    )
    modes = {GREEDY: (decoding.greedy, greedy), SAMPLED: (decoding.num_samples, sampled)}
    return {mode: sampling for mode, (wanted, sampling) in modes.items() if wanted}


def generate_missing(engine: Engine, tasks: Sequence[Task], *, label: str) -> None:
    """Generate the chunks that are not there yet, under a bar where there is a `label`."""
    total = sum(sum(task.stream.sizes) for task in tasks)
    done = sum(task.stream.num_rows for task in tasks)
    num_tokens, start = 0, time.monotonic()
    with tqdm(
        total=total,
        # Those of an earlier process, which tell nothing of the speed.
        initial=done,
        desc=label,
        unit="completion",
        disable=None if label else True,
    ) as bar:
        for task in tasks:
            for chunk in task.chunks[task.stream.num_done :]:
                groups = engine.generate([task.token_ids[place] for place in chunk], task.sampling)
                rows = [
                    {"place": place, **task.row(place, sample, completion)}
                    for place, group in zip(chunk, groups, strict=True)
                    for sample, completion in enumerate(group)
                ]
                task.stream.append(rows)
                num_tokens += sum(row["num_tokens"] for row in rows)
                speed = num_tokens / max(time.monotonic() - start, 1e-9)
                bar.set_postfix_str(f"{speed:,.0f} tokens/s", refresh=False)
                bar.update(len(rows))


def decoding_of(evaluate: Evaluate, benchmark: str) -> Decoding:
    """How a benchmark is answered: its override, or what holds for all."""
    overrides = {override.benchmark: override for override in evaluate.overrides}
    return overrides.get(benchmark, evaluate)
