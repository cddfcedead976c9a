"""What we override in TRL is still there, with the parameters that we know."""

import inspect

import pytest
from trl import GRPOTrainer

from lib.trainers.batching import PackingTrainer
from lib.trainers.policy_gradient import PolicyGradientTrainer
from lib.trainers.seams import ATTRIBUTES, OVERRIDDEN


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_an_overridden_method_has_the_parameters_that_it_had(name: str) -> None:
    theirs = inspect.signature(getattr(GRPOTrainer, name)).parameters
    assert tuple(theirs) == OVERRIDDEN[name].parameters


def test_every_override_is_listed() -> None:
    ours = {name for name in vars(PolicyGradientTrainer) if hasattr(GRPOTrainer, name)}
    ours |= {name for name in vars(PackingTrainer) if hasattr(GRPOTrainer, name)}
    private = {name for name in ours if name.startswith("_") and not name.startswith("__")}
    assert private == set(OVERRIDDEN)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute_that_is_set_or_read_is_trls(name: str) -> None:
    assert f"self.{name} " in inspect.getsource(GRPOTrainer.__init__)
