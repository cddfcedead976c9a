from tests.lib.objectives.conftest import model, reference_model, tokenizer

__all__ = ["model", "reference_model", "tokenizer"]
