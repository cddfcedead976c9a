"""Read params.yaml as DVC does (YAML 1.2) and say everything that is wrong with it at once."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import click
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from lib.errors import UserError
from lib.params.data import KINDS
from lib.params.measuring import Evaluate
from lib.params.names import suggest, unknown_names
from lib.params.schema import Params
from lib.plugins import is_plugin, label
from lib.prompts import format_settings, prompt_format
from lib.verifier.rewards import STACKS, build_rewards

PARAMS_FILE = Path("params.yaml")


def load_params(path: Path = PARAMS_FILE) -> Params:
    """Read and check a complete params file.

    Raises:
        UserError: one line for each problem, with its dotted key.
    """
    params = parse_params(read_yaml(path), origin=str(path))
    for warning in params.warnings():
        click.echo(f"Warning: {path}: {warning}", err=True)
    return params


def read_yaml(path: Path) -> dict[str, Any]:
    """Parse one YAML mapping.

    Raises:
        UserError: no such file, no YAML (with the line), or no mapping.
    """
    try:
        content = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing; write it with `make preset PRESET=tiny-cpu`") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (YAMLError, ValueError) as error:
        raise UserError(f"{path} is not valid YAML: {_yaml_problem(error)}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected sections like `sft:`, got {type(content).__name__}")
    return content


def _yaml_problem(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    line = f"line {mark.line + 1}: " if mark else ""
    return line + str(getattr(error, "problem", None) or error).strip().splitlines()[0]


def parse_params(content: Mapping[str, Any], *, origin: str) -> Params:
    """Check `content`; `origin` names it in errors.

    Strict JSON mode, since strict Python mode refuses a YAML list where a tuple is meant.
    """
    text, problems = _as_json(content, origin=origin), unknown_names(content)
    try:
        params = Params.model_validate_json(text, strict=True)
        problems = problems or _unfit(params)
    except ValidationError as error:
        problems = [*in_words(error.errors()), *problems]
    if problems:
        raise _refused(origin, problems)
    return params


def parse_evaluate(content: Mapping[str, Any], *, origin: str) -> Evaluate:
    """Check an `evaluate` section by itself, for what is measured outside the pipeline.

    Raises:
        UserError: one line for each problem.
    """
    try:
        return Evaluate.model_validate_json(_as_json(content, origin=origin), strict=True)
    except ValidationError as error:
        placed = [{**problem, "loc": ("evaluate", *problem["loc"])} for problem in error.errors()]
        raise _refused(origin, in_words(cast(list[ErrorDetails], placed))) from error


def _refused(origin: str, problems: Sequence[str]) -> UserError:
    counted = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return UserError(f"{origin} has {counted}:\n  " + "\n  ".join(problems))


def _as_json(content: Mapping[str, Any], *, origin: str) -> str:
    try:
        return json.dumps(content, default=str)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{origin}: expected plain keys, and no alias inside what it stands for: {error}"
        ) from error


def _unfit(params: Params) -> list[str]:
    """Tags or a layout that the format cannot take, rewards without a weight or tags to count."""
    reward, validation = params.reward, params.validation
    functions, checked = (*STACKS[reward.stack], *reward.extra), STACKS[validation.stack]
    for key, names, weights in (
        ("reward", functions, reward.weights),
        ("validation", checked, validation.weights),
    ):
        if len(names) != len(weights):
            return [
                f"{key}.weights: {len(weights)} weights for "
                f"{len(names)} functions ({', '.join(map(label, names))})"
            ]
    settings = reward.settings(max_completion_tokens=params.rollout.max_new_tokens)
    try:
        chosen = prompt_format(**format_settings(params.prompt))
        # One's own are tried by `check`: a stage before GRPO need not have them.
        registered = [name for name in (*functions, *checked) if not is_plugin(name)]
        build_rewards(registered, prompt_format=chosen, **settings)
    except UserError as error:
        return [error.message]
    return []


def in_words(problems: Sequence[ErrorDetails]) -> list[str]:
    """One line each; a list that came out short since its entries are wrong is no second one."""
    places = [problem["loc"] for problem in problems]
    return [
        _line(problem)
        for problem in problems
        if problem["type"] != "too_short" or not _is_around(problem["loc"], places)
    ]


def _is_around(place: tuple[str | int, ...], others: Sequence[tuple[str | int, ...]]) -> bool:
    return any(len(other) > len(place) and other[: len(place)] == place for other in others)


def _line(problem: ErrorDetails) -> str:
    # Pydantic names the kind of value that it took a source for, which params do not.
    location = [
        str(part)
        for before, part in zip((None, *problem["loc"]), problem["loc"], strict=False)
        if part not in KINDS.get(str(before), {})
    ]
    words = _explain(problem, problem["loc"])
    return f"{'.'.join(location)}: {words}" if location else words


def _explain(problem: ErrorDetails, location: Sequence[str | int]) -> str:
    got, context = problem["input"], problem.get("ctx", {})
    match problem["type"]:
        case "extra_forbidden":
            return "unknown key; " + suggest(str(location[-1]), _keys_beside(location))
        case "missing":
            return "missing; every key must be there (`lib/presets/tiny-cpu.yaml` has them all)"
        case "less_than_equal":
            return f"must be at most {_number(context['le'])}, got {got}"
        case "greater_than_equal":
            return f"must be at least {_number(context['ge'])}, got {got}"
        case "less_than":
            return f"must be less than {_number(context['lt'])}, got {got}"
        case "greater_than":
            return f"must be more than {_number(context['gt'])}, got {got}"
        case "literal_error":
            return f"must be one of {context['expected'].replace(' or ', ', ')}, got {got!r}"
        case "value_error":
            return str(context["error"])
        case _:
            return f"{problem['msg'][0].lower()}{problem['msg'][1:]}, got {got!r}"


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _keys_beside(location: Sequence[str | int]) -> list[str]:
    section: type[BaseModel] = Params
    for before, key in zip((None, *location), location[:-1], strict=False):
        kinds = KINDS.get(str(before), {})
        if isinstance(key, str) and key in kinds:
            section = kinds[key] or section
        elif isinstance(key, str):
            section = _section_in(section.model_fields[key].annotation) or section
    return list(section.model_fields)


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """The section that a field holds, by itself or in a list."""
    candidates = (annotation, *get_args(annotation))
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
