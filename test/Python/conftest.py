"""Finds the package and the scripts without an installation, and keeps torch to one thread."""

import sys
import warnings
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python-bindings"), str(ROOT / "scripts")]
torch.set_num_threads(1)


def pytest_configure(config):
    config.addinivalue_line("markers", "covers(*names): rows of docs/fsdp-coverage.toml that the test shows")


@pytest.fixture
def agrees():
    """Captures a module, runs the graph, compares loss, gradients and buffers with eager PyTorch, and returns the graph."""
    import fsdp_mlir

    def compare(module, inputs, *, data=None, tolerance=1e-5, **options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = fsdp_mlir.capture(module, inputs, **options)
        data = inputs if data is None else data
        step = program.module(check_guards=False)
        loss, *gradients = step(*(t for t in data if isinstance(t, torch.Tensor)))
        result = module(*data)
        expected = result if isinstance(result, torch.Tensor) else result["loss"]
        expected.backward()
        torch.testing.assert_close(loss, expected, rtol=tolerance, atol=tolerance)
        trained = [s.target for s in program.graph_signature.output_specs if s.kind.name == "GRADIENT_TO_PARAMETER"]
        named = dict(module.named_parameters())
        assert set(trained) == {n for n, p in named.items() if p.grad is not None}
        for name, gradient in zip(trained, gradients):
            scale = max(1.0, named[name].grad.abs().max().item())
            torch.testing.assert_close(gradient, named[name].grad, rtol=0, atol=tolerance * scale, msg=lambda m: f"{name}: {m}")
        for name, buffer in module.named_buffers():
            torch.testing.assert_close(step.get_buffer(name), buffer, rtol=tolerance, atol=tolerance)
        return program

    return compare


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def fixtures() -> Path:
    return ROOT / "test" / "fixtures"
