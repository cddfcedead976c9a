"""Read params.yaml as DVC does (YAML 1.2) and report everything that is wrong with it at once.

Presets are overlays on `tiny-cpu`, resolved into a complete params.yaml that keeps its comments.
"""

import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import click
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError

from lib.core.errors import UserError
from lib.params.data import KINDS
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


PRESETS = Path(__file__).parent.parent / "presets"
BASE = "tiny-cpu"

QUICK_ROWS, QUICK_STEPS = 32, 5


def preset_names() -> list[str]:
    """All presets, the default first."""
    names = sorted(path.stem for path in PRESETS.glob("*.yaml"))
    return [BASE, *(name for name in names if name != BASE)]


def compose_preset(preset: str, *, quick: bool = False) -> str:
    """The text of a complete params.yaml for a preset's name or a path to an overlay.

    Args:
        preset: a name or a path.
        quick: make it the first ten minutes on a rented card (`shorten`).

    Raises:
        UserError: no such preset; a key that the base lacks; values that do not fit together.
    """
    path = _find(preset)
    complete = round_trip().load((PRESETS / f"{BASE}.yaml").read_text(encoding="utf-8"))
    if path != PRESETS / f"{BASE}.yaml":
        _overlay(complete, read_yaml(path), origin=str(path), parents=())
    if quick:
        shorten(complete)
    stream = io.StringIO()
    round_trip().dump(complete, stream)
    text = stream.getvalue()
    parse_params(YAML(typ="safe").load(text), origin=str(path))
    return text


def preset_params(preset: str) -> Params:
    """The params of a preset's name or a path to an overlay.

    Raises:
        UserError: as `compose_preset`.
    """
    return parse_params(YAML(typ="safe").load(compose_preset(preset)), origin=preset)


def shorten(content: dict[str, Any]) -> None:
    """The same model, lengths, engines and batches, with five steps a phase and few problems.

    SFT has no other measure of its length than epochs and examples: it gets those of five steps.
    """
    prepare, sft, grpo = content["prepare"], content["sft"], content["grpo"]
    for entry in prepare["benchmarks"]:
        entry["source"] |= {"limit": QUICK_ROWS} if "limit" in entry["source"] else {}
    prepare["sft"]["num_train_examples"] = QUICK_STEPS * sft["batch_size"]
    prepare["grpo"]["num_train_examples"] = max(QUICK_ROWS, grpo["prompts_per_step"])
    content["validation"]["num_problems"] = 8
    sft["num_epochs"] = min(1, sft["num_epochs"])
    content["dpo"]["num_epochs"] = min(1, content["dpo"]["num_epochs"])
    content["dpo"]["pairs"]["num_problems"] = QUICK_ROWS
    grpo["max_steps"] = min(QUICK_STEPS, grpo["max_steps"])
    for phase in (sft, grpo):
        phase |= {"logging_steps": 1, "save_steps": QUICK_STEPS, "eval_steps": QUICK_STEPS}
    content["evaluate"]["num_samples"] = min(2, content["evaluate"]["num_samples"])
    content["export"]["num_verified"] = 8


def _find(preset: str) -> Path:
    if preset in preset_names():
        return PRESETS / f"{preset}.yaml"
    path = Path(preset)
    if path.suffix in {".yaml", ".yml"} and path.is_file():
        return path
    raise UserError(
        f"no preset `{preset}`; expected the path of a YAML file or one of "
        f"{', '.join(preset_names())}"
    )


def _overlay(
    below: CommentedMap, above: Mapping[str, Any], *, origin: str, parents: tuple[str, ...]
) -> None:
    for key, value in above.items():
        dotted = (*parents, str(key))
        if key not in below:
            raise UserError(f"{origin}: {'.'.join(dotted)}: unknown key, {BASE} has no such")
        if isinstance(below[key], dict) and isinstance(value, dict):
            _overlay(below[key], value, origin=origin, parents=dotted)
        elif isinstance(value, list):
            below[key] = CommentedSeq(value)
        else:
            below[key] = value


def round_trip() -> YAML:
    """The writer that DVC uses for `-S`, so that its changes are one-line diffs."""
    yaml = YAML()
    yaml.default_flow_style = False
    return yaml
