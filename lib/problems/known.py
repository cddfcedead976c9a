"""Public sets by name: known.yaml, as sources of params."""

from functools import cache
from pathlib import Path
from typing import Any, cast

from ruamel.yaml import YAML

from lib.params.data import GeneratorSource, HubSource, KnownSource, PathSource

AnySource = GeneratorSource | PathSource | HubSource | KnownSource


@cache
def known_sets() -> dict[str, dict[str, Any]]:
    """What known.yaml says of each set."""
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    return cast("dict[str, dict[str, Any]]", YAML(typ="safe").load(text))


def hub_splits(source: AnySource) -> tuple[HubSource, ...]:
    """The splits on the Hub that a source stands for, in order; () for one that is no set there."""
    if isinstance(source, HubSource):
        return (source,)
    if not isinstance(source, KnownSource):
        return ()
    entry = {"adapter": "table", "files": "", "subsets": [""], **known_sets()[source.known]}
    subsets = entry.pop("subsets")
    return tuple(
        HubSource(**entry, subset=subset, columns={}, limit=source.limit) for subset in subsets
    )
