//===- FSDPAttrs.td - Attributes of the fsdp dialect --------*- tablegen -*-===//
//
// Layouts of flat parameters, divisors, roles of state, axes of a mesh.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_IR_FSDPATTRS_TD
#define FSDP_DIALECT_FSDP_IR_FSDPATTRS_TD

include "fsdp/Dialect/FSDP/IR/FSDPDialect.td"
include "fsdp/Dialect/FSDP/IR/FSDPEnums.td"

class FSDP_Attr<string name, string attrMnemonic>
    : AttrDef<FSDP_Dialect, name> { let mnemonic = attrMnemonic; }

def FSDP_ParameterAttr : FSDP_Attr<"Parameter", "parameter"> {
  let summary = "one parameter's place inside a flat parameter";
  let description = [{
    Name, sizes (joined by `x`; none for a scalar) and offset in elements from
    the start of the flat parameter; then, where they apply: `frozen` if no
    gradient is reduced into it, `strides` if it is dense but not row-major
    (channels-last), and the other names of a tied parameter.

    Example:

    ```mlir
    #fsdp.parameter<"wte.weight" : 128x32 at 64 frozen aliases ["lm_head.weight"]>
    ```

    **Constraints**:

    * P1: sizes and offset are not negative.
    * P2: there is one stride per size, and the strides are those of a dense
      tensor whose dimensions are permuted.
  }];
  let parameters = (ins
    "::mlir::StringAttr":$name,
    OptionalArrayRefParameter<"int64_t">:$sizes,
    "int64_t":$offset,
    "bool":$frozen,
    OptionalArrayRefParameter<"int64_t">:$strides,
    OptionalArrayRefParameter<"::mlir::StringAttr">:$aliases);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    int64_t getNumel() const;
    /// One past the last element.
    int64_t getEnd() const { return getOffset() + getNumel(); }
  }];
}

def FSDP_LayoutAttr : FSDP_Attr<"Layout", "layout"> {
  let summary = "the layout of a flat parameter, as FSDP's FlatParamHandle has it";
  let description = [{
    Parameters in order of their offsets; `numel` elements with the padding between
    and after them, `padded` elements when split into shards of equal length.
    Everything that is no parameter is 0.

    Example:

    ```mlir
    #fsdp.layout<["a" : 3x5 at 0, "b" : 7 at 16], numel = 23, padded = 24>
    ```

    **Constraints**:

    * L1: each parameter starts at or after the end of the one before it.
    * L2: the last parameter ends inside `numel`, which is not above `padded`.
    * L3: no name occurs twice, aliases included.
    * L4: there is at least one parameter.
    * L5: `padded` is at most 2^40.
  }];
  let parameters = (ins ArrayRefParameter<"::fsdp::ParameterAttr">:$parameters,
                        "int64_t":$numel, "int64_t":$padded);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    /// The parameter of that name (not alias), or null.
    ::fsdp::ParameterAttr find(::llvm::StringRef name) const;
    /// True if a gradient is reduced into some parameter.
    bool hasTrainable() const;
  }];
}

def FSDP_DivideAttr : FSDP_Attr<"Divide", "divide"> {
  let summary = "divisors before and after a reduction";
  let description = [{
    The input is divided by `pre`, reduced with a sum, and divided by `post`. For
    a mean, the product over all reductions of a value is the number of ranks.

    Example:

    ```mlir
    #fsdp.divide<pre = 2, post = 1.5>
    ```

    **Constraints**:

    * D1: both are finite and at least 1.
  }];
  let parameters = (ins APFloatParameter<"">:$before, APFloatParameter<"">:$after);
  let builders = [AttrBuilder<(ins "double":$pre, "double":$post), [{
    return $_get($_ctxt, ::llvm::APFloat(pre), ::llvm::APFloat(post));
  }]>];
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    double getPre() const { return getBefore().convertToDouble(); }
    double getPost() const { return getAfter().convertToDouble(); }
  }];
}

