"""Public sets by name, as sources of params: what `known.yaml` stands for."""

from lib.artifacts.hub import Repository
from lib.params.data import GeneratorSource, HubSource, KnownSource, PathSource, known_sets

AnySource = GeneratorSource | PathSource | HubSource | KnownSource


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


def repository_of(source: HubSource) -> Repository:
    """The repository that a split is in."""
    files = (source.files,) if source.files else ()
    return Repository("dataset", source.hub, source.revision, files=files, named_by="prepare")
