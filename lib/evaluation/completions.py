"""Let a checkpoint answer benchmarks, greedily and by sampling; nothing is graded here.

Prompts of like length share a chunk, so that little of a batch is padding, and the random numbers
depend on seed and prompt, not on the chunks before. A run writes to a folder that its fingerprint
names: a hash of the settings, of what it reads, of the versions and of the code. A chunk counts
once all of its rows are on the disk, so the half line and the half chunk of a kill are cut off and
generated again: the result has the bytes of a run that was never stopped. Changed settings name
another folder.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import itertools
import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from lib.artifacts import SCRATCH, fingerprint, stage_code, write_jsonl
from lib.artifacts.completions import GREEDY, SAMPLED
from lib.artifacts.problems import Problem, read_benchmarks
from lib.core.errors import UserError
from lib.core.process import installed_version
from lib.engines.base import Engine, GeneratedCompletion, Sampling, encode, open_engine
from lib.engines.policy import is_adapter, read_max_positions
from lib.engines.registry import ENGINES
from lib.params.model import Decoding, Evaluate, Model, Prompt
from lib.prompts import Message, PromptFormat, prompt_format, saved_system


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
            prompt_format=prompt_format(**prompt.rendering),
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
    long_is_wrong: bool = False,
) -> dict[str, Any]:
    """Let an engine answer, whatever its model is.

    Args:
        label: the name of the model in rows and on the progress bar.
        scratch: folder of what is done so far.
        completions: JSONL that gets the rows, by benchmark, mode, problem and sample.
        positions: of the model, None where it sets no limit.
        long_is_wrong: a problem whose prompt leaves no position for an answer is answered wrongly;
            otherwise it is refused.

    Returns:
        For provenance, what it takes to generate the same again beside settings and inputs.

    Raises:
        UserError: a prompt is too long for the model, before anything is generated.
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
            if not long_is_wrong:
                raise UserError(f"{fault}; leave the problem out, or take a model with more")
            counted = f"{len(longest)} of {len(problems)} problems are too long"
            click.echo(f"Warning: {fault}; {counted} and counted as wrong", err=True)
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
    answered = itertools.chain.from_iterable(task.stream.rows() for task in tasks)
    rows = itertools.chain(answered, *(task.unanswered() for task in tasks))
    write_jsonl(completions, ({"checkpoint": label, **row} for row in rows))
    template = str(engine.tokenizer.chat_template)
    modes: dict[str, dict[str, Any]] = {}
    for task in tasks:
        facts = {**task.settings(), "num_problems": len(task.problems)}
        if task.too_long:
            facts["num_too_long"] = len(task.too_long)
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


def rows_fingerprint(settings: Mapping[str, Any], *, inputs: Mapping[str, Path]) -> str:
    """16 hex digits of everything that the rows depend on."""
    decisive = {"settings": settings, "code": stage_code("evaluate", {})}
    return fingerprint(decisive, inputs=inputs)


@contextmanager
def scratch_of(name: str, *, root: Path = SCRATCH / "evaluate") -> Iterator[Path]:
    """The folder of a run called `name`; it stays where the block is left by an error or a kill.

    Raises:
        UserError: another process is writing there.
    """
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"the same evaluation is running already and writes to {folder}; wait for it"
            ) from None
        yield folder
        shutil.rmtree(folder)


class Stream:
    """The rows of one benchmark in one mode, chunk by chunk.

    Args:
        path: JSONL file; what an earlier process left of it is kept as far as it is whole.
        sizes: rows of each chunk, in order.
    """

    def __init__(self, path: Path, sizes: Sequence[int]) -> None:
        self.path = path
        self.sizes = sizes
        path.parent.mkdir(parents=True, exist_ok=True)
        self.num_done = self._cut()

    @property
    def num_rows(self) -> int:
        """Rows that are there."""
        return sum(self.sizes[: self.num_done])

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add the next chunk; it is on the disk when this returns.

        Args:
            rows: with `place`, the number of their problem, and `sample`.
        """
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            file.flush()
            os.fsync(file.fileno())
        self.num_done += 1

    def _cut(self) -> int:
        """Cut the file behind its last whole chunk; returns how many there are."""
        with self.path.open("a+b") as file:
            file.seek(0)
            lengths = (len(line) for line in file if line.endswith(b"\n"))
            ends = list(itertools.accumulate(lengths, initial=0))
            rows = list(itertools.accumulate(self.sizes, initial=0))
            num_done = sum(num_rows < len(ends) for num_rows in rows) - 1
            file.truncate(ends[rows[num_done]])
        return num_done

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows in the order of problem and sample, read one by one."""
        offset, index = 0, []
        with self.path.open("rb") as file:
            for line in file:
                row = json.loads(line)
                index.append((row["place"], row["sample"], offset))
                offset += len(line)
            for _, _, start in sorted(index):
                file.seek(start)
                row = json.loads(file.readline())
                del row["place"]
                yield row


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
    """Generate the chunks that are not there yet, under a bar."""
    total = sum(sum(task.stream.sizes) for task in tasks)
    done = sum(task.stream.num_rows for task in tasks)
    num_tokens, start = 0, time.monotonic()
    with tqdm(
        total=total,
        # Those of an earlier process, which tell nothing of the speed.
        initial=done,
        desc=label,
        unit="completion",
        disable=None,
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
