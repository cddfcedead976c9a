"""Run a study's experiments with DVC, and measure their graded completions.

An experiment is one run of the pipeline with a seed and changed params. Results of earlier runs on
the same code are reused.
"""

import concurrent.futures
import contextlib
import dataclasses
import json
import math
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from dvc.api import DVCFileSystem
from dvc.exceptions import DvcException
from ruamel.yaml import YAML

from lib.artifacts import hash_json, read_json, write_json
from lib.core.errors import UserError
from lib.core.git import git
from lib.models.hub import FETCHED
from lib.params.load import read_yaml
from lib.report.compare import DVC, graded_rows
from lib.report.release import LOCK, project_version
from lib.studies.definition import Study, hydra
from lib.studies.measures import Scores, curve_column, problem_scores, training_scores

GRACE_S = 30.0
"""Seconds to wait after each of SIGINT, SIGTERM and SIGKILL."""

PROGRESS = re.compile(r"Running stage '.+':|(sft|grpo|dpo) step=.+")
"""Progress lines of an experiment: "Running stage 'grpo':", "grpo step=10 …"."""

_COPYING = threading.Lock()

NO_RUN = "study: the run of params.yaml is not up to date here; run `dvc repro` first"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """One run of the pipeline: a seed, and the params of one or more variants.

    Attributes:
        checkpoints: variant → its checkpoint, for the variants that share this run.
        inputs: dotted key of a param → the variant whose checkpoint it names, and that one's run.
    """

    name: str
    seed: int
    params: Mapping[str, Any]
    checkpoints: Mapping[str, str]
    inputs: Mapping[str, tuple[str, "Experiment"]] = dataclasses.field(default_factory=dict)

    @property
    def wave(self) -> int:
        """The number of runs that must have ended before, one after the other."""
        return max((other.wave + 1 for _, other in self.inputs.values()), default=0)

    @property
    def targets(self) -> list[str]:
        return sorted({f"grade@{checkpoint}" for checkpoint in self.checkpoints.values()})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The measurements of all experiments of a study.

    Attributes:
        scores: by (variant, seed), one score per problem.
        validation: by (variant, seed): training step → greedy accuracy; {} for an untrained
            checkpoint.
        hours: sum of the experiments' durations.
    """

    scores: Mapping[tuple[str, int], Scores]
    validation: Mapping[tuple[str, int], Mapping[str, float]]
    hours: float


def experiments_of(name: str, study: Study) -> list[Experiment]:
    """List the experiments of a study, seed by seed; variants with the same params share one.

    Args:
        name: the study's name, which begins the experiments' names: "seeds-sft-grpo-0".
    """
    groups: dict[str, dict[str, str]] = {}
    for variant_name, variant in study.variants.items():
        key = json.dumps(variant.params, sort_keys=True)
        groups.setdefault(key, {})[variant_name] = variant.checkpoint
    experiments = []
    for seed in study.seeds:
        # In the study's order, in which a variant comes after those that it needs.
        by_variant: dict[str, Experiment] = {}
        for checkpoints in groups.values():
            first = study.variants[next(iter(checkpoints))]
            experiment = Experiment(
                name=f"{name}-{'-'.join(checkpoints)}-{seed}",
                seed=seed,
                # In their own order: a variant's values come after its preset's.
                params=first.params,
                checkpoints=checkpoints,
                inputs={key: (other, by_variant[other]) for key, other in first.inputs.items()},
            )
            by_variant |= dict.fromkeys(checkpoints, experiment)
            experiments.append(experiment)
    return experiments


def run_study(
    name: str, study: Study, *, scratch: Path, jobs: int, log: Callable[[str], None]
) -> Outcome:
    """Run the experiments that have not run yet, and return the measurements of all.

    Each seed's first experiment runs before all others, and one whose checkpoint another needs
    before that one. The first failure ends all others, as an interrupt does.

    Args:
        name: the study's name.
        scratch: folder with a file of measurements for each finished experiment.
        jobs: experiments that run at a time.
        log: called with each line of progress: on a stage, a step, or a finished experiment with
            the time left.

    Raises:
        UserError: an experiment failed or was interrupted, or the run is not up to date.
    """
    state = _lock_hash()
    experiments = experiments_of(name, study)
    # Each finished experiment has a file in scratch, so that an interrupted study resumes.
    # `_stored` reads it, and returns {} without one or if it is of other code or params.
    waiting = [each for each in experiments if not _stored(each, scratch, state)]
    processes = Processes(log)
    seconds: list[float] = []

    def run(each: Experiment) -> None:
        seconds.append(_run(each, scratch, state, processes))
        log(progress_line(each.name, seconds, total=len(waiting), jobs=jobs))

    pool = concurrent.futures.ThreadPoolExecutor(jobs)
    # A seed's first experiment fills DVC's run-cache with stages that its others share, so these
    # start when the first ones have ended.
    firsts: dict[int, Experiment] = {}
    for each in waiting:
        firsts.setdefault(each.seed, each)
    others = [each for each in waiting if each is not firsts[each.seed]]
    waves = [[each for each in others if each.wave == wave] for wave in range(len(experiments))]
    try:
        for wave in (firsts.values(), *waves):
            for future in concurrent.futures.as_completed(
                [pool.submit(run, each) for each in wave]
            ):
                future.result()
    except (KeyboardInterrupt, UserError) as error:
        fault = error.message if isinstance(error, UserError) else "study: interrupted"
        done = len(experiments) - len(waiting) + len(seconds)
        raise UserError(
            f"{fault}\n{done} of {len(experiments)} experiments are done; `make study "
            f"STUDY={name}` runs the others, without the stages that they finished"
        ) from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        processes.end()
        pool.shutdown()
    # By now, every experiment has its file, {"scores", "validation", "seconds"}. The first two are
    # by variant, for the variants that share the run: the keys of `checkpoints`.
    stored = [(each, _stored(each, scratch, state)) for each in experiments]
    scores, validation = {}, {}
    for each, measured in stored:
        for variant in each.checkpoints:
            scores[variant, each.seed] = measured["scores"][variant]
            validation[variant, each.seed] = measured["validation"][variant]
    hours = sum(measured["seconds"] for _, measured in stored) / 3600
    return Outcome(scores=scores, validation=validation, hours=hours)


class Processes:
    """The running experiments, each in a process group of its own.

    Ctrl-C in a terminal reaches only the study, which then interrupts each group once.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._ended = False
        self._lock = threading.Lock()

    def run(self, name: str, command: Sequence[str]) -> None:
        """Run a command to its end; its progress is logged under `name`.

        Raises:
            UserError: it failed; the message ends with the last 20 lines of its output.
        """
        with self._lock:
            # Check and start under one lock: otherwise `end`, called in between, would miss this
            # process.
            if self._ended:
                raise UserError(f"study: experiment {name} was not started")
            process = self._running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                # 0: a new process group, so that Ctrl-C in the terminal does not reach it.
                process_group=0,
                text=True,
                errors="replace",
            )
        # The output is read to its end, since a full pipe would stop the experiment. The assert is
        # for mypy: with PIPE, stdout is never None.
        assert process.stdout
        tail: deque[str] = deque(maxlen=20)
        for line in process.stdout:
            tail.append(line.rstrip())
            if PROGRESS.match(line):
                self._log(f"{name}: {line.strip()}")
        if process.wait():
            raise UserError(f"study: experiment {name} failed:\n" + "\n".join(tail))

    def end(self) -> None:
        with self._lock:
            self._ended = True
        # SIGINT first: a stage then saves what it needs to resume. The next signal is for those
        # that still run after `GRACE_S` seconds.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            running = [each for each in self._running.values() if each.poll() is None]
            for process in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            deadline = time.monotonic() + GRACE_S
            for process in running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0, deadline - time.monotonic()))


