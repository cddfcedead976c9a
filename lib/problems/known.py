"""Public sets by name: known.yaml, as sources of params."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ruamel.yaml import YAML

from lib.params.data import GeneratorSource, HubSource, KnownSource, PathSource

if TYPE_CHECKING:
    from lib.artifacts.hub import Repository

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


def repository_of(source: HubSource) -> "Repository":
    """The repository that a split is in."""
    # Names of sets are checked with params, which no client of the Hub is imported for.
    from lib.artifacts.hub import Repository

    files = (source.files,) if source.files else ()
    return Repository("dataset", source.hub, source.revision, files=files, named_by="prepare")
