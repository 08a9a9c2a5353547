//===- CostOpInterface.td - What an operation costs --------*- tablegen -*-===//
//
// The question that costs are made from. Answers are external models, since no
// dialect knows of time.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ANALYSIS_COSTOPINTERFACE_TD
#define FSDP_ANALYSIS_COSTOPINTERFACE_TD

include "mlir/IR/OpBase.td"

def FSDP_CostOpInterface : OpInterface<"CostOpInterface"> {
  let description = [{
    An operation that takes time. What does not implement it takes none.
  }];
  let cppNamespace = "::fsdp";
  let methods = [
    InterfaceMethod<[{
        What one rank does: an amount of work, not a time. Units and meshes are
        looked up in `symbols`.
      }],
      "::fsdp::Work", "getWork", (ins "::mlir::SymbolTableCollection &":$symbols)>,
  ];
}

#endif // FSDP_ANALYSIS_COSTOPINTERFACE_TD
