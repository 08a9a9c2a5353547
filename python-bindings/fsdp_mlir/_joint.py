"""From an exported forward graph to a joint forward and backward ExportedProgram.

Uses torch 2.11's private tracer (aot_export_joint_with_descriptors): it keeps node metadata, buffer mutations and tied
weights, and leaves fused backward operations whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import torch
import torch._inductor.config
import torch.fx.traceback as fx_traceback
import torch.utils._pytree as pytree
from torch._functorch._aot_autograd import descriptors as aot
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch.export.exported_program import ExportedProgram, _get_updated_range_constraints
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
)
from torch.fx.experimental.symbolic_shapes import free_symbols

from fsdp_mlir import _decompose, _sources
from fsdp_mlir._step import path_of
from fsdp_mlir._verify import TrainingProgram
from fsdp_mlir.errors import CaptureError

_DROPPED = ("stack_trace", "torch_fn", "source_fn_stack", "from_node")


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Every name of a module's parameters in order, whether it requires grad, and the first name of each shared one."""

    names: list[str]
    requires_grad: list[bool]
    tied: dict[str, str]

    @staticmethod
    def of(module: torch.nn.Module) -> Parameters:
        every = list(module.named_parameters(remove_duplicate=False))
        first: dict[int, str] = {}
        for name, parameter in every:
            first.setdefault(id(parameter), name)
        tied = {name: first[id(p)] for name, p in every if first[id(p)] != name}
        return Parameters([name for name, _ in every], [p.requires_grad for _, p in every], tied)

    def primary(self, name: str) -> str:
        return self.tied.get(name, name)


def trace(forward: ExportedProgram, loss_place: int, functions: _decompose.Rules) -> torch.fx.GraphModule:
    """The joint graph of `forward`, differentiated with respect to output `loss_place` only.

    Its placeholders and its output node carry descriptors in meta["desc"]; shapes are those of `forward`.
    """
    try:
        return _trace(forward, loss_place, functions, copy_buffers=False)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return _trace(forward, loss_place, functions, copy_buffers=True)


def _trace(forward: ExportedProgram, loss_place: int, functions: _decompose.Rules, copy_buffers: bool) -> torch.fx.GraphModule:
    module = forward.module(check_guards=False)
    if copy_buffers:
        _copy_written_buffers(module)
    _decompose.rewrite_forward(module, functions)
    _keep_scopes(module)
    _detach_other_outputs(module, loss_place)
    placeholders = [n for n in forward.graph.nodes if n.op == "placeholder"]
    specs = forward.graph_signature.input_specs
    inputs = [n.meta["val"] for n, s in zip(placeholders, specs) if s.kind == InputKind.USER_INPUT]
    args, kwargs = pytree.tree_unflatten(inputs, module._in_spec)
    fake_mode = next((n.meta["val"].fake_mode for n in placeholders if hasattr(n.meta.get("val"), "fake_mode")), None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch._guards.tracing(torch._guards.TracingContext(fake_mode)))
        stack.enter_context(fx_traceback.preserve_node_meta())
        stack.enter_context(torch._inductor.config.patch(fallback_random=True))  # draws that nobody uses are kept: others come after
        return aot_export_joint_with_descriptors(stack, module, args, kwargs, decompositions=_decompose.JOINT).graph_module


def _copy_written_buffers(module: torch.fx.GraphModule) -> None:
    """The new value of a buffer is copied into it at the end, where the backward may still need the old one."""
    copies = module.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    for copy in copies:
        buffer = copy.args[0]
        if isinstance(buffer, torch.fx.Node) and buffer.op == "get_attr":
            with module.graph.inserting_after(buffer):
                old = module.graph.call_function(torch.ops.aten.clone.default, (buffer,))
            old.meta.update(buffer.meta)
            buffer.replace_all_uses_with(old, delete_user_cb=lambda user, keep=(copy, old): user not in keep)
    module.recompile()


def _keep_scopes(module: torch.fx.GraphModule) -> None:
    """Regions (autocast, no_grad) are graphs of their own, whose nodes lose their metadata unless they are interpreted."""
    for region in module.modules():
        if region is not module and isinstance(region, torch.fx.GraphModule):
            region.forward = torch.fx.Interpreter(region).run