def progress_line(name: str, seconds: Sequence[float], *, total: int, jobs: int) -> str:
    """Return a line on the experiment that just ended, and the minutes left at the mean duration.

    "study 3/12 experiment=seeds-grpo-0 minutes=4.2 left=21"

    Args:
        name: the experiment's name.
        seconds: the durations of the experiments that have ended, this one last.
        total: experiments to run in this call.
        jobs: experiments that run at a time.
    """
    rounds = math.ceil((total - len(seconds)) / jobs)
    return (
        f"study {len(seconds)}/{total} experiment={name} minutes={seconds[-1] / 60:.1f} "
        f"left={fmean(seconds) * rounds / 60:.0f}"
    )


def _lock_hash() -> str:
    """Return a hash of dvc.lock's entries for all stages up to the grades.

    It changes with the code, params and data of the last run, and so tells whether stored
    measurements are still valid.

    Raises:
        UserError: the run is not up to date: experiments reuse the outputs of its stages.
    """
    status = [*DVC, "status", "--quiet", "--with-deps", "grade"]
    if subprocess.run(status, capture_output=True, check=False).returncode:
        raise UserError(NO_RUN)
    stages = read_yaml(LOCK)["stages"]
    # Export and report only read the grades: a change there must not repeat hours of training.
    return hash_json({name: stages[name] for name in stages if name not in ("export", "report")})


def made_from() -> dict[str, str]:
    """Return {"version", "commit", "device"} of a study's experiments, for its study.json.

    Raises:
        UserError: the default run is missing.
    """
    # The provenance of any checkpoint has the device: all were evaluated on one machine. None if
    # there is no such file.
    provenance = next(Path("reports/provenance/evaluate").glob("*.json"), None)
    if not provenance:
        raise UserError(NO_RUN)
    return {
        "version": project_version(),
        "commit": git("rev-parse", "--short=12", "HEAD"),
        "device": read_json(provenance)["device"],
    }


