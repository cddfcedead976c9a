"""Models outside the pipeline: which folder a name means, and how its model is prompted."""

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from lib.artifacts import read_json
from lib.engines.policy import ADAPTER, is_adapter, read_dtype
from lib.errors import UserError
from lib.inference.exported import base_of, find_format, find_model, find_system
from lib.params.load import parse_evaluate
from lib.params.measuring import Evaluate
from lib.prompts import PromptFormat, prompt_format, system_prompt

PIPELINE_BASE = Path("data/models/base")
OWN = "own"
"""Layout that keeps the chat template that a model came with."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptedModel:
    """A model in one prompt format.

    Attributes:
        label: what tables and files call it.
        base: the weights that an adapter was trained on; the model itself where it is none.
        template: chat template that its prompts are rendered with; None for its own.
        dtype: type that its weights are computed in.
    """

    label: str
    folder: Path
    base: Path
    prompt_format: PromptFormat
    system: str
    template: str | None
    dtype: str


def prompted_models(
    model_ids: Sequence[str], *, formats: Sequence[str], system: str | None, base: Path | None
) -> list[PromptedModel]:
    """Every model in every format, with labels of their own.

    Args:
        model_ids: folders or Hub ids.
        formats: names of prompt formats, `name/layout` for another layout, `name/own` for the
            model's own chat template; none for the format that each model came with.
        system: system prompt as `prompt.system` in params; None for the model's own.
        base: of adapters whose base is not found by itself.

    Raises:
        UserError: no such model or format, or a model that does not say its format.
    """
    models: list[PromptedModel] = []
    if not model_ids:
        raise UserError("which model? MODEL=data/models/grpo, or a Hub id; several by commas")
    for model_id in model_ids:
        folder = find_model(model_id)
        for name in formats or [""]:
            label = _label(model_id, name, taken={model.label for model in models})
            models.append(_prompted(folder, name, label=label, system=system, base=base))
    return models


def _prompted(
    folder: Path, format_name: str, *, label: str, system: str | None, base: Path | None
) -> PromptedModel:
    below = _base(folder, base)
    known = find_format(folder) or find_format(below)
    name, _, layout = format_name.partition("/")
    own = layout == OWN or not format_name
    if format_name:
        form: PromptFormat = prompt_format(name, layout="plain" if own else layout or "plain")
    elif known is None:
        raise UserError(
            f"{folder} does not say which prompt format it answers in; set PROMPT_FORMAT, for "
            f"example boxed/{OWN}: its own chat template, the answer in \\boxed{{}} "
            "(docs/evaluate.md)"
        )
    else:
        form = known
    if system is not None:
        message = system_prompt(system, prompt_format=form)
    else:
        message = find_system(folder) or find_system(below)
    return PromptedModel(
        label=label,
        folder=folder,
        base=below,
        prompt_format=form,
        system=message,
        template=None if own else form.chat_template,
        dtype=read_dtype(below),
    )


def _base(folder: Path, named: Path | None) -> Path:
    if not is_adapter(folder):
        return folder
    own = read_json(folder / ADAPTER).get("base_model_name_or_path") or ""
    places = [named] if named else [base_of(folder), Path(own), PIPELINE_BASE]
    for place in places:
        if (place / "config.json").is_file():
            return place
    raise UserError(
        f"{folder} is an adapter, and the model that it was trained on is not in "
        f"{', '.join(str(place) for place in places if str(place) != '.')}; give BASE_MODEL=FOLDER"
    )


def _label(model_id: str, format_name: str, *, taken: Collection[str]) -> str:
    """The last word of the name, more where that is taken, and the format where one is set."""
    parts = [re.sub(r"[^\w.-]+", "-", part) for part in Path(model_id).parts if part != "/"]
    ending = f".{format_name.replace('/', '-')}" if format_name else ""
    for length in range(1, len(parts) + 1):
        label = "-".join(parts[-length:]) + ending
        if label not in taken:
            return label
    raise UserError(f"MODEL: `{model_id}` stands there twice")


def apply_settings(
    section: Mapping[str, Any], text: str, *, benchmarks: Sequence[str]
) -> tuple[Evaluate, int | None]:
    """The `evaluate` section of params for other benchmarks, with settings of the reader's.

    Args:
        section: of params.yaml.
        text: `key=value` by spaces; `benchmark.key=value` for one benchmark only.
        benchmarks: what is measured.

    Returns:
        The section, and `seed=` where that was set.

    Raises:
        UserError: no `key=value`, an unknown key or benchmark, or a value that is none.
    """
    seed: int | None = None
    common, single = dict(section), dict[str, dict[str, Any]]()
    for word in text.split():
        key, equals, value = word.partition("=")
        if not equals or not value:
            raise UserError(f"SET: `{word}`: expected key=value, for example temperature=0.6")
        benchmark, _, name = key.rpartition(".")
        parsed = YAML(typ="safe").load(value)
        if key == "seed":
            if not isinstance(parsed, int):
                raise UserError(f"SET: `{word}`: expected a whole number")
            seed = parsed
        elif name in ("checkpoints", "benchmarks", "overrides"):
            raise UserError(f"SET: `{name}` is not set here; see MODEL and BENCHMARKS")
        elif benchmark:
            single.setdefault(benchmark, {})[name] = parsed
        else:
            common[name] = parsed
    decoding = ("greedy", "num_samples", "temperature", "top_p", "max_new_tokens")
    overrides = [
        {**{key: common[key] for key in decoding}, **own, "benchmark": name}
        for name, own in single.items()
    ]
    content = {**common, "benchmarks": list(benchmarks), "overrides": overrides}
    return parse_evaluate(content, origin="SET"), seed
