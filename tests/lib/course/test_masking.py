import pytest
import torch

from lib.course import masked_mean, masked_normalize

X = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
M = torch.tensor([[1, 0, 1], [0, 0, 1]])


@pytest.mark.parametrize(("dim", "mean"), [(1, [2.0, 6.0]), (-1, [2.0, 6.0]), (None, 10 / 3)])
def test_masked_mean_averages_what_the_mask_keeps(dim: int | None, mean: object) -> None:
    torch.testing.assert_close(masked_mean(X, M, dim), torch.tensor(mean))


def test_a_mean_over_nothing_is_nan() -> None:
    mean = masked_mean(X, M, dim=0)
    torch.testing.assert_close(mean, torch.tensor([1.0, torch.nan, 4.5]), equal_nan=True)


@pytest.mark.parametrize(
    ("dim", "total"), [(0, [0.5, 0.0, 4.5]), (1, [2.0, 3.0]), (-1, [2.0, 3.0]), (None, 5.0)]
)
def test_masked_normalize_divides_the_sum_by_the_constant(dim: int | None, total: object) -> None:
    torch.testing.assert_close(masked_normalize(X, M, dim, 2.0), torch.tensor(total))


@pytest.mark.parametrize("reduce", [masked_mean, masked_normalize])
def test_what_is_masked_reaches_neither_value_nor_gradient(reduce: object) -> None:
    assert callable(reduce)
    tensor = torch.tensor([[1.0, torch.nan, 3.0], [torch.inf, -torch.inf, 6.0]], requires_grad=True)
    value = reduce(tensor, M)
    value.backward()
    torch.testing.assert_close(value, reduce(X, M))
    assert tensor.grad is not None
    assert tensor.grad[M == 0].tolist() == [0, 0, 0]