def _stored(experiment: Experiment, scratch: Path, state: str) -> Mapping[str, Any]:
    """Return an experiment's stored measurements; {} without any or for other code or params."""
    path = scratch / f"{experiment.name}.json"
    content = read_json(path) if path.is_file() else {}
    # `>=`: the stored items include all items of the identity.
    return content if content.items() >= _identity(experiment, state).items() else {}


def _identity(experiment: Experiment, state: str) -> dict[str, Any]:
    """Return the code, params and checkpoints behind an experiment's scores, stored with them."""
    identity = {
        "state": state,
        "params": dict(experiment.params),
        "checkpoints": dict(experiment.checkpoints),
    }
    inputs = [_identity(other, state) for _, other in experiment.inputs.values()]
    return {**identity, "inputs": inputs} if inputs else identity


def checkpoint_path(variant: str, experiment: Experiment) -> str:
    """Return the path of a finished experiment's checkpoint, in `data/hub` by its hash.

    The path then changes with the weights, on which no stage of another experiment depends.

    Raises:
        UserError: the experiment's commit or files were removed.
    """
    folder = f"data/models/{experiment.checkpoints[variant]}"
    try:
        files = DVCFileSystem(rev=experiment.name)
        stages = YAML(typ="safe").load(files.read_text(str(LOCK)))["stages"].values()
        outs = {out["path"]: out["md5"] for stage in stages for out in stage.get("outs", ())}
        path = FETCHED / "studies" / outs[folder].removesuffix(".dir")
        # Several experiments may need the same one.
        with _COPYING:
            if not path.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(dir=path.parent) as copy:
                    files.get(folder, f"{copy}/model", recursive=True)
                    Path(copy, "model").rename(path)
    except (DvcException, OSError) as error:
        raise UserError(
            f"study: {folder} of the finished experiment {experiment.name} is gone ({error}); "
            f"remove data/scratch/studies/{experiment.name}.json, and run the study again"
        ) from error
    return str(path)


def _run(experiment: Experiment, scratch: Path, state: str, processes: Processes) -> float:
    """Run an experiment in a copy of the checkout (--temp); return the seconds it took.

    Its measurements are written to `scratch`, with what they hold for: `_stored` compares it.

    Args:
        state: hash of code, params and data of the last run (`_lock_hash`).

    Raises:
        UserError: the experiment failed, or was not started because the study is ending.
    """
    # Parallel experiments compete for DVC's lock of the checkout; each holds it for seconds only.
    command = [*DVC, "--wait-for-lock", "exp"]
    start = time.monotonic()
    # An older experiment of this name, if any, is removed: `run --force` would replace it too, but
    # also switch off the run-cache.
    subprocess.run([*command, "remove", experiment.name], capture_output=True, check=False)
    paths = {key: checkpoint_path(*each) for key, each in experiment.inputs.items()}
    settings = {"seed": experiment.seed, **experiment.params, **paths}
    options: list[str] = []
    for key, value in settings.items():
        setting = f"{key}={hydra(value)}"
        if isinstance(value, dict):
            # `-S key={…}` merges into the existing value, which may not be a mapping: it is
            # deleted (~) and added (+) instead.
            options += [f"-S=~{key}", f"-S=+{setting}"]
        else:
            # ++: a phase's own optimiser setting may not be in params.yaml.
            options += ["-S", f"++{setting}"]
    run = [*command, "run", "--temp", "--name", experiment.name, *options, *experiment.targets]
    processes.run(experiment.name, run)
    seconds = time.monotonic() - start
    content = {**_identity(experiment, state), "seconds": seconds, **measurements(experiment)}
    write_json(scratch / f"{experiment.name}.json", content)
    return seconds


def measurements(experiment: Experiment) -> dict[str, Any]:
    """Read the measurements of a finished experiment from its commit.

    Returns:
        {"scores": variant → `Scores`, "validation": variant → training step → greedy accuracy}.
    """
    # An experiment's name is a revision, whose files DVC reads from git or from its cache.
    files = DVCFileSystem(rev=experiment.name)
    scores, validation = {}, {}
    for variant, checkpoint in experiment.checkpoints.items():
        graded = graded_rows(files, Path(f"data/graded/{checkpoint}.jsonl"))
        scores[variant] = problem_scores(graded)
        # Only if this experiment ran GRPO: otherwise its commit has the default run's curve.
        if "grpo" in experiment.checkpoints.values():
            scores[variant][""] = training_scores(files, checkpoint)
        validation[variant] = curve_column(files, f"{checkpoint}_validation", "answer_accuracy")
    return {"scores": scores, "validation": validation}
