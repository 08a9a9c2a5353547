"""Plans for GPUs, which no GPU runs here: what they launch."""

import warnings

import pytest
import torch
from conftest import FIXTURES, succeed
from interpreter import NONE, read
from torch import nn

import fsdp_mlir


class Attention(nn.Module):
    def __init__(self, is_causal, dtype):
        super().__init__()
        self.inner, self.outer, self.is_causal = nn.Linear(32, 96, dtype=dtype), nn.Linear(32, 32, dtype=dtype), is_causal

    def forward(self, x):
        query, key, value = self.inner(x).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal)
        return x + self.outer(y.transpose(1, 2).flatten(2))


class Model(nn.Sequential):
    def forward(self, x):
        return super().forward(x).float().square().mean()


def launches(plan, name):
    """The launches of operators whose names contain this one."""
    strings = plan["strings"]
    for program in plan["programs"]:
        for command in program["commands"]:
            if command["step_type"] == "Launch" and name in strings[plan["operators"][command["step"]["op"]]["name"]]:
                yield strings[plan["operators"][command["step"]["op"]]["name"]].removeprefix("aten::"), command["step"]


def check_states(plan):
    """A seed that the efficient kernel returns lies on the host: a buffer for it is a copy that a step waits for."""
    for name, step in launches(plan, "_attention"):
        if not name.endswith("_backward"):
            assert all(result == NONE for result in step["results"][2:]), name


# The proof takes it, and so do the checks of the file.
@pytest.mark.covers("GPU")
@pytest.mark.parametrize("options", [(), ("--remat", "scope:.*"), ("--accumulate", "2")], ids=" ".join)
@pytest.mark.parametrize("dtype, hardware, kernel", [(torch.bfloat16, "h200", "cudnn"), (torch.float16, "a100-80", "flash"), (torch.float32, "h200", "efficient")], ids=str)
def test_attention(dtype, hardware, kernel, options, tmp_path):
    model = Model(Attention(True, dtype), Attention(False, dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fsdp_mlir.save(fsdp_mlir.capture(model, (torch.randn(2, 16, 32, dtype=dtype),)), tmp_path / "m.pt2", verify=False)
    succeed("fsdp-plan", tmp_path / "m.pt2", "--ranks", 2, "--device", "cuda", "--hardware", hardware, "--wrap", r"scope:\d+", *options, "-o", tmp_path / "p.plan")
    plan = read(tmp_path / "p.plan")
    names = {name for name, _ in launches(plan, "_attention")}
    assert names == {f"_scaled_dot_product_{kernel}_attention", f"_scaled_dot_product_{kernel}_attention_backward"}
    check_states(plan)


@pytest.mark.parametrize("graph", ["gpt2", "llama", "bert", "frozen", "llama_bf16"])
def test_attention_of_fixtures(graph, plans):
    assert (FIXTURES / f"{graph}.pt2").exists()
    plan = read(plans(graph, 2, "--device", "cuda"))
    assert any(launches(plan, "_attention_backward"))
    check_states(plan)
