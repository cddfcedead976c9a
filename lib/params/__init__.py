"""params.yaml: its schema, its loading with every problem reported at once, and its presets."""

from lib.params.load import PARAMS_FILE, load_params, parse_params
from lib.params.presets import (
    compose_preset,
    facts_of,
    model_names,
    model_shapes,
    preset_names,
    preset_params,
)
from lib.params.schema import Params

__all__ = [
    "PARAMS_FILE",
    "Params",
    "compose_preset",
    "facts_of",
    "load_params",
    "model_names",
    "model_shapes",
    "parse_params",
    "preset_names",
    "preset_params",
]
