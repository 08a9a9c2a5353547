"""The order of a schedule is that of PyTorch's FSDP, event by event.

test/fixtures/fsdp_traces.json is what FSDP1 and FSDP2 did in the last of their recorded steps: AG(u) a gather is
launched, wait(u) compute waits for it, F(u) and B(u) compute, free(u) its memory ends, part(u) but for a piece, RS(u) a
reduction over the shard axis is launched, AR(u) one over the replicate axis.
A plan differs by nature in what `expected` leaves out, line by line.
"""

import json
import re

import pytest
from conftest import FIXTURES, succeed

CASES = json.loads((FIXTURES / "fsdp_traces.json").read_text())["cases"]
VIEWS = ("t", "transpose.int", "view", "detach")


def name(case):
    config = {k: v for k, v in case["config"].items() if k != "world"}
    return " ".join(str(v).lower() if k != "args" else "_".join(f"{a}{b}" for a, b in v.items()) for k, v in config.items())


def short(unit):
    """u.0 -> u1, ...h.0 -> h0: the names in the traces."""
    found = re.search(r"\b(u|h)\.(\d+)$", unit)
    return found[1] + str(int(found[2]) + (found[1] == "u")) if found else unit


def schedule(graph, config):
    """(forward, backward): the events of the schedule that has this configuration's options."""
    usual = "HYBRID_SHARD" if "mesh" in config else "FULL_SHARD" if config.get("reshard", None) is not False else "SHARD_GRAD_OP"
    strategy = config.get("strategy", usual).lower()
    ranks = f"mesh={'x'.join(map(str, config['mesh']))}" if "mesh" in config else f"ranks={config['world']}"
    group = config.get("reshard")
    policy = [f"--fsdp-reshard-policy=reshard-after-forward={group}"] if type(group) is int else []
    backward = {"BACKWARD_PRE": "backward_pre", "BACKWARD_POST": "backward_post", None: "none"}[config.get("bwd", "BACKWARD_PRE")]
    ahead = int(config.get("fwd", config.get("explicit_fwd", False)))
    wrap = r"u\.\d+" if config["model"] == "chain" else r"transformer\.h\.\d+"
    text = succeed("fsdp-opt", graph, f"--fsdp-assign-units=wrap=scope:{wrap}", f"--fsdp-shard={ranks} strategy={strategy}",
                   *policy, "--fsdp-async", f"--fsdp-prefetch=backward-prefetch={backward} forward-prefetch={ahead}", "--fsdp-apply-schedule", "--fsdp-verify-scheduled",
                   "--fsdp-verify-futures").stdout
    events, unit = {"forward": [], "backward": []}, {}

    def add(kind, value):
        event = f"{kind}({short(unit.get(value, value))})"
        if kind not in "FB" or event not in events[phase]:  # where a unit's computation begins
            events[phase].append(event)

    phase = "forward"
    body = text[text.index("func.func @step("):]
    for line in body[: body.index("\n  }")].splitlines():
        result, _, right = line.strip().partition(" = ") if line.strip().startswith("%") else ("", "", line)
        operands = re.findall(r"%\w+", right)
        read = [o for o in operands if o in unit]
        if found := re.search(r"async\.unshard @\"?([^ \"]+)\"? <(\w+)>", line):
            unit[result], phase = found[1], found[2]
            add("AG", result)
        elif "async.wait" in line and read:
            unit[result] = unit[read[0]]
            add("wait", result)
        elif "fsdp.piece" in line:
            add("part", operands[0])
        elif "async.reshard" in line:
            add("free", operands[0])
        elif found := re.search(r"async\.(reduce_scatter|all_reduce) @\"?([^ \"]+)\"? over", line):
            phase = "backward"
            add({"reduce_scatter": "RS", "all_reduce": "AR"}[found[1]], found[2])
        elif "fsdp.view" in line:  # what the root computes has two names, as in the traces
            unit[result] = "head" if ', "head.' in line else unit[operands[0]]
        elif read:
            phase = re.search(r"phase (\w+)", line)[1]
            for operand in read:
                add("F" if phase == "forward" else "B", operand)
            if re.search(r'"([^"]+)"', line)[1] in VIEWS:
                unit[result] = unit[read[0]]
    return events["forward"], events["backward"]


def expected(case, read):
    """The recorded events, without those that a plan does not have; `read` are the units that its backward reads."""

    def keep(events, backward):
        gathered = set()
        for event in events.split():
            if "<-" in event:
                continue  # what a stream waits for is in the plan
            kind, unit = re.fullmatch(r"(\w+)(?:\((\w+)(?:,\w+)?\))?\*?", event).groups()
            if kind in ("sync", "noAG", "keep", "final"):
                continue  # the CPU waits for nothing, and what is kept needs no event
            gathered |= {unit} if kind == "AG" else set()
            if kind == "wait" and unit not in gathered:
                continue  # for what is gathered already
            if kind == "F" and unit == "root" and not case["config"]["args"].get("root_params", True):
                continue  # the root computes nothing
            if backward and kind not in ("RS", "AR") and unit not in read:
                continue  # what no gradient needs is not gathered, and the root (reshard = true) not again
            if kind == "free" and not ends_alike(case, unit):
                continue
            yield f"{kind}({unit})"
            if kind == "part":  # is also the end of what it is a part of
                yield f"free({unit})"

    return [list(keep(case["forward"], False)), list(keep(case["backward"], True))]


def ends_alike(case, unit):
    """The root ends with its last reader instead of the step, and a frozen unit does not wait for the one before it."""
    return unit != "root" and unit not in {f"u{i + 1}" for i in case["config"]["args"].get("frozen", ())}


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory):
    path = tmp_path_factory.mktemp("gpt2") / "gpt2.mlir"
    succeed("fsdp-translate", "--import-pt2", FIXTURES / "gpt2.pt2", "-o", path)
    return path


@pytest.mark.covers(
    "_pre_forward_unshard", "_post_backward_reshard", "_get_handle_to_prefetch", "BACKWARD_PRE", "BACKWARD_POST",
    "set_modules_to_backward_prefetch", "_register_post_backward_reshard_only_hook", "BackwardPrefetch")
@pytest.mark.parametrize("case", CASES, ids=name)
def test_order_is_that_of_pytorch(case, chains, gpt2):
    config = case["config"]
    graph = chains(config) if config["model"] == "chain" else gpt2
    mine = [[e for e in events if not e.startswith("free") or ends_alike(case, e[5:-1])]
            for events in schedule(graph, config)]
    theirs = expected(case, {e[2:-1] for e in mine[1] if e.startswith("B")})
    if config.get("explicit_fwd"):  # recorded with a script whose root prefetches nobody
        for events in (mine[0], theirs[0]):
            events.remove("AG(u1)")
    if config.get("fwd"):
        # FSDP1 then frees and reduces one unit late, since autograd runs by the age of nodes: compared apart.
        for kind in ("free", "RS"):
            assert [e for e in mine[1] if e.startswith(kind)] == [e for e in theirs[1] if e.startswith(kind)]
        for both in (mine, theirs):
            both[1] = [e for e in both[1] if not e.startswith(("free", "RS"))]
    assert mine == theirs
