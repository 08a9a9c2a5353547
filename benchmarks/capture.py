"""Captures the training step of a Llama on the meta device, and prints how long it took and what the process held.

Example: python benchmarks/capture.py --layers 32 --hidden 4096 --tokens 4096 (7 billion parameters in bfloat16)
"""

import argparse
import pathlib
import resource
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python-bindings"))

import fsdp_mlir  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default, help in [("layers", 32, "blocks"), ("hidden", 4096, "a multiple of 128, the size of a head"), ("tokens", 4096, "of the one sequence of a batch")]:
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{help} (default: {default})")
    arguments = parser.parse_args()
    config = LlamaConfig(hidden_size=arguments.hidden, intermediate_size=arguments.hidden * 43 // 16, num_hidden_layers=arguments.layers,
                         num_attention_heads=arguments.hidden // 128, vocab_size=32000, max_position_embeddings=arguments.tokens, use_cache=False)
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.model.rotary_emb = LlamaRotaryEmbedding(config)  # buffers that no checkpoint has must be real
    tokens = torch.zeros(1, arguments.tokens, dtype=torch.long)
    began, cpu = time.perf_counter(), time.process_time()
    fsdp_mlir.capture(model, (), {"input_ids": tokens, "labels": tokens})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{parameters / 1e9:.2f} billion parameters, {arguments.tokens} tokens: {time.perf_counter() - began:.1f} s, {time.process_time() - cpu:.1f} s of CPU time, {peak / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
