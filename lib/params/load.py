"""Read params.yaml as DVC does (YAML 1.2), and report all problems at once."""

import functools
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import click
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from lib.core.errors import UserError
from lib.params.data import UNION_TAGS, LimitedSource
from lib.params.model import DETERMINISTIC
from lib.params.rules import conflicts, warnings
from lib.params.schema import Params
from lib.params.section import Section, suggest
from lib.params.training import AdamW

PARAMS_FILE = Path("params.yaml")

PRESETS = Path(__file__).parent.parent / "presets"
DPO = PRESETS / "phases/dpo.yaml"
"""The overlay that adds the phase DPO; its section `dpo` has all keys."""

AnySection = TypeVar("AnySection", bound=Section)


def load_params(path: Path = PARAMS_FILE) -> Params:
    """Read and check a complete params file; print warnings to stderr.

    Also sets the environment of `model.deterministic`: params are read before torch is imported.

    Raises:
        UserError: one line for each problem, with its dotted key.
    """
    params = parse_params(read_yaml(path), origin=str(path))
    for warning in warnings(params):
        click.echo(f"Warning: {path}: {warning}", err=True)
    if params.model.deterministic:
        os.environ |= DETERMINISTIC
    return params


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file with a mapping at its top level.

    Raises:
        UserError: no such file, no YAML (with the line), or no mapping.
    """
    is_params = path.name == PARAMS_FILE.name
    hint = "; write it with `make preset PRESET=tiny-cpu`" if is_params else ""
    try:
        text = path.read_text(encoding="utf-8")
        content = YAML(typ="safe").load(text)
    except FileNotFoundError:
        raise UserError(f"{path} is missing{hint}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (YAMLError, ValueError) as error:
        # A failed `git merge` leaves lines that begin with <<<<<<<, to YAML an unexpected token.
        if isinstance(error, YAMLError) and re.search(r"^<{7} ", path.read_text("utf-8"), re.M):
            raise UserError(
                f"{path} holds a merge conflict; take one side with `git checkout --theirs {path}` "
                "(or `--ours`), then run `dvc repro`"
            ) from error
        raise UserError(f"{path} is not valid YAML: {_yaml_problem(error)}") from error
    if content is None:
        raise UserError(f"{path} is empty{hint}")
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected sections like `sft:`, got {type(content).__name__}")
    return content


def _yaml_problem(error: Exception) -> str:
    """Return a YAML error as one line, with its line in the file: "line 3: expected …"."""
    mark = getattr(error, "problem_mark", None)
    line = f"line {mark.line + 1}: " if mark else ""
    return line + str(getattr(error, "problem", None) or error).strip().splitlines()[0]


def parse_params(content: Mapping[str, Any], *, origin: str) -> Params:
    """Validate the content of a params file, and return the params.

    Args:
        content: the parsed YAML.
        origin: name of its source, such as the file, for messages.

    Raises:
        UserError: one line for each problem.
    """
    phases = {name: content.get(name) for name in ("sft", "grpo", "dpo")}
    # `optimizer` reports its faults itself.
    inherited = {
        (name, key)
        for name, phase in phases.items()
        for key in AdamW.model_fields
        if isinstance(phase, Mapping) and key not in phase
    }
    params = parse_section(Params, _completed(content, origin), origin=origin, inherited=inherited)
    if faults := list(conflicts(params)):
        raise _refused(origin, faults)
    return params


def _completed(content: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Return params with what params.yaml leaves out.

    A phase gets the settings of `optimizer` that it does not have itself. A DPO that does not run
    gets the values of `DPO`, which then change nothing.
    """
    complete = dict(content)
    phase = complete.get("dpo")
    if isinstance(phase, Mapping) and "init" in phase:
        missing = [key for key in _dpo() if key not in phase]
        if not phase["init"]:
            complete["dpo"] = _over(_dpo(), phase)
        elif missing:
            raise _refused(
                origin,
                [f"dpo: without {', '.join(missing)}; `./reckon preset NAME --dpo sft` adds them"],
            )
    optimizer = content.get("optimizer")
    for name in ("sft", "grpo", "dpo"):
        phase = complete.get(name)
        if isinstance(phase, Mapping) and isinstance(optimizer, Mapping):
            shared = {key: optimizer[key] for key in AdamW.model_fields if key in optimizer}
            complete[name] = {**shared, **phase}
    return complete


