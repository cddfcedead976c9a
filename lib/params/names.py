"""Names in params that a registry or another section has to know.

They are looked up in the raw content, so that a wrong name is said together with wrong values.
"""

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from lib.params.section import HELD_BACK, NAME
from lib.problems.adapters import ADAPTERS
from lib.problems.known import known_sets
from lib.prompts import PROMPT_FORMATS
from lib.verifier.rewards import STACKS, reward_names


def unknown_names(content: Mapping[str, Any]) -> list[str]:
    """One line for each name that nothing answers to; what is no name is the schema's to refuse."""
    return [
        f"{key}: no `{name}`; {suggest(name, known)}"
        for key, name, known in _chosen(content)
        if isinstance(name, str) and re.match(NAME, name) and name not in known
    ]


def suggest(name: str, known: Collection[str]) -> str:
    """The nearest of the known names, or all of them."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean `{near[0]}`?" if near else f"there are {', '.join(known)}"


def _chosen(content: Mapping[str, Any]) -> Iterator[tuple[str, Any, Collection[str]]]:
    """Key, name and the names that there are."""
    yield "prompt.format", _at(content, "prompt", "format"), PROMPT_FORMATS
    yield "reward.stack", _at(content, "reward", "stack"), STACKS
    yield "validation.stack", _at(content, "validation", "stack"), STACKS
    for name in _entries(content, "reward", "extra"):
        yield "reward.extra", name, reward_names()
    benchmarks = [_at(made, "name") for made in _entries(content, "prepare", "benchmarks")]
    if benchmarks and all(isinstance(name, str) for name in benchmarks):
        for name in _entries(content, "evaluate", "benchmarks"):
            yield "evaluate.benchmarks", name, benchmarks
        for name in _entries(content, "validation", "sets"):
            yield "validation.sets", name, [*benchmarks, HELD_BACK]
    for keys in (("sft", "sources"), ("grpo", "sources"), ("benchmarks",)):
        for number, entry in enumerate(_entries(content, "prepare", *keys)):
            key = ".".join(("prepare", *keys, str(number), "source"))
            yield f"{key}.adapter", _at(entry, "source", "adapter"), ADAPTERS
            yield f"{key}.known", _at(entry, "source", "known"), known_sets()


def _at(content: Any, *keys: str) -> Any:
    """The value below `keys`, None where there is no such."""
    for key in keys:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content


def _entries(content: Any, *keys: str) -> list[Any]:
    found = _at(content, *keys)
    return found if isinstance(found, list) else []