def _detach_other_outputs(module: torch.fx.GraphModule, loss_place: int) -> None:
    """Without this every differentiable output is differentiated, and the gradients are those of their sum."""
    output = module.graph.output_node()
    results, spec = pytree.tree_flatten(output.args[0])
    with module.graph.inserting_before(output):
        for place, node in enumerate(results):
            value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
            if place != loss_place and isinstance(value, torch.Tensor):
                results[place] = module.graph.call_function(torch.ops.aten.detach.default, (node,))
                results[place].meta["val"] = value
    output.args = (pytree.tree_unflatten(results, spec),)
    module.recompile()


def assemble(
    joint: torch.fx.GraphModule, forward: ExportedProgram, parameters: Parameters, loss_place: int, input_names: list[str], gradients: bool
) -> TrainingProgram:
    """Gives the joint graph its signature, metadata and weights; `input_names` are those of the leaves of (args, kwargs).
    Without `gradients`, all that only they need is dropped.

    Raises CaptureError for mutated inputs and lost gradients.
    """
    return _Assembly(joint, forward, parameters, loss_place, input_names, gradients).program()


def _scope(key: str, path: str, kind: str | type) -> tuple[str, tuple[str, str]]:
    """An entry of a module stack, with the user's path and the name of the class."""
    own = path_of(path)
    name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
    return key.replace(f"L__self__{path}", f"L__self__{own}"), (own, name)


