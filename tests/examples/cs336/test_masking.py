import pytest
import torch

from examples.cs336 import masked_mean, masked_normalize

X = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
M = torch.tensor([[1, 0, 1], [0, 0, 1]])


@pytest.mark.parametrize(
    ("dim", "mean", "total"),
    [
        (0, [1.0, torch.nan, 4.5], [0.5, 0.0, 4.5]),
        (-1, [2.0, 6.0], [2.0, 3.0]),
        (None, 10 / 3, 5.0),
    ],
)
def test_means_and_sums_are_of_what_the_mask_keeps(dim, mean, total):
    """The mean of no elements is NaN, as in the course."""
    torch.testing.assert_close(masked_mean(X, M, dim), torch.tensor(mean), equal_nan=True)
    torch.testing.assert_close(masked_normalize(X, M, dim, 2.0), torch.tensor(total))


@pytest.mark.parametrize("reduce", [masked_mean, masked_normalize])
def test_what_is_masked_reaches_neither_value_nor_gradient(reduce):
    tensor = torch.tensor([[1.0, torch.nan, 3.0], [torch.inf, -torch.inf, 6.0]], requires_grad=True)
    value = reduce(tensor, M)
    value.backward()
    torch.testing.assert_close(value, reduce(X, M))
    assert tensor.grad[M == 0].tolist() == [0, 0, 0]
