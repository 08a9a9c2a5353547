//===- EquivalenceImpl.h - Numbers of values, and what they show *- C++ -*-===//
//
// Equal numbers are equal values: a number stands for an operator, its
// arguments and the numbers of its operands. Gathers, views, reductions and
// waits get the number of what they carry; what they must satisfy besides is
// checked on the way.
//
// The source is the model as it was imported. It starts its backward with 1,
// and the step with what `getSeedFactor` says: numbers of the source are those
// of a source that does so, too.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_ANALYSIS_EQUIVALENCEIMPL_H
#define FSDP_LIB_ANALYSIS_EQUIVALENCEIMPL_H

#include "VerifyUpdates.h"
#include "fsdp/Dialect/FSDP/IR/Programs.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/MapVector.h"

#include <optional>

namespace fsdp {

class Equivalence {
public:
  /// What a result of the source is: the name and value of its attribute.
  using Role = std::pair<mlir::StringAttr, mlir::Attribute>;

  Equivalence(mlir::func::FuncOp step, mlir::func::FuncOp source,
              mlir::func::FuncOp init)
      : step(step), source(source), init(init),
        symbols(step->getParentOfType<mlir::ModuleOp>()) {}

  mlir::LogicalResult verify();

private:
  /// Effects of a function, in order.
  using Effects = llvm::SmallVector<std::pair<unsigned, mlir::Operation *>>;

  // The first words of keys. Those of calls start with a pointer.
  enum Tag : uintptr_t {
    Argument,
    Parameter,
    State,
    Kept,
    Flat,
    Reduced,
    Accumulated,
    Fresh
  };

  unsigned intern(llvm::ArrayRef<uintptr_t> key, unsigned numResults = 1);
  template <typename... Words> unsigned internWords(Tag tag, Words... words) {
    return intern({tag, reinterpret_cast<uintptr_t>(words)...});
  }
  static const void *word(mlir::Attribute attr) {
    return attr.getAsOpaquePointer();
  }
  static const void *word(mlir::Type type) { return type.getAsOpaquePointer(); }

  // Roles.
  static bool isLater(mlir::func::FuncOp program);
  static StateAttr getGathered(StateAttr state);
  static std::optional<Role> getRole(mlir::DictionaryAttr dict);

  // Numbering.
  mlir::LogicalResult checkLayouts();
  mlir::LogicalResult numberArguments(mlir::func::FuncOp func);
  mlir::LogicalResult numberBody(mlir::func::FuncOp func, Effects &effects);
  mlir::LogicalResult numberGather(CollectiveOpInterface gather);
  void numberPiece(PieceOp piece);
  mlir::LogicalResult numberView(ViewOp view);
  mlir::LogicalResult numberFlat(FlattenGradsOp flatten);
  mlir::LogicalResult numberReduction(CollectiveOpInterface reduction);
  mlir::LogicalResult numberAccumulation(AccumulateOp op);
  unsigned internCall(aten::OpNameAttr callee, aten::ArgsAttr args,
                      llvm::ArrayRef<unsigned> inputs, mlir::TypeRange types);
  mlir::LogicalResult numberSeed(aten::CallOp seed);
  void numberOther(mlir::Operation &op, Effects &effects);
  void forward(mlir::Value from, mlir::Value to) {
    numbers[to] = numbers.lookup(from);
  }

  // State.
  mlir::LogicalResult numberUpdate(UpdateOpInterface update);
  mlir::LogicalResult checkUpdates();

  // Comparison.
  mlir::Value getAccumulated(mlir::Value value, unsigned &count);
  mlir::FailureOr<mlir::Value> getReduced(mlir::Value value, MeshOp mesh,
                                          int64_t ranks, double divisor,
                                          const llvm::Twine &what,
                                          bool isFirst = false);
  mlir::LogicalResult compareEffects();
  mlir::LogicalResult compareResults();
  mlir::LogicalResult addResult(unsigned index, mlir::Value value,
                                llvm::MapVector<Role, mlir::Value> &found);
  mlir::FailureOr<mlir::Value> getOwn(Role role, mlir::Value value);
  mlir::FailureOr<FlattenGradsOp> findFlat(mlir::Value value, UnitOp unit,
                                           StateAttr state);
  mlir::LogicalResult addGradients(mlir::Value value, StateAttr state,
                                   llvm::MapVector<Role, mlir::Value> &found);
  mlir::LogicalResult reportDifference(Role role, mlir::Value found,
                                       mlir::Value expected);
  mlir::Value resolve(mlir::Value value);
  mlir::Value getCopied(mlir::Value value);
  std::string describe(mlir::Value value);
  static std::string getName(Role role);
  MeshOp getMesh(mlir::FlatSymbolRefAttr unit);

  mlir::func::FuncOp step, source, init;
  mlir::SymbolTable symbols;

  llvm::BumpPtrAllocator allocator;
  llvm::DenseMap<llvm::ArrayRef<uintptr_t>, unsigned> table;
  unsigned numNumbers = 0;
  llvm::DenseMap<mlir::Value, unsigned> numbers;
  Effects sourceEffects, stepEffects;

  llvm::DenseMap<unsigned, PieceOp> pieces;
  llvm::DenseMap<unsigned, FlattenGradsOp> flats;
  llvm::DenseMap<unsigned, CollectiveOpInterface> reductions;
  llvm::DenseMap<unsigned, AccumulateOp> accumulations;
  llvm::DenseMap<mlir::Attribute, AccumulateOp>
      accumulated; // by the state that it adds to
  /// The last value of each state, and which elements are updated by whom.
  llvm::DenseMap<mlir::Attribute, mlir::Value> states;
  llvm::DenseMap<mlir::Attribute, llvm::SmallVector<UnitInterval>> updates;
};

} // namespace fsdp

#endif // FSDP_LIB_ANALYSIS_EQUIVALENCEIMPL_H
