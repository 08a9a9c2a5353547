//===- ATenOps.td - The operation of the ATen dialect ------*- tablegen -*-===//
//
// `aten.call`, the one operation.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_ATEN_IR_ATENOPS_TD
#define FSDP_DIALECT_ATEN_IR_ATENOPS_TD

include "fsdp/Dialect/ATen/IR/ATenDialect.td"
include "mlir/IR/OpBase.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

// A symbolic size, float or truth value is a scalar; an output that the
// operator leaves undefined is of type `none`.
def ATen_Tensor : Type<And<[AnyRankedTensor.predicate,
    CPred<"::fsdp::aten::isElementType(::mlir::cast<::mlir::RankedTensorType>($_self).getElementType())">]>,
    "tensor of PyTorch's element types">;
def ATen_Value : AnyTypeOf<[ATen_Tensor, I64, F64, I1, NoneType],
    "tensor, symbolic scalar, or nothing">;

def ATen_CallOp : Op<ATen_Dialect, "call",
    [DeclareOpInterfaceMethods<MemoryEffectsOpInterface>]> {
  let summary = "call a PyTorch operator";
  let description = [{
    Calls the operator `callee`. Constant arguments stand in their place among
    the operands, named ones with their name, so that a call reads as it would
    in Python. Arguments that have their default value are left out. `scope` is
    the path of the module in which the call was made, and `phase` the part of
    the step that it belongs to; both are part of the operation, so that calls
    of different phases are never merged.

    The facts of the operator decide the effects: most have none; random ones
    read and write the state of the generator; unknown ones may do anything.

    Example:

    ```mlir
    %0 = aten.call "transpose.int"(%x, 0, 1) {phase = #aten<phase forward>}
        : (tensor<2x16x32xf32>) -> tensor<16x2x32xf32, #aten.strided<[32, 512, 1]>>
    %1:2 = aten.call "max.dim"(%x, 1, keepdim = false)
        : (tensor<2x16x32xf32>) -> (tensor<2x32xf32>, tensor<2x32xi64>)
    %2 = aten.call "index.Tensor"(%w, [none, %i])
        : (tensor<4x8xf32>, tensor<3xi64>) -> tensor<4x3xf32>
    ```

    **Constraints**:

    * C1: there are as many operands as places among the arguments.
    * C2: the operator is not known to write to its arguments: values are never
      changed in place.
    * C3: a known operator has no more arguments than it takes, and as many
      results as it returns (those of a list are results of their own).
    * C4: an argument of a known operator is one that its schema has, of a kind
      that the schema takes (a number stands for a tensor, too, and one for a
      list), and none without a default value is missing.
    * C5: no tensor has, or reaches with its strides, more than 2^40 elements.
  }];

  let arguments = (ins
    ATen_OpNameAttr:$callee,
    ATen_ArgsAttr:$args,
    OptionalAttr<StrAttr>:$scope,
    OptionalAttr<ATen_PhaseAttr>:$phase,
    Variadic<ATen_Value>:$inputs);
  let results = (outs Variadic<ATen_Value>:$outputs);

  let assemblyFormat = [{
    custom<Callee>($callee) `` custom<CallArgs>($args, $inputs)
    attr-dict `:` functional-type($inputs, $outputs)
  }];
  let hasVerifier = 1;

  let builders = [
    // Of a call whose name is written out, in the phase of another.
    OpBuilder<(ins "::mlir::TypeRange":$outputs, "::llvm::StringRef":$callee,
                   "ArgsAttr":$args, "::mlir::ValueRange":$inputs,
                   CArg<"PhaseAttr", "{}">:$phase,
                   CArg<"::mlir::StringAttr", "{}">:$scope)>];

  let extraClassDeclaration = [{
    /// What is known of the operator, or null.
    const operators::OpFacts *getFacts() { return getCallee().getFacts(); }

    /// How many arguments there are, constants included.
    unsigned getNumArgs() { return getArgs().getValues().size(); }

    /// The argument at `index`: an operand, or a constant. A list with operands
    /// in it is an `ArrayAttr` with places; `getArgInputs` gives the operands.
    ::mlir::OpFoldResult getArg(unsigned index);

    /// The argument with a name, or null if there is none.
    ::mlir::OpFoldResult getArg(::llvm::StringRef keyword);

    /// The operands that stand in the argument at `index`.
    ::mlir::OperandRange getArgInputs(unsigned index);
  }];
}

#endif // FSDP_DIALECT_ATEN_IR_ATENOPS_TD
