"""Evaluate models from outside the pipeline: generate, grade, and write metrics and provenance.

The files have the layout of those that the stages `evaluate` and `grade` write.
"""

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from lib.artifacts import write_json, write_metrics, write_provenance
from lib.artifacts.code import verifier_code
from lib.artifacts.completions import GREEDY, GradedCompletion, read_graded
from lib.artifacts.problems import INSTRUCTION, BenchmarkSet
from lib.core.errors import UserError
from lib.engines.base import Engine
from lib.evaluation.completions import complete, rows_fingerprint, scratch_of
from lib.grading.grade import grade_file
from lib.inference.external import ExternalModel, external_model
from lib.params import Params
from lib.params.load import parse_section
from lib.params.model import Decoding, Evaluate
from lib.prompts import system_prompt
from lib.prompts.formats import conversation


def labelled_models(
    model_ids: Sequence[str], *, formats: Sequence[str], system: str | None, base: Path | None
) -> dict[str, ExternalModel]:
    """Return label → model, for each model in each format; labels name files and table rows.

    Args:
        model_ids: folders or Hub ids.
        formats: `name`, `name/layout`, or `name/own` for the model's own chat template; empty for
            each model's own format.
        system: as `prompt.system` in params; None for the model's own.
        base: base model for adapters whose base is not found automatically.

    Raises:
        UserError: no such model or format, a model without a recorded format, or a model that is
            listed twice.
    """
    if not model_ids:
        raise UserError("which model? `./reckon evaluate grpo`, or a Hub id; several by commas")
    models: dict[str, ExternalModel] = {}
    for model_id in model_ids:
        for format_name in formats or [""]:
            model = external_model(model_id, format_name=format_name, base=base)
            # Read now: this raises if the model has no recorded format.
            used_format = model.prompt_format
            if system is not None:
                message = system_prompt(system, prompt_format=used_format)
                model = dataclasses.replace(model, system=message)
            models[_label(model_id, format_name, taken=models)] = model
    return models


def _label(model_id: str, format_name: str, *, taken: Collection[str]) -> str:
    """Return a label that is not in `taken`: the last part of the model's path, then the format.

    Examples: ("data/models/grpo", "boxed/own") -> "grpo.boxed-own"; and with "grpo" in `taken`,
    ("other/grpo", "") -> "other-grpo".

    Raises:
        UserError: the label made of the whole path is taken too.
    """
    # The working folder `.` has no parts.
    parts = Path(model_id).parts or (Path.cwd().name,)
    ending = f".{format_name}" if format_name else ""
    for start in reversed(range(len(parts))):
        label = re.sub(r"[^\w.-]+", "-", "-".join(parts[start:]) + ending)
        if label not in taken:
            return label
    raise UserError(f"MODEL: `{model_id}` is listed twice")


def measure_model(
    model: ExternalModel,
    *,
    label: str,
    sets: Sequence[BenchmarkSet],
    params: Params,
    limit: int,
    out: Path,
) -> dict[str, Any]:
    """Generate and grade one model's completions, write all files below `out`, return the metrics.

    The files are <kind>/<label>.jsonl or .json. A kind is completions, graded, prompts, metrics,
    provenance, or the name of a benchmark of instructions.

    Args:
        params: only seed, torch_threads, evaluate, reward, model.attention and
            model.max_seq_length are used.
        limit: problems per benchmark, 0 for all. It is only recorded: `sets` are already cut.

    Returns:
        Benchmark → mode (greedy, sampled) → metrics.

    Raises:
        UserError: the model cannot be loaded.
    """
    evaluate = params.evaluate
    settings = _settings(model, params) | {"limit": limit}
    inputs = {"model": model.folder, "base": model.base} | {each.name: each.path for each in sets}
    engine = model.open(
        evaluate.engine,
        attention=params.model.attention,
        max_seq_length=params.model.max_seq_length,
        batch_size=evaluate.batch_size,
    )
    # Rows contain the label; with other positions other prompts fit; another number of threads
    # rounds differently.
    decisive = {
        "label": label,
        "positions": engine.positions,
        "torch_threads": params.torch_threads,
    }
    run_id = rows_fingerprint({**settings, **decisive}, inputs=inputs)
    completions, graded = (out / kind / f"{label}.jsonl" for kind in ("completions", "graded"))
    # Grading is in the block: if the verifier crashes, the folder keeps the rows of perhaps hours.
    with scratch_of(run_id) as scratch:
        # Closed before grading, which needs no GPU, and before the next model needs all of it.
        with contextlib.closing(engine):
            facts = complete(
                engine,
                {each.name: list(each.problems) for each in sets},
                label=label,
                prompt_format=model.prompt_format,
                system=model.system,
                evaluate=evaluate,
                seed=params.seed,
                scratch=scratch,
                completions=completions,
                long_is_wrong=True,
            )
            prompts = {each.name: _prompt_texts(engine, each, system=model.system) for each in sets}
        metrics, faults = grade_file(completions, graded, reward=params.reward)
    write_json(out / "prompts" / f"{label}.json", prompts)
    write_metrics(out / "metrics" / f"{label}.json", metrics)
    write_provenance(
        out / "provenance" / f"{label}.json",
        settings={**settings, "reward": params.reward.model_dump(mode="json")},
        inputs=inputs,
        benchmarks={
            each.name: {
                "adapter": each.adapter,
                "num_problems": len(each.problems),
                "num_repeated": each.num_repeated,
            }
            for each in sets
        },
        verifier={"code": verifier_code(), **faults},
        **facts,
    )
    for each in sets:
        # Instructions have no right answer: their outputs are for a judge elsewhere.
        if any(INSTRUCTION in problem.tags for problem in each.problems):
            write_json(out / each.name / f"{label}.json", alpaca_outputs(graded, each.name, label))
    return metrics


