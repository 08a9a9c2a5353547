"""Every example in the descriptions of our operations, types and attributes is what fsdp-opt parses."""

import re
import subprocess
import textwrap

import pytest
from conftest import BUILD, ROOT

EXAMPLE = re.compile(r"^ *```mlir\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
EXAMPLES = [
    pytest.param(textwrap.dedent(block), id=f"{path.stem}-{number}")
    for path in sorted((ROOT / "include").rglob("*.td"))
    for number, block in enumerate(EXAMPLE.findall(path.read_text()), 1)
]
# `use of value '%x' expects different type than prior uses: 'new' vs 'old'`
TYPED = re.compile(r"use of value '(%[\w.]+)' expects different type than prior uses: '(.*)' vs '(.*)'")


def parse(text):
    """What fsdp-opt says of a text that need not be valid, only parsed; nothing if it takes it."""
    result = subprocess.run(
        [BUILD / "bin" / "fsdp-opt", "-", "--allow-unregistered-dialect", "--mlir-very-unsafe-disable-verifier-on-parsing",
         "--verify-each=0"], input=text, capture_output=True, text=True, timeout=60)
    return "" if result.returncode == 0 else result.stderr or "failed"


def wrap(example, types):
    """The example where it may stand: attributes and types in an operation, values made ahead of it."""
    if example.startswith("#"):
        example = "".join(f'"test.attribute"() {{a = {line}}} : () -> ()\n' for line in example.splitlines())
    elif example.startswith(("!", "tensor<")):
        example = "".join(f'"test.type"() : () -> ({line})\n' for line in example.splitlines())
    return "".join(f'{name} = "test.value"() : () -> ({type})\n' for name, type in types.items()) + example


@pytest.mark.covers("Example")
@pytest.mark.parametrize("example", EXAMPLES)
def test_example_parses(example):
    example = example.replace("(...)", "(%x)")
    defined = {name for names in re.findall(r"^ *((?:%[\w.]+(?::\d+)?(?:, )?)+) =", example, re.MULTILINE)
               for name in re.findall(r"%[\w.]+", names)}
    names = sorted(set(re.findall(r"%[\w.]+", example)) - defined)
    types = dict.fromkeys(names, "!plan.buffer" if "plan." in example else "none")
    for _ in range(3 * len(names) + 1):
        error = parse(wrap(example, types))
        found = TYPED.search(error)
        if not found or found[1] not in types:
            break
        types[found[1]] = found[2] if types[found[1]] == found[3] else found[3]
    assert not error, wrap(example, types) + "\n" + error


def test_there_are_examples():
    assert len(EXAMPLES) >= 40
