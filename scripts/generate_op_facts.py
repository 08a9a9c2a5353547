#!/usr/bin/env python3
"""Writes lib/Operators/OpFacts.inc from PyTorch's operator registry.

One row for every overload in the `aten` namespace: its schema, what it aliases
and writes, its out overload and where that one's kernels come from, its tags.
Needs the CUDA build of the torch version that scripts/requirements.txt names
(no GPU: the registry lists CUDA kernels without one). The output depends on
that version alone. With --check, writes nothing and fails if the file differs.
"""

import argparse
import pathlib
import sys

import torch

TABLE = pathlib.Path(__file__).resolve().parent.parent / "lib/Operators/OpFacts.inc"
TORCH = "2.11.0"
TAGS = {
    "pointwise": "TagPointwise",
    "reduction": "TagReduction",
    "nondeterministic_seeded": "TagNondeterministicSeeded",
    "nondeterministic_bitwise": "TagNondeterministicBitwise",
    "data_dependent_output": "TagDataDependentOutput",
    "dynamic_output_shape": "TagDynamicOutputShape",
    "inplace_view": "TagInplaceView",
    "view_copy": "TagViewCopy",
    "core": "TagCore",
    "maybe_aliasing_or_mutating": "TagMaybeAliasing",
}
# Out overloads of factories lack these: the output has them.
TENSOR_OPTIONS = {"dtype", "layout", "device", "pin_memory"}
TENSORS = {"Tensor", "List[Tensor]"}
FOREIGN_ARGUMENTS = ("torch.classes", "Storage", "Stream", "QScheme", "Dict")


def graph_name(qualified):
    return qualified.removeprefix("aten::")


def is_written(argument):
    return argument.alias_info is not None and argument.alias_info.is_write


def key(arguments):
    return [(a.name, str(a.type)) for a in arguments]


def find_out_overload(schema, siblings):
    """The overload with the same arguments and one written one more per result."""
    results = [str(r.type) for r in schema.returns]
    if any(map(is_written, schema.arguments)) or not set(results) <= TENSORS or not results:
        return None
    full = key(schema.arguments)
    reduced = [a for a in full if a[0] not in TENSOR_OPTIONS]
    for wanted in (full, reduced):
        for name, other in siblings:
            count = len(other.arguments) - len(results)
            kept, outs = other.arguments[: max(count, 0)], other.arguments[max(count, 0) :]
            if (
                key(kept) == wanted
                and [str(o.type) for o in outs] == results
                and all(map(is_written, outs))
                and not any(map(is_written, kept))
            ):
                return name
    return None


def out_kernel(name, device):
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if name is None:
        return "None"
    if has(name, device):
        return "Own"
    composite = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd")
    return "Generated" if any(has(name, k) for k in composite) else "None"


def bits(flags):
    return sum(1 << i for i, flag in enumerate(flags) if flag)


def tags_of(qualified):
    base, _, overload = graph_name(qualified).partition(".")
    packet = getattr(torch.ops.aten, base)
    return {t.name for t in getattr(packet, overload or "default").tags}


def text(value):
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"sv'


def is_view(schema):
    """Every result shares memory with an argument, and nothing is written."""
    return bool(schema.returns) and all(r.alias_info and not r.alias_info.is_write for r in schema.returns)


def row(qualified, schema, siblings):
    arguments, returns = schema.arguments, schema.returns
    argument_types = [str(a.type) for a in arguments]
    return_types = [str(r.type) for r in returns]
    out = find_out_overload(schema, siblings)
    tags = tags_of(qualified)
    takes_generator = any("Generator" in t for t in argument_types)
    foreign = any(f in t for t in argument_types for f in FOREIGN_ARGUMENTS)
    foreign |= bool(returns) and not TENSORS & set(return_types)
    fields = [
        text(graph_name(qualified)),
        text(str(schema)),
        text(graph_name(out) if out else ""),
        hex(bits(is_written(a) for a in arguments)),
        hex(bits(a.alias_info is not None and not a.alias_info.is_write for a in arguments)),
        "|".join(c for t, c in TAGS.items() if t in tags) or "0",
        str(len(arguments)),
        str(len(returns)),
        "OutKernel::" + out_kernel(out, "CPU"),
        "OutKernel::" + out_kernel(out, "CUDA"),
    ]
    flags = [
        "List[Tensor]" in return_types,
        takes_generator or "nondeterministic_seeded" in tags,
        takes_generator,
        foreign,
        is_view(schema),
    ]
    return "{" + ", ".join(fields + [str(f).lower() for f in flags]) + "},\n"


def generate():
    if torch.__version__.split("+")[0] != TORCH:
        sys.exit(f"expected torch {TORCH}, found {torch.__version__}")
    if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::add.out", "CUDA"):
        sys.exit("expected a torch with CUDA kernels, found one without")
    names = sorted(n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::"))
    schemas = {n: torch._C._get_schema(n.partition(".")[0], n.partition(".")[2]) for n in names}
    families = {}
    for name, schema in schemas.items():
        families.setdefault(name.partition(".")[0], []).append((name, schema))
    head = f"// Generated by scripts/generate_op_facts.py from torch {TORCH}; {len(names)} overloads.\n"
    return head + "".join(row(n, s, families[n.partition(".")[0]]) for n, s in schemas.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if the table differs instead of writing it")
    check = parser.parse_args().check
    table = generate()
    if not check:
        TABLE.write_text(table)
    elif not TABLE.exists() or TABLE.read_text() != table:
        sys.exit(f"{TABLE.name} differs from what PyTorch's registry says: run {pathlib.Path(__file__).name}")


if __name__ == "__main__":
    main()
