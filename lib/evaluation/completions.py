"""Generate a checkpoint's completions of benchmarks, greedy and sampled; nothing is graded here.

Prompts of similar length share a chunk, so that little of a batch is padding. The random numbers
depend on seed and prompt, not on earlier chunks.

A run resumes: its scratch folder is named by a hash of settings, inputs, versions and code, and
each chunk is one transaction of an SQLite file. The result has the bytes of a run that was never
stopped.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from lib.artifacts import SCRATCH, fingerprint, write_jsonl
from lib.artifacts.code import stage_code
from lib.artifacts.completions import GREEDY, SAMPLED, GeneratedCompletion
from lib.artifacts.problems import SHORTER, Problem, long_prompt, read_benchmarks
from lib.core.errors import UserError
from lib.core.process import alone, installed_version
from lib.core.progress import Heartbeat
from lib.engines.base import Engine, Sampling, encode, open_engine
from lib.params.engines import ENGINES
from lib.params.model import Decoding, Evaluate
from lib.params.schema import Params
from lib.prompts import PromptFormat, prompt_format, saved_system
from lib.prompts.formats import conversation

PROBLEM_COLUMNS = ("problem", "reference", "subject", "level", "tags")
"""Fields of a `Problem` that each row has."""


def complete_checkpoint(
    checkpoint: Path, *, params: Params, completions: Path, base: Path, problems: Path
) -> dict[str, Any]:
    """Write the completions of all benchmarks by a checkpoint of this pipeline.

    Args:
        completions: JSONL that gets one row per completion (see `Task.row`).
        base: the weights that an adapter was trained on, with the system prompt beside them.
        problems: folder with one set of problems per benchmark.

    Returns:
        Facts for provenance, see `complete`.
    """
    # After a change of reward or training, or of the list of checkpoints, nothing is generated
    # again.
    sections = {"seed", "torch_threads", "model", "prompt", "evaluate"}
    listed = {"evaluate": {"checkpoints"}}
    settings = params.model_dump(mode="json", include=sections, exclude=listed)
    inputs = {"checkpoint": checkpoint, "base": base, "problems": problems}
    # The name is hashed too: two checkpoints of equal weights write different rows.
    run_id = rows_fingerprint({**settings, "name": checkpoint.name}, inputs=inputs)
    evaluate, loading = params.evaluate, params.model.loading
    engine = open_engine(
        evaluate.engine, checkpoint, base=base, **loading, batch_size=evaluate.batch_size
    )
    with contextlib.closing(engine), scratch_of(run_id) as scratch:
        return complete(
            engine,
            read_benchmarks(problems, evaluate.benchmarks),
            label=checkpoint.name,
            prompt_format=prompt_format(**params.prompt.rendering),
            system=saved_system(base),
            evaluate=evaluate,
            seed=params.seed,
            scratch=scratch,
            completions=completions,
        )


def complete(
    engine: Engine,
    benchmarks: Mapping[str, Sequence[Problem]],
    *,
    label: str,
    scratch: Path,
    completions: Path,
    **settings: Any,
) -> dict[str, Any]:
    """Generate the completions that are missing in `scratch`, and write all to `completions`.

    Args:
        label: the name of the model in rows and on the progress bar.
        completions: JSONL that gets the rows, by benchmark, mode, problem and sample; rows of
            prompts that are too long come last.
        settings: see `tasks_of`.

    Returns:
        Facts for provenance: engine, prompt and sampling. Together with settings and inputs, they
        are enough to generate the same completions again.

    Raises:
        UserError: a prompt is too long; before anything is generated.
    """
    tasks = [
        task
        for name, problems in benchmarks.items()
        for task in tasks_of(name, problems, engine=engine, **settings)
    ]
    scratch.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(scratch / "rows.sqlite")) as table:
        # Indices of the task in `tasks`, of the problem in its task, and of the completion.
        table.execute(
            "CREATE TABLE IF NOT EXISTS rows (task INTEGER, problem INTEGER, sample INTEGER, "
            "row TEXT, PRIMARY KEY (task, problem, sample))"
        )
        generate_missing(engine, tasks, table, label=label)
        # Sorted, since chunks were stored in the order of prompt length.
        stored = table.execute("SELECT row FROM rows ORDER BY task, problem, sample")
        generated = (json.loads(row) for (row,) in stored)
        rows = itertools.chain(generated, *(task.unanswered() for task in tasks))
        write_jsonl(completions, ({"checkpoint": label, **row} for row in rows))
    return _facts(engine, tasks, **settings)


def _facts(
    engine: Engine,
    tasks: Sequence["Task"],
    *,
    prompt_format: PromptFormat,
    system: str,
    evaluate: Evaluate,
    **_: Any,
) -> dict[str, Any]:
    template = str(engine.tokenizer.chat_template)
    sampling: dict[str, dict[str, Any]] = {}
    for task in tasks:
        facts = {**task.settings, "num_problems": len(task.token_ids)}
        if task.too_long:
            facts["num_too_long"] = len(task.too_long)
        sampling.setdefault(task.benchmark, {})[task.mode] = facts
    return {
        "engine": {
            "name": evaluate.engine,
            "version": installed_version(ENGINES[evaluate.engine].library),
        },
        "prompt": {
            "format": prompt_format.name,
            "template": hashlib.sha256(template.encode()).hexdigest()[:16],
            "system": system,
            "stop_strings": list(prompt_format.stop_strings),
        },
        "sampling": sampling,
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """The completions of one benchmark in one mode, cut into chunks.

    Attributes:
        mode: `greedy` or `sampled`.
        columns: [P] the columns of each problem's rows.
        token_ids: [P] the prompts.
        chunks: indices of the problems in each chunk; every index is here or in `too_long`, once.
        too_long: indices of problems whose prompt leaves no position for an answer.
    """

    benchmark: str
    mode: str
    sampling: Sampling
    columns: Sequence[Mapping[str, Any]]
    token_ids: Sequence[Sequence[int]]
    chunks: Sequence[Sequence[int]]
    too_long: Sequence[int]

    @property
    def settings(self) -> dict[str, Any]:
        """The sampling settings by name, without the stop strings, which the format determines."""
        fields = dataclasses.asdict(self.sampling)
        del fields["stop_strings"]
        return fields

    def row(self, index: int, sample: int, completion: GeneratedCompletion) -> dict[str, Any]:
        place = {"benchmark": self.benchmark, "mode": self.mode, "sample": sample}
        return {
            **place,
            **self.columns[index],
            **completion.columns(),
            "sampling": self.settings,
        }

    def unanswered(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of problems in `too_long`: their completions are empty and truncated."""
        empty = GeneratedCompletion(text="", token_ids=(), finish="length")
        for index in self.too_long:
            for sample in range(self.sampling.num_completions):
                yield self.row(index, sample, empty)


