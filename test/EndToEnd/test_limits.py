"""What an archive of some kilobytes may demand: elements of its constants may overlap, and be many."""

import json
import zipfile

import pytest
from conftest import FIXTURES, tool


def with_constants(path, count, elements):
    """A copy of a fixture with `count` more constants of float64, all of whose elements are one."""
    spelled = [{"as_int": elements}]
    meta = {"dtype": 8, "sizes": spelled, "requires_grad": False, "device": {"type": "cpu", "index": None},
            "strides": [{"as_int": 0}], "storage_offset": {"as_int": 0}, "layout": 7}
    names = [f"c{i}" for i in range(count)]
    with zipfile.ZipFile(FIXTURES / "role_tiny.pt2") as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("/models/model.json"):
                model = json.loads(content)
                module = model["graph_module"]
                module["graph"]["inputs"][:0] = [{"as_tensor": {"name": c}} for c in names]
                module["graph"]["tensor_values"] |= dict.fromkeys(names, meta)
                module["signature"]["input_specs"][:0] = [
                    {"tensor_constant": {"arg": {"name": c}, "tensor_constant_name": c}} for c in names]
                content = json.dumps(model)
            elif name.endswith("model_constants_config.json"):
                payload = {"path_name": "tensor_0", "is_param": False, "use_pickle": False, "tensor_meta": meta}
                content = json.dumps({"config": dict.fromkeys(names, payload)})
            target.writestr(name, content)
        target.writestr("role_tiny/data/constants/tensor_0", bytes(8))
    return path


@pytest.mark.parametrize("count, elements, limit", [
    (1, 2**23 + 1, "64 MiB"),
    (17, 2**23, "1 GiB in all"),
])
def test_constants_have_limits(tmp_path, count, elements, limit):
    graph = with_constants(tmp_path / "large.pt2", count, elements)
    result = tool("fsdp-plan", graph, "--ranks", 1, "-o", tmp_path / "p.plan")
    assert result.returncode == 1 and f"constants of more than {limit} are not supported" in result.stderr, result.stderr
    assert graph.stat().st_size < 40_000 and not (tmp_path / "p.plan").exists()