def _settings(model: ExternalModel, params: Params) -> dict[str, Any]:
    return {
        # The list of checkpoints is for the pipeline and changes no number here.
        "evaluate": params.evaluate.model_dump(mode="json", exclude={"checkpoints"}),
        "attention": params.model.attention,
        "dtype": model.dtype,
        "seed": params.seed,
        "prompt": {
            "format": model.prompt_format.name,
            "tool": model.prompt_format.tool,
            "template": model.template or "the model's own",
            "system": model.system,
        },
    }


def _prompt_texts(engine: Engine, benchmark: BenchmarkSet, *, system: str) -> dict[str, str]:
    # The tokenizer renders it: a model's own template may call functions of transformers, such as
    # `strftime_now`, that `lib.prompts.template` does not have.
    return {
        problem.id: engine.tokenizer.apply_chat_template(
            conversation(problem.problem, system=system),
            add_generation_prompt=True,
            tokenize=False,
        )
        for problem in benchmark.problems
    }


def alpaca_outputs(graded: Path, benchmark: str, generator: str) -> list[dict[str, str]]:
    """Return one object per instruction, in the format of `alpaca_eval --model_outputs`.

    The output is the greedy completion, or the first sampled one if there is no greedy one.
    """
    # By problem id.
    outputs: dict[str, GradedCompletion] = {}
    for row in read_graded(graded):
        if row.benchmark != benchmark:
            continue
        if row.problem_id not in outputs or row.mode == GREEDY:
            outputs[row.problem_id] = row
    # The subject is the instruction's data set.
    return [
        {
            "dataset": row.subject,
            "instruction": row.problem,
            "output": row.completion,
            "generator": generator,
        }
        for row in outputs.values()
    ]


def every_setting(text: str) -> dict[str, str]:
    """Expand `key=value,value …` words into all combinations of their values.

    Returns:
        Label suffix → words of the combination. `temperature=0.6,1.0 top_p=0.95` gives
        `{".temperature=0.6": "temperature=0.6 top_p=0.95", ".temperature=1.0": …}`.
    """
    # By word: [["temperature=0.6", "temperature=1.0"], ["top_p=0.95"]].
    choices = []
    for word in text.split():
        key, sign, values = word.partition("=")
        choices.append([f"{key}{sign}{value}" for value in values.split(",")])
    combinations = {}
    for words in itertools.product(*choices):
        varied = [word for word, options in zip(words, choices, strict=True) if len(options) > 1]
        suffix = "".join(f".{word}" for word in varied)
        combinations[suffix] = " ".join(words)
    return combinations


def apply_settings(
    section: Mapping[str, Any], text: str, *, benchmarks: Sequence[str]
) -> tuple[Evaluate, int | None]:
    """Apply the caller's `key=value` settings and benchmarks to the `evaluate` section of params.

    Args:
        section: `evaluate` of params.yaml; the overrides of `text` replace its `overrides`.
        text: `key=value` separated by spaces; `benchmark.key=value` for one benchmark only, as in
            `temperature=0.6 gsm8k.num_samples=4`. A temperature of 0 means one greedy completion
            and no samples.
        benchmarks: names of the benchmarks to measure.

    Returns:
        The section, and the seed if `seed=` is set.

    Raises:
        UserError: a word without `=`, an unknown key or benchmark, or an invalid value.
    """
    common, by_benchmark = dict(section), dict[str, dict[str, Any]]()
    for word in text.split():
        key, _, value = word.partition("=")
        if not value:
            raise UserError(f"SET: `{word}`: expected key=value, for example temperature=0.6")
        benchmark, _, name = key.rpartition(".")
        if name in ("checkpoints", "benchmarks", "overrides"):
            raise UserError(f"SET: `{name}` is not set here; see MODEL and BENCHMARKS")
        changed = by_benchmark.setdefault(benchmark, {}) if benchmark else common
        # As YAML 1.2, like params.yaml: 1e-05 is a number, `no` is a text.
        try:
            changed[name] = YAML(typ="safe").load(value)
        except YAMLError:
            raise UserError(f"SET: `{word}`: `{value}` is not YAML") from None
    seed = common.pop("seed", None)
    # True is an `int` too.
    if seed is not None and not (type(seed) is int and 0 <= seed < 2**32):
        raise UserError(f"SET: `seed={seed}`: expected a whole number from 0 to 2**32 - 1")
    # An override needs all keys of a decoding: the common value where the caller sets none.
    decoding = {key: common[key] for key in Decoding.model_fields}
    overrides = [{**decoding, **own, "benchmark": name} for name, own in by_benchmark.items()]
    for changed in (common, *overrides):
        # Sampling divides by the temperature: 0 means greedy only, and the field keeps its value.
        if changed.get("temperature") == 0:
            changed |= {"greedy": True, "num_samples": 0, "temperature": section["temperature"]}
    content = {**common, "benchmarks": list(benchmarks), "overrides": overrides}
    return parse_section(Evaluate, content, origin="SET", above=("evaluate",)), seed