def tasks_of(
    benchmark: str,
    problems: Sequence[Problem],
    *,
    engine: Engine,
    prompt_format: PromptFormat,
    system: str,
    evaluate: Evaluate,
    seed: int,
    long_is_wrong: bool = False,
) -> Iterator[Task]:
    """Cut a benchmark into chunks of prompts; yield a task for each mode (greedy, sampled).

    Args:
        system: system prompt, '' for none.
        long_is_wrong: count a problem as wrong if its prompt leaves no position for an answer;
            False refuses it.

    Raises:
        UserError: a prompt is too long and `long_is_wrong` is False.
    """
    prompts = [conversation(each.problem, system=system) for each in problems]
    token_ids = encode(engine.tokenizer, prompts)
    by_length = sorted(range(len(problems)), key=lambda index: len(token_ids[index]))
    # `<`: at least one position is left for the completion.
    fitting = [
        index for index in by_length if len(token_ids[index]) < (engine.positions or math.inf)
    ]
    if too_long := by_length[len(fitting) :]:
        longest = too_long[-1]
        fault = long_prompt(problems[longest], benchmark, len(token_ids[longest]), engine.positions)
        if not long_is_wrong:
            raise UserError(f"{fault}; {SHORTER}")
        counted = f"{len(too_long)} of {len(problems)} problems are too long"
        click.echo(f"Warning: {fault}; {counted} and counted as wrong", err=True)
    columns = [
        {
            "problem_id": problem.id,
            **{name: getattr(problem, name) for name in PROBLEM_COLUMNS},
            # `grade` rebuilds the format from this, even if params.yaml has changed since.
            "prompt_format": {"name": prompt_format.name, "tags": prompt_format.marks},
            "prompt": prompt,
        }
        for problem, prompt in zip(problems, prompts, strict=True)
    ]
    # vLLM is fast only with many requests at once; other engines get one batch in a chunk.
    in_chunk = ENGINES[evaluate.engine].batches_per_chunk * evaluate.batch_size
    decoding = evaluate.decoding_of(benchmark)
    for mode, sampling in samplings(decoding, prompt_format=prompt_format, seed=seed).items():
        # Problems per chunk: all completions of a problem are in one chunk.
        size = max(1, in_chunk // sampling.num_completions)
        yield Task(
            benchmark=benchmark,
            mode=mode,
            sampling=sampling,
            columns=columns,
            token_ids=token_ids,
            chunks=[fitting[start : start + size] for start in range(0, len(fitting), size)],
            too_long=too_long,
        )


def samplings(decoding: Decoding, *, prompt_format: PromptFormat, seed: int) -> dict[str, Sampling]:
    """Return mode → sampling settings of a benchmark; the modes are greedy, sampled or both."""
    # Temperature 0 takes the likeliest token, so top-p would change nothing.
    greedy = Sampling(
        num_completions=1,
        max_new_tokens=decoding.max_new_tokens,
        temperature=0.0,
        stop_strings=prompt_format.stop_strings,
        tool=prompt_format.tool,
        seed=seed,
    )
    modes = {GREEDY: greedy} if decoding.greedy else {}
    if decoding.num_samples:
        modes[SAMPLED] = dataclasses.replace(
            greedy,
            num_completions=decoding.num_samples,
            temperature=decoding.temperature,
            top_p=decoding.top_p,
        )
    return modes


def rows_fingerprint(settings: Mapping[str, Any], *, inputs: Mapping[str, Path]) -> str:
    """Hash settings, inputs and the code of `evaluate`, which decide the rows (16 hex digits)."""
    decisive = {"settings": settings, "code": stage_code("evaluate", settings)}
    return fingerprint(decisive, inputs=inputs)


@contextmanager
def scratch_of(name: str, *, root: Path = SCRATCH / "evaluate") -> Iterator[Path]:
    """Yield a run's locked scratch folder; delete it at the end unless the block raises.

    Args:
        name: name of the folder, from `rows_fingerprint`.

    Raises:
        UserError: another process is writing there, or this one was interrupted.
    """
    folder = root / name
    with alone(folder / "lock", what=f"the evaluation that writes to {folder}"):
        try:
            yield folder
        except KeyboardInterrupt:
            raise UserError(
                f"interrupted; {folder} keeps the rows, the same command resumes"
            ) from None
        shutil.rmtree(folder)


def generate_missing(
    engine: Engine, tasks: Sequence[Task], table: sqlite3.Connection, *, label: str
) -> None:
    """Generate the chunks that are missing in `table` and store them, with a progress bar.

    Args:
        table: the rows so far, by index of task and problem, and number of the sample.
        label: the name of the model on the progress bar.
    """
    total = sum(
        len(chunk) * task.sampling.num_completions for task in tasks for chunk in task.chunks
    )
    (done,) = table.execute("SELECT count(*) FROM rows").fetchone()
    # Of this process, for the speed.
    num_tokens = 0
    with tqdm(
        total=total,
        # tqdm leaves completions of an earlier process out of its speed.
        initial=done,
        desc=label,
        unit="completion",
        # No bar where stderr is not a terminal.
        disable=None,
    ) as bar:
        report = Heartbeat(f"evaluate {label}")
        report.bar = bar
        # Called within a chunk with its completions that have ended, all of them, and its tokens;
        # some engines never call it.
        engine.heartbeat = lambda ended, _, tokens: report(
            "completions", done + ended, total, num_tokens + tokens
        )
        report.begin("completions")
        for number, task in enumerate(tasks):
            answered = table.execute("SELECT problem FROM rows WHERE task = ?", [number])
            stored = {index for (index,) in answered}
            for chunk in task.chunks:
                # A chunk is stored whole: if its first problem has rows, all have.
                if chunk[0] in stored:
                    continue
                groups = engine.generate([task.token_ids[index] for index in chunk], task.sampling)
                rows = [
                    (number, index, sample, json.dumps(task.row(index, sample, completion)))
                    for index, group in zip(chunk, groups, strict=True)
                    for sample, completion in enumerate(group)
                ]
                store_chunk(table, rows)
                num_tokens += sum(len(one.token_ids) for group in groups for one in group)
                bar.update(len(rows))
                done += len(rows)
                report("completions", done, total, num_tokens)


def store_chunk(table: sqlite3.Connection, rows: Sequence[tuple[int, int, int, str]]) -> None:
    """Store the rows (task, problem, sample, JSON) of a chunk: all or none, on disk at the end."""
    with table:
        table.executemany("INSERT INTO rows VALUES (?, ?, ?, ?)", rows)