@functools.cache
def _dpo() -> Mapping[str, Any]:
    section: Mapping[str, Any] = read_yaml(DPO)["dpo"]
    return section


def _over(below: Any, above: Any) -> Any:
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    return {**below, **{key: _over(below.get(key), value) for key, value in above.items()}}


def parse_section(
    section: type[AnySection],
    content: Mapping[str, Any],
    *,
    origin: str,
    above: tuple[str, ...] = (),
    inherited: Collection[tuple[str, ...]] = (),
) -> AnySection:
    """Validate `content` against the schema of one section, and return the section.

    Args:
        origin: name of the source of `content`, for messages.
        above: the keys in params.yaml that lead to the section, for messages; () for all of it.
        inherited: places of values that were copied from another section: that one's check reports
            their faults.

    Raises:
        UserError: one line for each problem.
    """
    try:
        # default=str: a YAML date becomes text. The schema refuses it under its key, unless that
        # takes any text.
        text = json.dumps(content, default=str)
    # A key that JSON does not have, such as a list or a date.
    except (TypeError, ValueError) as error:
        raise UserError(f"{origin}: expected plain keys: {error}") from error
    try:
        # Through JSON: pydantic's strict mode accepts a list for a tuple only in JSON.
        return section.model_validate_json(text, strict=True)
    except ValidationError as error:
        problems, lines = error.errors(), list[str]()
        for problem in problems:
            place = problem["loc"]
            inner = [
                other["loc"]
                for other in problems
                if other["loc"] != place and other["loc"][: len(place)] == place
            ]
            # pydantic also reports a list with wrong entries as too short: only the entries count.
            if place not in inherited and not (problem["type"] == "too_short" and inner):
                lines += _problem_lines(problem, section, above)
        raise _refused(origin, lines) from error


def _refused(origin: str, problems: Sequence[str]) -> UserError:
    counted = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return UserError(f"{origin} has {counted}:\n  " + "\n  ".join(problems))


def _problem_lines(
    problem: ErrorDetails, section: type[BaseModel], above: tuple[str, ...]
) -> Iterator[str]:
    """Format one of pydantic's problems: "sft.num_epochs: input should be …, got -1".

    A section that contradicts itself has a line for each contradiction.

    Args:
        section: the section that pydantic checked.
        above: the keys in params.yaml that lead to it.
    """
    keys, innermost = [*above], section
    for key in problem["loc"]:
        if key in UNION_TAGS:
            innermost = UNION_TAGS[str(key)] or innermost
            continue
        keys.append(str(key))
        if field := innermost.model_fields.get(str(key)):
            innermost = _section_in(field.annotation) or innermost
    match problem["type"]:
        case "extra_forbidden":
            texts = [f"unknown key; {suggest(keys[-1], innermost.model_fields)}"]
        case "missing" if issubclass(innermost, LimitedSource):
            texts = ["missing; docs/data.md shows a source of each kind"]
        case "missing" if section is Params:
            texts = ["missing; every key must be there (`lib/presets/tiny-cpu.yaml` has them all)"]
        case "missing":
            texts = ["missing"]
        case "too_short":
            limits = problem["ctx"]
            texts = [f"needs at least {limits['min_length']}, got {limits['actual_length']}"]
        case "value_error":
            # The ValueError of a validator: its text, or one argument for each contradiction.
            texts = problem["ctx"]["error"].args
        case _:
            message = problem["msg"]
            texts = [f"{message[0].lower()}{message[1:]}, got {problem['input']!r}"]
    for text in texts:
        yield f"{'.'.join(keys)}: {text}" if keys else text


def _section_in(annotation: Any) -> type[BaseModel] | None:
    # One level is enough: a section is the annotation itself, or in a tuple, mapping or union.
    candidates = (annotation, *get_args(annotation))
    types = (each for each in candidates if isinstance(each, type))
    return next((each for each in types if issubclass(each, BaseModel)), None)


def round_trip() -> YAML:
    """Return a YAML reader and writer that keeps comments and order, with DVC's settings.

    DVC rewrites params.yaml for `-S`: with the same settings, its changes are one-line diffs.
    """
    yaml = YAML()
    yaml.default_flow_style = False
    return yaml
