"""A second opinion on what a plan computes.

Runs a plan as schema/plan.fbs describes it: one process, all ranks in turn, one command after the other in the order of
the file. There are no arenas, streams and events: each buffer that owns its bytes has memory of its own, which is NaN before
its first use in a program and after its last. It shares nothing with the runtime but PyTorch's operators.
"""

import itertools
import json
import pathlib
import re
import subprocess
import tempfile

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
NONE = 0xFFFFFFFF
DTYPES = dict(Bool=torch.bool, U8=torch.uint8, I8=torch.int8, I16=torch.int16, I32=torch.int32, I64=torch.int64,
              F16=torch.float16, BF16=torch.bfloat16, F32=torch.float32, F64=torch.float64, C64=torch.complex64,
              C128=torch.complex128)
FORMATS = [torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d]
PERSISTENT = {"Shard", "OptimizerState", "ModelBuffer", "Constant", "Result", "Hyper"}
# The numbers of a decay group, in their order.
HYPER = ("lr", "beta1", "beta2", "eps", "weight_decay", "momentum", "update")


def read(path):
    """The tables of a plan file as dictionaries and lists."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["flatc", "--json", "--strict-json", "--defaults-json", "--raw-binary", "-o", folder,
                        ROOT / "schema" / "plan.fbs", "--", path], check=True)
        text = (pathlib.Path(folder) / f"{pathlib.Path(path).stem}.json").read_text()
    return json.loads(re.sub(r"(?<=[:\[,\s])(-?)inf(?=[,\]\s])", r"\1Infinity", text))


class Interpreter:
    def __init__(self, path, tensors):
        """`tensors`: parameters and buffers of the model by name."""
        self.plan = read(path)
        self.strings, self.buffers, self.units = (self.plan[key] for key in ("strings", "buffers", "units"))
        self.shapes = [shape["values"] for shape in self.plan["shapes"]]
        self.sizes = [axis["size"] for axis in self.plan["mesh"]]
        self.coordinates = list(itertools.product(*map(range, self.sizes)))
        self.ranks = len(self.coordinates)
        self.updates = 0
        self.generators = [torch.Generator().manual_seed(rank) for rank in range(self.ranks)]
        self.memory = [[self._allocate(i, tensors, rank) for i in range(len(self.buffers))]
                       for rank in range(self.ranks)]
        if any(self._name(program) == "init" for program in self.plan["programs"]):
            self.run("init", {"Init"})

    # ---- memory

    def _name(self, item):
        return self.strings[item["name"]] if item["name"] != NONE else ""

    def _allocate(self, index, tensors, rank):
        """The bytes of a buffer that owns them, with what is there before all programs."""
        buffer = self.buffers[index]
        if buffer["root"] != index:
            return None
        sizes, strides = self.shapes[buffer["sizes"]], self.shapes[buffer["strides"]]
        extent = 0 if 0 in sizes else 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides))
        elements = torch.full((extent * DTYPES[buffer["dtype"]].itemsize,), 255, dtype=torch.uint8).view(DTYPES[buffer["dtype"]])
        window = elements.as_strided(sizes, strides)
        role = buffer["role"]
        if buffer.get("bytes"):
            elements.view(torch.uint8).copy_(torch.tensor(buffer["bytes"], dtype=torch.uint8))
        elif role == "ModelBuffer":
            window.copy_(tensors[self._name(buffer)])
        elif role == "OptimizerState":
            elements.zero_()
        elif role == "Shard":
            unit = self.units[buffer["owner"]]
            flat = torch.zeros(unit["numel"], dtype=elements.dtype)
            for parameter in unit["parameters"]:
                self._parameter(flat, parameter).copy_(tensors[self._name(parameter)])
            elements.copy_(flat.chunk(unit["shards"])[rank % unit["shards"]])
        return elements

    def _parameter(self, flat, parameter):
        return flat[parameter["offset"]:].as_strided(self.shapes[parameter["sizes"]], self.shapes[parameter["strides"]])

    def view(self, rank, index):
        """A buffer of a rank as a tensor over its bytes."""
        buffer = self.buffers[index]
        dtype, root = DTYPES[buffer["dtype"]], self.buffers[buffer["root"]]
        elements = self.memory[rank][buffer["root"]].view(torch.uint8).view(dtype)
        return elements.as_strided(self.shapes[buffer["sizes"]], self.shapes[buffer["strides"]],
                                   (buffer["offset"] - root["offset"]) // dtype.itemsize)

    def set_input(self, rank, index, value):
        for i, buffer in enumerate(self.buffers):
            if buffer["role"] == "Input" and buffer["index"] == index:
                self.view(rank, i).copy_(value)

    # ---- what is there

    def loss(self):
        return next(self.view(0, i) for i, buffer in enumerate(self.buffers) if buffer["role"] == "Loss").clone()

    def parameters(self, what):
        """Whole tensors by name: `what` is "shard" or "gradient"."""
        found = {}
        for unit in self.units:
            if unit[what] == NONE:
                continue
            flat = torch.cat([self.view(rank, unit[what]).flatten() for rank in range(unit["shards"])])
            for parameter in unit["parameters"]:
                if what == "shard" or parameter["trainable"]:
                    found[self._name(parameter)] = self._parameter(flat, parameter).contiguous()
        return found

    # ---- programs

    def run(self, name, roles, **hyper):
        program = next(program for program in self.plan["programs"] if self._name(program) == name)
        commands = [command for command in program["commands"] if command["role"] in roles]
        self.updates += "Update" in roles
        values = torch.tensor([{"momentum": 0.0, "update": self.updates, **hyper}[key] for key in HYPER] if hyper else [],
                              dtype=torch.float64)
        for rank in range(self.ranks):
            for i, buffer in enumerate(self.buffers):
                if buffer["role"] == "Hyper" and hyper:
                    self.view(rank, i).copy_(values)
                    if self._name(buffer) == "no_decay":
                        self.view(rank, i)[HYPER.index("weight_decay")] = 0
        last = {}
        for i, command in enumerate(commands):
            for root in self._roots(command):
                last[root] = i
        self._poison(range(len(self.buffers)), {"Transient", "Gradient", "Loss", "Output"})
        for i, command in enumerate(commands):
            step = command["step"]
            getattr(self, "_" + command["step_type"].lower())(step)
            self._poison([root for root in self._roots(command) if last[root] == i], {"Transient"})

    def _poison(self, indices, roles):
        for memory in self.memory:
            for i in indices:
                if self.buffers[i]["role"] in roles and self.buffers[i]["root"] == i:
                    memory[i].view(torch.uint8).fill_(255)

    def _roots(self, command):
        step, indices = command["step"], []
        if command["step_type"] == "Launch":
            for value in step["args"]:
                constant = {} if value >= 0 else self.plan["constants"][~value]
                if value >= 0:
                    indices.append(value)
                elif constant["value_type"] == "Refs":
                    indices += constant["value"]["values"]
            indices += step.get("results", [])
        else:
            indices = [step[key] for key in ("source", "target", "initial", "clip_factor", "loss_scale", "found_inf", "skipped") if key in step]
        return {self.buffers[i]["root"] for i in indices if i not in (-1, NONE)}

    # ---- commands

    def _record(self, step):
        pass

    _wait = _record

    def _argument(self, rank, value):
        if value >= 0:
            return self.view(rank, value)
        constant = self.plan["constants"][~value]
        kind, content = constant["value_type"], constant["value"]
        if kind == "Refs":
            return [None if i == -1 else self.view(rank, i) for i in content["values"]]
        if kind in ("Ints", "Floats", "Bools"):
            return content["values"]
        fixed = {"None": None, "Device": torch.device("cpu"), "Layout": torch.strided}
        if kind in fixed:
            return fixed[kind]
        if kind == "Type":
            return DTYPES[content["value"]]
        return FORMATS[content["value"]] if kind == "MemoryFormat" else content["value"]

    def _launch(self, step):
        name = self._name(self.plan["operators"][step["op"]]).removeprefix("aten::")
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        for rank in range(self.ranks):
            schema = op._schema.arguments
            given = [self.generators[rank] if "Generator" in str(argument.type) else self._argument(rank, value)
                     for argument, value in zip(schema, step["args"])]
            results = op(*[value for argument, value in zip(schema, given) if not argument.kwarg_only],
                         **{argument.name: value for argument, value in zip(schema, given) if argument.kwarg_only})
            results = results if isinstance(results, (list, tuple)) else [results]
            for place, result in zip(step.get("results", []), results):
                if place != NONE:
                    self.view(rank, place).copy_(result)

    def _groups(self, communicator):
        """The ranks that agree in all coordinates but those of the communicator's axes, in order."""
        axes = self.plan["communicators"][communicator]["axes"]
        groups = {}
        for rank, coordinates in enumerate(self.coordinates):
            groups.setdefault(tuple(c for axis, c in enumerate(coordinates) if axis not in axes), []).append(rank)
        return groups.values()

    def _dense(self, rank, index):
        """The elements of a dense buffer in the order of its bytes."""
        view = self.view(rank, index)
        return view.as_strided((view.numel(),), (1,), view.storage_offset())

    def _allgather(self, step):
        for group in self._groups(step["communicator"]):
            whole = torch.cat([self._dense(rank, step["source"]) for rank in group])
            for rank in group:
                self._dense(rank, step["target"]).copy_(whole)

    def _piece(self, step):
        for group in self._groups(step["communicator"]):
            for rank, place in zip(group, range(len(group))):
                self._dense(rank, step["target"]).copy_(self._dense(rank, step["source"]).chunk(len(group))[place])

    def _sum(self, step, group):
        """In the wider of f32 and `via`, rank after rank; rounded to `via` at the end. The first rank's is taken as it is."""
        if step.get("kind") == "First":
            return self._dense(group[0], step["source"]).clone()
        via = DTYPES[step["via"]]
        wide = torch.float64 if via == torch.float64 else torch.float32
        parts = [self._dense(rank, step["source"]).to(wide) / step["pre"] for rank in group]
        total = torch.stack(parts).amax(0) if step.get("kind") == "Max" else sum(parts)
        return (total / step["post"]).to(via)

    def _allreduce(self, step):
        for group in self._groups(step["communicator"]):
            total = self._sum(step, group)
            for rank in group:
                self._dense(rank, step["target"]).copy_(total)

    def _reducescatter(self, step):
        for group in self._groups(step["communicator"]):
            for rank, part in zip(group, self._sum(step, group).chunk(len(group))):
                self._dense(rank, step["target"]).copy_(part)

    def _zero(self, step):
        for rank in range(self.ranks):
            self.view(rank, step["target"]).zero_()

    def _copy(self, step):
        for rank in range(self.ranks):
            target = self.view(rank, step["target"])
            target.copy_(self.view(rank, step["source"]).reshape(target.shape))

    def _cut(self, rank, step, index):
        """The elements of a rank's piece that the intervals hold."""
        unit = self.units[step["unit"]]
        length = unit["numel"] // unit["shards"]
        low, shard = rank % unit["shards"] * length, self.view(rank, index)
        ends = [(max(i["begin"] - low, 0), min(i["end"] - low, length)) for i in step["intervals"]]
        return [shard[begin:end] for begin, end in ends if begin < end]

    def _update(self, step):
        for rank in range(self.ranks):
            hyper = dict(zip(HYPER, self.view(rank, step["hyper"]).tolist()))
            clip, scale, found, skipped = (None if step[key] == NONE else self.view(rank, step[key])
                                           for key in ("clip_factor", "loss_scale", "found_inf", "skipped"))
            if found is not None and found != 0:
                continue
            if skipped is not None:
                hyper["update"] -= skipped.item()
            parameters, gradients, *states = [self._cut(rank, step, index)
                                              for index in (step["parameter"], step["gradient"], *step["states"])]
            # The kernels divide by one number, and do not round to the gradient's type before they use it.
            divisor = scale if clip is None else (1.0 if scale is None else scale) / clip
            if parameters:
                getattr(self, "_" + step["rule"].lower())(parameters, gradients, states, divisor, **hyper)

    def _adamw(self, parameters, gradients, states, divisor, update, momentum, **hyper):
        torch._fused_adamw_(parameters, gradients, *states, [], [torch.tensor(update)] * len(parameters), amsgrad=False,
                            maximize=False, grad_scale=divisor, **hyper)

    def _sgd(self, parameters, gradients, states, divisor, update, lr, weight_decay, momentum, **_):
        momenta = states[0] if states and momentum else []
        torch._fused_sgd_(parameters, gradients, momenta, weight_decay=weight_decay, momentum=momentum if momenta else 0.0,
                          lr=lr, dampening=0.0, nesterov=False, maximize=False, is_first_step=update == 1, grad_scale=divisor)

    def _measure(self, step):
        for rank in range(self.ranks):
            elements = torch.cat([torch.zeros(0), *self._cut(rank, step, step["source"])]).double()
            before = torch.zeros((), dtype=torch.float64) if step["initial"] == NONE else self.view(rank, step["initial"])
            self.view(rank, step["target"]).copy_({
                "SquaredNorm": lambda: before + elements.square().sum(), "AbsSum": lambda: before + elements.abs().sum(),
                "AbsMax": lambda: torch.cat([elements.abs(), before.reshape(1)]).max(),
                "FoundInf": lambda: torch.maximum(before, (~elements.isfinite().all()).double())}[step["kind"]]())
