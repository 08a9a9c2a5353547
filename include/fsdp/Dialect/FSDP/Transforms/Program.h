//===- Program.h - What passes share about programs -------------*- C++ -*-===//
//
// How passes tell the levels of programs apart, change their signatures, and
// follow gathered parameters through them.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_TRANSFORMS_PROGRAM_H
#define FSDP_DIALECT_FSDP_TRANSFORMS_PROGRAM_H

#include "fsdp/Dialect/FSDP/IR/Programs.h"

#include "mlir/IR/Remarks.h"
#include "llvm/ADT/DenseMap.h"

namespace fsdp {

/// The level of a program, by its arguments and operations.
enum class Level { ATen, Logical, Scheduled };

/// Reports an error unless the program is of one of the levels. A program in
/// which nothing tells is of any.
mlir::LogicalResult checkLevel(mlir::func::FuncOp program,
                               llvm::ArrayRef<Level> levels);

/// A pass that works on programs of some levels, one by one.
template <typename Base, Level... levels> class ProgramPass : public Base {
public:
  using Base::Base;

  void runOnOperation() final {
    auto programs = getPrograms(this->getOperation());
    if (failed(programs))
      return this->signalPassFailure();
    for (mlir::func::FuncOp program : *programs)
      if (failed(checkLevel(program, {levels...})) ||
          failed(runOnProgram(program)))
        return this->signalPassFailure();
  }

  virtual mlir::LogicalResult runOnProgram(mlir::func::FuncOp program) = 0;
};

/// What a remark of `pass` about `op`, which is in a program or is one, begins
/// with.
mlir::remark::RemarkOpts getRemark(llvm::StringRef pass, llvm::StringRef name,
                                   mlir::Operation *op);

/// As people say it: "1.80 ms".
std::string spellTime(int64_t nanoseconds);

/// The types and attributes of a function's arguments or results.
struct Ports {
  llvm::SmallVector<mlir::Type> types;
  llvm::SmallVector<mlir::DictionaryAttr> attrs;

  void add(mlir::Type type, mlir::DictionaryAttr dict) {
    types.push_back(type);
    attrs.push_back(dict);
  }
};

/// The ports that `func` has now.
Ports getArguments(mlir::func::FuncOp func);
Ports getResults(mlir::func::FuncOp func);

/// Gives `func` a signature in one go: changing a thousand arguments one by one
/// takes quadratic time and memory. The block and the return are the caller's.
void setSignature(mlir::func::FuncOp func, const Ports &arguments,
                  const Ports &results);

/// Puts each parameter of `to` into the unit in which it is in `from`, both of
/// the aten level. Reports an error if `from` has not got it.
mlir::LogicalResult copyUnits(mlir::func::FuncOp from, mlir::func::FuncOp to);

/// By the name of each parameter, what all parameters of a unit have in common:
/// the element type in which it is stored, that of its reduction, and those of
/// the programs of the aten level that take it.
llvm::DenseMap<mlir::Attribute, mlir::Attribute>
getParameterTypes(llvm::ArrayRef<mlir::func::FuncOp> programs);

/// A dictionary with one `#fsdp.state`.
mlir::DictionaryAttr getStateDict(UnitOp unit, llvm::StringRef kind);

/// The `#fsdp.state` of a port; null if it has none.
StateAttr getState(mlir::DictionaryAttr port);

/// The results that are reduced gradients, in the order in which they are
/// computed.
llvm::SmallVector<unsigned> getGradients(mlir::func::FuncOp program);

/// The paths of the modules of `model`, of the aten level, that `--wrap auto`
/// makes units of: its outermost repeated blocks, or else layers.
std::vector<std::string> findRepeatedModules(mlir::func::FuncOp model);

/// The elements of the parameters that `isIn`: from the first one of each run
/// of them to where the next other one begins, or the layout ends. What lies
/// between is padding, which is 0 and has no gradient, so it stays 0.
llvm::SmallVector<int64_t>
getIntervals(LayoutAttr layout, llvm::function_ref<bool(ParameterAttr)> isIn);

/// The phase of the gather that an operation of `phase` reads: recomputation is
/// part of the backward.
aten::Phase getGatherPhase(aten::Phase phase);

/// The phase of an operation for that purpose; the forward if it does not say.
aten::Phase getGatherPhase(mlir::Operation *op);

/// What launches have in common that are copied into one buffer: element types,
/// and how a reduction divides. The gather of a shard casts it on the way in.
mlir::Attribute getCopyKey(CollectiveOpInterface launch);

/// Checks that each unit is gathered from its own shard and viewed as itself,
/// and that what is used in a phase was gathered for that phase, for units that
/// are resharded after the forward.
mlir::LogicalResult verifyGathers(mlir::func::FuncOp step);

} // namespace fsdp

#endif // FSDP_DIALECT_FSDP_TRANSFORMS_PROGRAM_H