def FSDP_ReductionAttr : FSDP_Attr<"Reduction", "reduction"> {
  let summary = "a reduction of a unit's gradients";
  let description = [{
    What `fsdp.reductions` of a unit list: over which axes, the divisors, what the
    sum is rounded to, and the type of the result.

    Example:

    ```mlir
    #fsdp.reduction<over ["replicate"] divide <pre = 1, post = 2> via bf16 to f32>
    ```
  }];
  let parameters = (ins "::mlir::ArrayAttr":$axes, "::fsdp::DivideAttr":$divide,
                        "::mlir::Type":$via, "::mlir::Type":$result);
  let assemblyFormat = [{
    `<` `over` $axes `divide` $divide `via` $via `to` $result `>`
  }];
}

def FSDP_StateAttr : FSDP_Attr<"State", "state"> {
  let summary = "which persistent state an argument or result of the step is";
  let description = [{
    Stands as `fsdp.state` on function arguments and results of type
    `!fsdp.shard`. The same state on an argument and a result makes the two one
    place in memory. A `gradient` is a result only. What is summed over
    micro-batches is a `sharded_gradient`, a `partial_gradient`, which is reduced
    over the axes of the shards alone and of the reduce type, or an
    `unsharded_gradient`, which is a tensor: the flat gradient of a rank, before
    it is reduced. An `unsharded_parameter` is a `!fsdp.gathered`: a result of the
    first micro-batch of a step, and an argument of the others.

    Example:

    ```mlir
    #fsdp.state<@h.0, exp_avg>
    ```

    **Constraints**:

    * S1: the kind is `parameter`, `gradient`, `exp_avg`, `exp_avg_sq`,
      `momentum`, `sharded_gradient`, `partial_gradient`, `unsharded_gradient` or
      `unsharded_parameter`.
  }];
  let parameters = (ins "::mlir::FlatSymbolRefAttr":$unit, "::mlir::StringAttr":$kind);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    static llvm::StringRef getParameterKind() { return "parameter"; }
    static llvm::StringRef getGradientKind() { return "gradient"; }
    static llvm::StringRef getExpAvgKind() { return "exp_avg"; }
    static llvm::StringRef getExpAvgSqKind() { return "exp_avg_sq"; }
    static llvm::StringRef getMomentumKind() { return "momentum"; }
    static llvm::StringRef getShardedGradientKind() { return "sharded_gradient"; }
    static llvm::StringRef getPartialGradientKind() { return "partial_gradient"; }
    static llvm::StringRef getUnshardedGradientKind() { return "unsharded_gradient"; }
    static llvm::StringRef getUnshardedParameterKind() { return "unsharded_parameter"; }
    /// Whether it is summed over micro-batches.
    bool isAccumulated() const {
      return getKind() == getShardedGradientKind() || getKind() == getPartialGradientKind() ||
             getKind() == getUnshardedGradientKind();
    }
  }];
}

def FSDP_AxisAttr : FSDP_Attr<"Axis", "axis"> {
  let summary = "a named axis of a mesh";
  let parameters = (ins "::mlir::StringAttr":$name, "int64_t":$size);
  let assemblyFormat = "`<` $name `=` $size `>`";
}

def FSDP_ReductionRoleAttr : EnumAttr<FSDP_Dialect, FSDP_ReductionRole, "reduction_role"> {
  let summary = "what is summed over a mesh";
}

def FSDP_PartAttr : EnumAttr<FSDP_Dialect, FSDP_Part, "part"> {
  let summary = "which micro-batch of a step a program is for";
  let assemblyFormat = "`<` $value `>`";
}

def FSDP_StrategyAttr : EnumAttr<FSDP_Dialect, FSDP_Strategy, "strategy"> {
  let summary = "what is sharded, and for how long";
}

def FSDP_MeasureKindAttr : EnumAttr<FSDP_Dialect, FSDP_MeasureKind, "measure_kind"> {
  let summary = "what the elements of a shard add up to";
}

#endif // FSDP_DIALECT_FSDP_IR_FSDPATTRS_TD
