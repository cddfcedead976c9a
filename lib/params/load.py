"""Read params.yaml as DVC does (YAML 1.2) and report everything that is wrong with it at once."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import click
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from lib.core.errors import UserError
from lib.params.data import KINDS
from lib.params.measuring import Evaluate
from lib.params.schema import Params
from lib.params.section import Section, suggest

PARAMS_FILE = Path("params.yaml")

AnySection = TypeVar("AnySection", bound=Section)


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
        if isinstance(error, YAMLError) and re.search(r"^<{7} ", path.read_text("utf-8"), re.M):
            raise UserError(
                f"{path} holds a merge conflict; take one side with `git checkout --theirs {path}` "
                "(or `--ours`), then run `dvc repro`"
            ) from error
        raise UserError(f"{path} is not valid YAML: {_yaml_problem(error)}") from error
    if content is None:
        raise UserError(f"{path} is empty; write it with `make preset PRESET=tiny-cpu`")
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected sections like `sft:`, got {type(content).__name__}")
    return content


def _yaml_problem(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    line = f"line {mark.line + 1}: " if mark else ""
    return line + str(getattr(error, "problem", None) or error).strip().splitlines()[0]


def parse_params(content: Mapping[str, Any], *, origin: str) -> Params:
    """Check `content`; `origin` names it in errors.

    Raises:
        UserError: one line for each problem.
    """
    params = parse_section(Params, content, origin=origin)
    if conflicts := list(params.conflicts()):
        raise _refused(origin, conflicts)
    return params


def parse_evaluate(content: Mapping[str, Any], *, origin: str) -> Evaluate:
    """Check an `evaluate` section by itself, for what is measured outside the pipeline.

    Raises:
        UserError: one line for each problem.
    """
    return parse_section(Evaluate, content, origin=origin, above=("evaluate",))


def parse_section(
    section: type[AnySection],
    content: Mapping[str, Any],
    *,
    origin: str,
    above: tuple[str, ...] = (),
) -> AnySection:
    """Check `content` against one section, which is named by the keys `above` it.

    Raises:
        UserError: one line for each problem.
    """
    try:
        text = json.dumps(content, default=str)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{origin}: expected plain keys, and no alias inside what it stands for: {error}"
        ) from error
    try:
        # As JSON: strict Python mode refuses a YAML list where a tuple is meant.
        return section.model_validate_json(text, strict=True)
    except ValidationError as error:
        problems = error.errors()
        places = [problem["loc"] for problem in problems]
        lines = [
            _line(problem, section, above)
            for problem in problems
            # A list that came out short since its entries are wrong is no second problem.
            if problem["type"] != "too_short" or not _is_around(problem["loc"], places)
        ]
        raise _refused(origin, lines) from error


def _refused(origin: str, problems: Sequence[str]) -> UserError:
    counted = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return UserError(f"{origin} has {counted}:\n  " + "\n  ".join(problems))


def _is_around(place: tuple[str | int, ...], others: Sequence[tuple[str | int, ...]]) -> bool:
    return any(len(other) > len(place) and other[: len(place)] == place for other in others)


def _line(problem: ErrorDetails, section: type[BaseModel], above: tuple[str, ...]) -> str:
    """Dotted key, what was expected, and the value."""
    keys, whole = [*above], section
    for part in problem["loc"]:
        if part in KINDS:
            section = KINDS[str(part)] or section
            continue
        keys.append(str(part))
        if field := section.model_fields.get(str(part)):
            section = _section_in(field.annotation) or section
    match problem["type"]:
        case "extra_forbidden":
            words = f"unknown key; {suggest(keys[-1], section.model_fields)}"
        case "missing" if whole is Params:
            words = "missing; every key must be there (`lib/presets/tiny-cpu.yaml` has them all)"
        case "missing":
            words = "missing"
        case "too_short":
            limits = problem["ctx"]
            words = f"needs at least {limits['min_length']}, got {limits['actual_length']}"
        case "value_error":
            words = str(problem["ctx"]["error"])
        case _:
            message = problem["msg"]
            words = f"{message[0].lower()}{message[1:]}, got {problem['input']!r}"
    return f"{'.'.join(keys)}: {words}" if keys else words


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """The section that a field holds, by itself or in a list or mapping."""
    candidates = (annotation, *get_args(annotation))
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
