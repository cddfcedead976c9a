"""Settings of the systems from their sources: systems.yaml, by preset."""

from pathlib import Path
from typing import Any

from lib.params.load import read_yaml

SYSTEMS: dict[str, dict[str, Any]] = read_yaml(Path(__file__).with_suffix(".yaml"))
del SYSTEMS["common"]
