//===- FSDPAttrs.td - Attributes of the fsdp dialect --------*- tablegen -*-===//

#ifndef FSDP_DIALECT_FSDP_IR_FSDPATTRS_TD
#define FSDP_DIALECT_FSDP_IR_FSDPATTRS_TD

include "fsdp/Dialect/FSDP/IR/FSDPDialect.td"

def FSDP_ParameterAttr : FSDP_Attr<"Parameter", "parameter"> {
  let summary = "One parameter's place inside a flat parameter";
  let description = [{
    `"h.0.ln_1.weight" : 32 @ 0`; sizes are joined by `x`, the empty list is a
    scalar. `offset` in elements from the start of the flat parameter.
    `frozen` if no gradient is reduced into it. `strides` only if the parameter
    is dense but not row-major (channels-last).
  }];
  let parameters = (ins
    "::mlir::StringAttr":$name,
    ArrayRefParameter<"int64_t">:$sizes,
    "int64_t":$offset,
    "bool":$frozen,
    OptionalArrayRefParameter<"int64_t">:$strides,
    OptionalArrayRefParameter<"::mlir::StringAttr">:$aliases);
  let hasCustomAssemblyFormat = 1;
  let extraClassDeclaration = [{ int64_t getNumel() const; }];
}

def FSDP_LayoutAttr : FSDP_Attr<"Layout", "layout"> {
  let summary = "The layout of a flat parameter: FSDP1's FlatParamHandle";
  let description = [{
    `<["a" : 3x5 @ 0, "b" : 7 @ 16], numel = 23, padded = 24>`: parameters in
    order of their offsets, disjoint and inside `numel`; `padded` is a multiple
    of the number of shards. Everything between parameters is padding and 0.
  }];
  let parameters = (ins ArrayRefParameter<"::fsdp::ParameterAttr">:$parameters,
                        "int64_t":$numel, "int64_t":$padded);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    /// The parameter of that name, or null.
    ::fsdp::ParameterAttr find(::llvm::StringRef name) const;
  }];
}

def FSDP_DivideAttr : FSDP_Attr<"Divide", "divide"> {
  let summary = "Divisors before and after a reduction";
  let description = [{ `<pre = 2, post = 1.5>`; pre * post is the data parallel degree. }];
  let parameters = (ins "double":$pre, "double":$post);
  let hasCustomAssemblyFormat = 1;
}

def FSDP_StateAttr : FSDP_Attr<"State", "state"> {
  let summary = "Which persistent state an argument or result of the step is";
  let description = [{
    `#fsdp.state<@h.0, parameter>`, `<@h.0, exp_avg>`, `<@h.0, exp_avg_sq>`,
    `<@h.0, momentum>`, `<@h.0, gradient>` (results only). The same attribute on an argument and a result
    makes the two one place in memory. Stands as `fsdp.state` on function
    arguments and results.
  }];
  let parameters = (ins "::mlir::FlatSymbolRefAttr":$unit, "::mlir::StringAttr":$kind);
  let hasCustomAssemblyFormat = 1;
}

def FSDP_AxisAttr : FSDP_Attr<"Axis", "axis"> {
  let summary = "A named axis of a mesh";
  let parameters = (ins "::mlir::StringAttr":$name, "int64_t":$size);
  let assemblyFormat = "$name `=` $size";
}

def FSDP_StreamAttr : I32EnumAttr<"Stream", "streams of a step", [
    I32EnumAttrCase<"compute", 0>, I32EnumAttrCase<"gather", 1>,
    I32EnumAttrCase<"reduce", 2>, I32EnumAttrCase<"all_reduce", 3>,
    I32EnumAttrCase<"copy", 4>]> {
  let cppNamespace = "::fsdp";
}

#endif
