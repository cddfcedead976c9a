"""Training: TRL's trainers, set up from params."""

from lib.engines.compat import silence_supported_range

silence_supported_range()
