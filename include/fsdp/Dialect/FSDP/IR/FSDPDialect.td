//===- FSDPDialect.td - The fsdp dialect and its types ------*- tablegen -*-===//
//
// The dialect of sharded training: the logical level says which communication
// is needed, the scheduled level when it happens.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_IR_FSDPDIALECT_TD
#define FSDP_DIALECT_FSDP_IR_FSDPDIALECT_TD

include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/EnumAttr.td"
include "mlir/IR/OpBase.td"

def FSDP_Dialect : Dialect {
  let name = "fsdp";
  let cppNamespace = "::fsdp";
  let summary = "Fully sharded data parallel training";
  let description = [{
    Two levels share this dialect. At the *logical* level all values are pure:
    `fsdp.unshard` turns a shard into a gathered flat parameter, `fsdp.view`
    looks at one parameter inside it, `fsdp.reduce_scatter` and
    `fsdp.all_reduce` reduce gradients, and optimizer ops update state. At the
    *scheduled* level (`fsdp.async.*`) a collective is launched on a stream,
    yields a future and is waited for, and a gathered value has an end.
  }];
  let useDefaultTypePrinterParser = 1;
  let useDefaultAttributePrinterParser = 1;
  let dependentDialects = ["::fsdp::aten::ATenDialect"];
}

class FSDP_Type<string name, string typeMnemonic>
    : TypeDef<FSDP_Dialect, name> { let mnemonic = typeMnemonic; }
class FSDP_Attr<string name, string attrMnemonic>
    : AttrDef<FSDP_Dialect, name> { let mnemonic = attrMnemonic; }

def FSDP_ShardType : FSDP_Type<"Shard", "shard"> {
  let summary = "One rank's piece of a flat tensor";
  let description = [{
    `!fsdp.shard<12704xf32, 4>`: the flat tensor has 12704 elements of f32, cut
    into 4 pieces of equal length; a value is one of them. Used for parameters,
    reduced gradients and optimizer state.
  }];
  let parameters = (ins "int64_t":$numel, "::mlir::Type":$elementType, "int64_t":$shards);
  let assemblyFormat = "`<` custom<FlatShape>($numel, $elementType) `,` $shards `>`";
  let genVerifyDecl = 1; // C1 numel > 0, C2 shards > 0, C3 numel % shards == 0
}

def FSDP_GatheredType : FSDP_Type<"Gathered", "gathered"> {
  let summary = "An unsharded flat parameter in compute dtype";
  let description = [{
    Entered only through `fsdp.view`, so that "use after reshard" is a question
    about one value and its views.
  }];
  let parameters = (ins "int64_t":$numel, "::mlir::Type":$elementType);
  let assemblyFormat = "`<` custom<FlatShape>($numel, $elementType) `>`";
  let genVerifyDecl = 1;
}

def FSDP_FutureType : FSDP_Type<"Future", "future"> {
  let summary = "The result of a collective in flight";
  let description = [{ Linear: consumed by exactly one `fsdp.async.wait` on every path. }];
  let parameters = (ins "::mlir::Type":$valueType);
  let assemblyFormat = "`<` $valueType `>`";
}

#endif