class _Assembly:
    def __init__(
        self,
        joint: torch.fx.GraphModule,
        forward: ExportedProgram,
        parameters: Parameters,
        loss_place: int,
        input_names: list[str],
        gradients: bool,
    ) -> None:
        self.module, self.graph = joint, joint.graph
        self.forward, self.parameters, self.loss_place = forward, parameters, loss_place
        self.input_names, self.gradients = input_names, gradients
        self.inputs_kept: list[str] = []
        self.persistent = set(map(path_of, forward.state_dict))
        self.values = {path_of(name): value for name, value in (forward.constants | forward.state_dict).items()}
        self.inputs: list[InputSpec] = []
        self.state: dict[str, Any] = {}
        self.constants = {path_of(name): value for name, value in forward.constants.items()}
        self.placeholder_of: dict[Any, torch.fx.Node] = {}
        self.unused: list[str] = []

    def program(self) -> TrainingProgram:
        outputs = self._outputs()
        tangent, seed = self._gradient_seed()
        outputs = [(seed if node is tangent else node, spec) for node, spec in outputs]
        self.graph.output_node().args = (tuple(node for node, _ in outputs),)
        for node in self.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_tensor_metadata.default):
            self.graph.erase_node(node)  # what it asserts of dtypes is fixed in the graph
        self.graph.eliminate_dead_code()
        self._inputs()
        self._lift_constants()
        if self.gradients:
            self._check_gradients({spec.target for _, spec in outputs if spec.kind == OutputKind.GRADIENT_TO_PARAMETER})
        for place, (node, spec) in enumerate(outputs):
            target = self.placeholder_of[spec.target].name if isinstance(spec.target, aot.AOTInput) else spec.target
            outputs[place] = (node, OutputSpec(spec.kind, TensorArgument(node.name), target))
        self._node_metadata()
        self.module.recompile()
        self.module.meta["custom"] = {
            "parameters": self.parameters.names,
            "requires_grad": self.parameters.requires_grad,
            "tied": self.parameters.tied,
            "unused": self.unused,
            "inputs": self.inputs_kept,
        }
        if self.gradients:
            self.module.meta["custom"]["gradient_seed"] = seed.name
        specs = [spec for _, spec in outputs]
        tensors = [s.arg.name for s in self.inputs if s.kind == InputKind.USER_INPUT]
        return TrainingProgram(
            root=self.module,
            graph=self.graph,
            graph_signature=ExportGraphSignature(self.inputs, specs),
            state_dict=self.state,
            range_constraints=self._ranges(),
            module_call_graph=self._call_graph(len(tensors), specs),
            example_inputs=(self._examples(), {}),
            constants=self.constants,
        )

    # ---- outputs: buffer mutations, then the module's own, then gradients

    def _outputs(self) -> list[tuple[torch.fx.Node, OutputSpec]]:
        mutations, own, gradients = [], [], []
        node = self.graph.output_node()
        for value, desc in zip(node.args[0], node.meta["desc"]):
            if value is None or desc is None:
                continue
            if isinstance(desc, aot.InputMutationAOTOutput):
                mutations.append((value, self._mutation(desc.mutated_input)))
            elif isinstance(desc, aot.PlainAOTOutput):
                if isinstance(value, torch.fx.Node) and isinstance(value.meta.get("val"), torch.Tensor):
                    kind = OutputKind.LOSS_OUTPUT if desc.idx == self.loss_place else OutputKind.USER_OUTPUT
                    own.append((value, OutputSpec(kind, TensorArgument(value.name), None)))
            elif isinstance(desc, aot.GradAOTOutput):
                gradients.append((value, self._gradient(value, desc.grad_of)))
            else:
                raise CaptureError(f"the traced graph has an output of a kind that capture does not know: {type(desc).__name__}")
        if not any(spec.kind == OutputKind.GRADIENT_TO_PARAMETER for _, spec in gradients):
            raise CaptureError("the loss does not depend on any parameter that requires grad; there is nothing to train")
        return mutations + own + (gradients if self.gradients else [])

    def _mutation(self, target: aot.AOTInput) -> OutputSpec:
        if isinstance(target, aot.BufferAOTInput):
            return OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument(""), path_of(target.target))
        if isinstance(target, aot.ParamAOTInput):
            raise CaptureError(
                f"the model writes to its parameter `{path_of(target.target)}` in its forward; only the optimizer may: keep what changes in a buffer"
            )
        raise CaptureError("the model writes to one of its inputs in its forward; clone the input first")

    def _gradient(self, value: torch.fx.Node, of: aot.AOTInput) -> OutputSpec:
        if isinstance(of, aot.ParamAOTInput):
            return OutputSpec(OutputKind.GRADIENT_TO_PARAMETER, TensorArgument(value.name), self.parameters.primary(path_of(of.target)))
        return OutputSpec(OutputKind.GRADIENT_TO_USER_INPUT, TensorArgument(value.name), of)

    # ---- inputs

    def _placeholders(self) -> list[torch.fx.Node]:
        return [n for n in self.graph.nodes if n.op == "placeholder"]

    def _gradient_seed(self) -> tuple[torch.fx.Node, torch.fx.Node]:
        """The tangent, an input, and what takes its place: d(loss)/d(loss) = 1."""
        tangents = [n for n in self._placeholders() if isinstance(n.meta["desc"], aot.TangentAOTInput)]
        for node in tangents:
            written = node.meta["desc"].output
            if isinstance(written, aot.InputMutationAOTOutput):
                raise CaptureError(
                    f"the model writes a value that requires grad to its buffer `{path_of(written.mutated_input.target)}`; "
                    "detach() it: no gradient goes from one step to the next"
                )
        (tangent,) = tangents
        value = tangent.meta["val"]
        with self.graph.inserting_before(next(n for n in self.graph.nodes if n.op != "placeholder")):
            one = self.graph.call_function(
                torch.ops.aten.full.default,
                ([], 1.0),
                {"dtype": value.dtype, "device": value.device, "pin_memory": False},
            )
        one.meta.update(val=value, partitioner_tag="is_backward")
        tangent.replace_all_uses_with(one)
        self.graph.erase_node(tangent)
        return tangent, one

    def _rename(self, node: torch.fx.Node, name: str) -> None:
        node._rename(name.replace(".", "_"))
        node.target = node.name

    def _inputs(self) -> None:
        """Names and describes the placeholders; drops second names of shared parameters and inputs that are no tensors."""
        nodes = self._placeholders()
        used = {
            self.parameters.primary(path_of(n.meta["desc"].target)): n
            for n in nodes
            if isinstance(n.meta["desc"], aot.ParamAOTInput) and n.users
        }
        seen = set()
        for node in nodes:
            desc = node.meta["desc"]
            if isinstance(desc, aot.ParamAOTInput):
                name = self.parameters.primary(path_of(desc.target))
                kept = used.get(name, node)
                if name in seen:
                    if node.users and node is not kept:
                        node.replace_all_uses_with(kept)
                    self.graph.erase_node(node)
                    continue
                seen.add(name)
                if kept is not node:  # the graph uses another name of this parameter: that input moves here
                    kept.replace_all_uses_with(node)
                self._rename(node, "p_" + name)
                self._add(InputKind.PARAMETER, node, name, None, persistent=True)
            elif isinstance(desc, aot.BufferAOTInput):
                name = path_of(desc.target)
                self._rename(node, "b_" + name)
                persistent = name in self.persistent
                self._add(InputKind.BUFFER, node, name, persistent, persistent)
            elif isinstance(desc, aot.PlainAOTInput):
                if not isinstance(node.meta.get("val"), torch.Tensor) and not node.users:
                    self.graph.erase_node(node)
                    continue
                self._rename(node, f"in_{len(self.inputs_kept)}")
                self.inputs_kept.append(self.input_names[desc.idx])
                self.inputs.append(InputSpec(InputKind.USER_INPUT, self._argument(node), None))
            else:
                raise CaptureError(f"the traced graph has an input of a kind that capture does not know: {type(desc).__name__}")
            self.placeholder_of[desc] = node

    def _argument(self, node: torch.fx.Node) -> TensorArgument | SymIntArgument | ConstantArgument:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            return TensorArgument(node.name)
        return SymIntArgument(node.name) if isinstance(value, torch.SymInt) else ConstantArgument(node.name, value)

    def _add(self, kind: InputKind, node: torch.fx.Node, target: str, flag: bool | None, persistent: bool) -> None:
        (self.state if persistent else self.constants)[target] = self.values[target]
        self.inputs.append(InputSpec(kind, TensorArgument(node.name), target, flag))

    def _lift_constants(self) -> None:
        """Tensor constants that the tracer left as attributes become inputs in front of the others."""
        lifted: dict[str, torch.fx.Node] = {}
        for node in [n for n in self.graph.nodes if n.op == "get_attr"]:
            value = getattr(self.module, node.target)
            if not isinstance(value, torch.Tensor):
                continue
            if node.target not in lifted:
                with self.graph.inserting_before(self._placeholders()[0]):
                    new = self.graph.placeholder("c_" + node.target)
                new.meta["val"] = node.meta.get("val", value)
                self.inputs.insert(0, InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(new.name), node.target, None))
                self.constants[node.target] = value
                lifted[node.target] = new
            node.replace_all_uses_with(lifted[node.target])
            self.graph.erase_node(node)

    def _check_gradients(self, have: set[str]) -> None:
        trainable = [
            n for n, grad in zip(self.parameters.names, self.parameters.requires_grad) if grad and n not in self.parameters.tied
        ]
        users = {s.target: n for n, s in zip(self._placeholders(), self.inputs) if s.kind == InputKind.PARAMETER}
        for name in trainable:
            if name in have:
                continue
            if users[name].users:
                raise CaptureError(
                    f"parameter `{name}` requires grad and is used, but the loss has no gradient for it "
                    "(detach(), torch.no_grad(), or an output other than the loss); call requires_grad_(False) on it to keep it fixed"
                )
            self.unused.append(name)

    # ---- metadata

    def _node_metadata(self) -> None:
        """Phase, sequence number, module stack and line of each node; PyTorch counts sequence numbers over a process's life.

        The line is in no archive: a plan does not depend on where the model's file lies.
        """
        known = [n.meta["seq_nr"] for n in self.graph.nodes if n.meta.get("seq_nr", -1) >= 0]
        start = min(known, default=0)
        for node in self.graph.nodes:
            node.meta["source"] = _sources.innermost(_sources.frames_of(node.meta.get("stack_trace") or ""))
            for key in _DROPPED:
                node.meta.pop(key, None)
            if node.op != "call_function":
                continue
            stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
            node.meta["nn_module_stack"] = dict(_scope(str(key), *scope) for key, scope in stack.items())
            backward = node.meta.get("partitioner_tag") == "is_backward" or node.meta.get("autograd_backward")
            number = node.meta.get("seq_nr", -1)
            node.meta["custom"] = {"phase": "bw" if backward else "fw", "seq": number - start if number >= 0 else -1}

    def _ranges(self) -> dict[Any, Any]:
        """Those of the symbols that inputs have; integers among the arguments have got some, too."""
        used = {symbol for node in self._placeholders() for symbol in free_symbols(node.meta["val"])}
        ranges = _get_updated_range_constraints(self.module, self.forward.range_constraints)
        return {symbol: limits for symbol, limits in ranges.items() if symbol in used}

    def _examples(self) -> tuple[Any, ...]:
        args, kwargs = self.forward.example_inputs
        return tuple(v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor))

    def _call_graph(self, inputs: int, outputs: list[OutputSpec]) -> list[Any]:
        """The root's calling convention: the tensors in, a list of the outputs after the mutations out."""
        root = next(e for e in self.forward.module_call_graph if e.fqn == "")
        results = [s.arg for s in outputs if s.kind != OutputKind.BUFFER_MUTATION]
        signature = dataclasses.replace(
            root.signature,
            inputs=[],
            outputs=[],
            in_spec=pytree.tree_structure((tuple(range(inputs)), {})),
            out_spec=pytree.tree_structure(list(range(len(results)))),
            forward_arg_names=None,
        )
        return [dataclasses.replace(root, signature=signature)]
