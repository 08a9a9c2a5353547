"""Plan files that earlier versions have written, as they were: they run, and mean what they meant."""

import pytest
import xxhash
from conftest import FIXTURES, succeed, tool

PLANS = sorted((FIXTURES / "plans").glob("*.plan"))  # GRAPH-RANKS-WHAT.plan


@pytest.mark.parametrize("plan", PLANS, ids=lambda path: path.stem)
def test_an_old_plan_computes_what_pytorch_does(plan, references, tmp_path):
    graph, ranks, _ = plan.stem.split("-", 2)
    succeed("fsdp-run", plan, "--ranks", ranks, "--weights", FIXTURES / f"{graph}.pt2", "--reference", references(graph, int(ranks)))
    # The compiler reads and writes it, too; what it does not know of it is not made up.
    text = succeed("fsdp-translate", "--import-plan", plan).stdout
    (tmp_path / "plan.mlir").write_text(text)
    succeed("fsdp-translate", "--export-plan", tmp_path / "plan.mlir", "-o", tmp_path / "again.plan")
    assert ("prediction" in text) != plan.stem.endswith("without-prediction")


# What cannot be read is one sentence with both numbers.
def test_a_plan_of_another_version(tmp_path):
    content = bytearray(PLANS[0].read_bytes()[:-16])
    table = int.from_bytes(content[:4], "little")
    fields = table - int.from_bytes(content[table : table + 4], "little", signed=True)
    version = table + int.from_bytes(content[fields + 4 : fields + 6], "little")
    assert content[version] == 2
    content[version] = 3
    other = tmp_path / "other.plan"
    other.write_bytes(content + xxhash.xxh3_128_digest(bytes(content)))  # as a writer of that version would
    result = tool("fsdp-run", other, "--ranks", 4, "--weights", FIXTURES / "llama.pt2", "--reference", FIXTURES / "llama_ref4.safetensors")
    assert result.returncode == 1 and "version: expected 2" in result.stderr and "found 3" in result.stderr and result.stderr.count("\n") == 1, result.stderr
