"""Edits an archive, imports it, and prints what came of it, once per CASE line of a test.

    edit_and_import.py FSDP_TRANSLATE ARCHIVE TEST DIRECTORY

A line `CASE[ --option]: statements` of TEST is Python that changes `program` (the JSON of the archive), with `graph`,
`nodes`, `values` (the tensors' metadata), `signature` and `custom` (the graph's metadata) for short, and the archive's
`weights` and `constants` tables; `add(target, inputs, outputs)` appends a node, `arg(variant, value, name)` makes one of
its inputs, `files` is the content of the archive by name, and `text` replaces the JSON as it would be written.
The archive is called model.pt2. Prints the tool's errors, or else its calls; a tool that crashes ends the test.
"""

import copy
import json
import re
import struct
import subprocess
import sys
import zipfile
from pathlib import Path


def read(archive):
    with zipfile.ZipFile(archive) as file:
        return {name.split("/", 1)[1]: file.read(name) for name in file.namelist()}


def write(entries, path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        for name, content in entries.items():
            file.writestr("model/" + name, content)


def tensor(sizes, strides, dtype=7, offset=0):
    number = lambda value: value if isinstance(value, dict) else {"as_int": value}
    return {"dtype": dtype, "sizes": [number(s) for s in sizes], "strides": [number(s) for s in strides],
            "storage_offset": {"as_int": offset}, "requires_grad": False, "device": {"type": "cpu", "index": None},
            "layout": 7}


def symbol(expression, hint=None):
    expression = re.sub(r"\bs\d+\b", lambda name: f"Symbol('{name[0]}', positive=True, integer=True)", expression)
    return {"as_expr": {"expr_str": expression, "hint": None if hint is None else {"as_int": hint}}}


def arg(variant, value, name="x", kind=1):
    return {"name": name, "arg": {variant: value}, "kind": kind}


def edit(entries, statements):
    program = json.loads(entries["models/model.json"])
    module = program["graph_module"]
    graph = module["graph"]
    custom = json.loads(module["metadata"]["custom"])
    tables = {kind: json.loads(entries[f"data/{kind}/model_{kind}_config.json"]) for kind in ("weights", "constants")}

    def add(target, inputs, outputs=()):
        graph["nodes"].append({"target": target, "inputs": inputs, "metadata": {}, "name": "added",
                               "is_hop_single_tensor_return": None, "outputs": list(outputs)})
        for output in outputs:
            for name in re.findall(r"'name': '(\w+)'", str(output)):
                graph["tensor_values"].setdefault(name, tensor([3], [1]))

    files = dict(entries)
    names = dict(files=files, pack=struct.pack, program=program, module=module, graph=graph, nodes=graph["nodes"], values=graph["tensor_values"],
                 signature=module["signature"], custom=custom, add=add, arg=arg, tensor=tensor, symbol=symbol,
                 weights=tables["weights"]["config"], constants=tables["constants"]["config"], text=None, copy=copy)
    exec(statements, names)
    if isinstance(module.get("metadata"), dict) and "custom" in module["metadata"]:
        module["metadata"]["custom"] = json.dumps(custom)
    files["models/model.json"] = names["text"] or json.dumps(program)
    for kind, table in tables.items():
        files[f"data/{kind}/model_{kind}_config.json"] = json.dumps(table)
    return files


def main(tool, archive, test, directory):
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    entries = read(archive)
    for line in Path(test).read_text().splitlines():
        case = re.match(r"CASE((?: --[^:]+)?): (.*)", line)
        if not case:
            continue
        print(line, flush=True)
        write(edit(entries, case[2]), directory / "model.pt2")
        done = subprocess.run([tool, "--import-pt2", "model.pt2", *case[1].split()], cwd=directory, capture_output=True, text=True)
        if done.returncode not in (0, 1) or (done.returncode == 1) != done.stderr.startswith("error: "):
            sys.exit(f"exit status {done.returncode}: {done.stderr}")
        print(done.stderr, end="")
        for line in done.stdout.splitlines():
            print(line.strip())
    print("END")


if __name__ == "__main__":
    main(*sys.argv[1:])
