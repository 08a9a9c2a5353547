"""What kernel selection takes for granted of ATen's kernels: the same bits, for numbers of all kinds and any layout."""

import itertools

import pytest
import torch

KINDS = [0.0, -0.0, 1.0, -1.5, 3e-39, -1e-45, 1e-20, 3e38, float("inf"), -float("inf"), float("nan")]
INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.bfloat16: torch.int16, torch.float16: torch.int16}


def numbers(dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Every kind of number against every other, and some more: 16 x 4 x 32."""
    pairs = list(itertools.product(KINDS, KINDS))
    special = torch.tensor([pair[seed] for pair in pairs])
    rest = torch.randn(16 * 4 * 32 - len(pairs), generator=torch.Generator().manual_seed(seed))
    return torch.cat([special, rest]).to(dtype).view(16, 4, 32)


def assert_same_bits(result: torch.Tensor, expected: torch.Tensor) -> None:
    """NaN for NaN; which NaN is nobody's promise."""
    nan = torch.isnan(expected)
    bits = INTEGERS[expected.dtype]
    assert torch.equal(torch.isnan(result), nan)
    assert torch.equal(result.contiguous().view(bits)[~nan], expected.contiguous().view(bits)[~nan])


# ATen's own word for it: aten/src/ATen/native/Pow.cpp copies for 1.
@pytest.mark.parametrize("dtype", INTEGERS)
def test_first_power_is_a_copy(dtype):
    x = numbers(dtype)
    for exponent in (1, 1.0):
        assert_same_bits(torch.pow(x, exponent), x)


# aten/src/ATen/native/cpu/PowKernel.cpp multiplies for 2.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_second_power_is_a_product(dtype):
    x = numbers(dtype)
    for exponent in (2, 2.0):
        assert_same_bits(torch.pow(x, exponent), torch.mul(x, x))
        assert_same_bits(torch.pow(x.transpose(0, 2), exponent), torch.mul(x, x).transpose(0, 2))


# IEEE 754 has one result for each of these: that of a kernel over vectors and that of one over single elements.
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("operator", [torch.abs, torch.neg, torch.add, torch.sub, torch.mul, torch.div])
def test_exact_operators_do_not_see_strides(operator, dtype):
    operands = [numbers(dtype, seed) for seed in range(1 if operator in (torch.abs, torch.neg) else 2)]
    expected = operator(*operands)
    for order in itertools.permutations(range(3)):
        wide = torch.zeros([2 * size for size in expected.permute(order).shape], dtype=dtype)
        window = wide[tuple(slice(0, size) for size in expected.permute(order).shape)]
        back = [order.index(axis) for axis in range(3)]
        operator(*operands, out=window.permute(back))
        assert_same_bits(window.permute(back), expected)
        assert_same_bits(operator(*(operand.permute(order) for operand in operands)).permute(back), expected)
