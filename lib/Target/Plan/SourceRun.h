//===- SourceRun.h - A model that runs over numbers -------------*- C++ -*-===//
//
// What a step is compared with: its source, as it was before sharding, and
// what the options say of its gradients and updates.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_TARGET_PLAN_SOURCERUN_H
#define FSDP_LIB_TARGET_PLAN_SOURCERUN_H

#include "Arguments.h"

#include "fsdp/Dialect/FSDP/IR/Programs.h"
#include "fsdp/Symbolic/Machine.h"
#include "fsdp/Target/Plan/Meaning.h"

#include "llvm/ADT/MapVector.h"

#include <deque>

namespace fsdp::detail {

namespace pf = fsdp::planfile;
namespace sy = fsdp::symbolic;

/// Of the parameter in the flat one: those of its sizes if it says nothing.
std::vector<int64_t> getStrides(ParameterAttr parameter);

/// What is of one step alone, of those that are made from a source.
struct StepRun {
  explicit StepRun(mlir::func::FuncOp step) : step(step) {}
  /// What the updates take, if they take it.
  std::optional<sy::Window> &scalar(UpdateScalar which) {
    return scalars[unsigned(which)];
  }

  mlir::func::FuncOp step;
  llvm::StringRef rule; // of the update; empty if there is none
  llvm::SmallVector<llvm::StringRef> kinds; // of the states that it changes
  bool isScaled = false;                    // by what nothing says
  PartAttr part; // of a step of several micro-batches
  llvm::DenseMap<mlir::Attribute, llvm::StringRef> accumulated; // by unit
  llvm::DenseMap<mlir::Attribute, mlir::Type> kept; // gathered, by unit
  /// The decay groups of elements of a unit.
  struct DecayGroup {
    uint64_t begin, end, number;
  };
  llvm::SmallDenseSet<uint64_t> withoutDecay; // groups
  llvm::DenseMap<mlir::Attribute, llvm::SmallVector<DecayGroup>> groups;
  /// The kinds of state that some program has of each unit.
  llvm::DenseMap<mlir::Attribute, llvm::SmallVector<llvm::StringRef>> states;
  llvm::DenseMap<mlir::Operation *, sy::Content> reduced; // gradients, of units
  std::array<std::optional<sy::Window>, numUpdateScalars> scalars;
  std::optional<sy::Window> growthTracker;
  sy::Meanings meanings;
};

class SourceRun : private StepRun {
public:
  /// `first`: of the steps, which all scale the loss alike.
  SourceRun(mlir::func::FuncOp source, mlir::func::FuncOp first,
            const sy::Ranks &ranks)
      : StepRun(first), source(source),
        symbols(first->getParentOfType<mlir::ModuleOp>()), machine(ranks) {
    machine.values.isRecording = true;
  }

  /// What the steps have in common; and one of them, after that.
  mlir::LogicalResult runSource();
  mlir::FailureOr<PlanMeaning> runStep(mlir::func::FuncOp step);

private:
  /// Where a value lies, and where the tensor starts whose storage it shares.
  struct Place {
    sy::Window window;
    uint64_t storage = 0;
  };
  /// A call without its operands.
  struct Call {
    const sy::Operator *op = nullptr;
    std::vector<MatchedArgument> arguments;
    std::vector<sy::Literal> literals;

    std::vector<sy::Argument>
    getArguments(llvm::ArrayRef<const sy::Window *> operands) const;
  };

  mlir::LogicalResult readUnits();
  mlir::LogicalResult addArgument(mlir::func::FuncOp func,
                                  mlir::BlockArgument argument);
  mlir::LogicalResult addCall(aten::CallOp op, aten::ArgsAttr args);
  mlir::LogicalResult addSeed(aten::CallOp seed);
  mlir::FailureOr<sy::Window> addScalerBuffer(llvm::StringRef name);
  mlir::FailureOr<const Call *> getCall(mlir::Operation *op,
                                        aten::OpNameAttr callee,
                                        aten::ArgsAttr args, size_t numResults);
  mlir::LogicalResult addResults();
  void readOptimizer();
  std::map<uint64_t, std::vector<sy::Range>> getGroups(UnitOp unit,
                                                       const sy::Unit &own);
  void readStates();
  std::pair<uint64_t, int64_t> getGroup(UnitOp unit);
  /// A sum over axes of more than one rank, as bits.
  struct Reduction {
    uint64_t axes;
    double pre, post;
    pf::DType via, result;
  };
  mlir::FailureOr<llvm::SmallVector<Reduction>> getReductions(UnitOp unit);
  mlir::LogicalResult addGradient(UnitOp unit,
                                  llvm::ArrayRef<mlir::Value> gradients);
  llvm::SmallVector<sy::Window> measure(MeasureKind kind);
  mlir::FailureOr<llvm::SmallVector<sy::Window>>
  call(llvm::StringRef name, llvm::ArrayRef<sy::Window> operands,
       llvm::ArrayRef<mlir::Attribute> constants,
       llvm::ArrayRef<pf::DType> types);
  void meanOverRanks(sy::Content &content, const sy::Window &window);
  mlir::LogicalResult addFoundInf();
  mlir::LogicalResult addClipFactor();
  mlir::LogicalResult addScale();
  void addStates(UnitOp unit);

  const sy::Layout *getLayout(mlir::RankedTensorType type);
  mlir::FailureOr<Place> place(mlir::Location loc, mlir::Type type);
  sy::Window place(const sy::Layout &layout, pf::DType dtype);

  mlir::func::FuncOp source;
  mlir::SymbolTable symbols;
  sy::Machine machine;
  std::deque<sy::Layout> layouts;
  const sy::Layout number = sy::Layout({}, {}); // of one
  llvm::DenseMap<mlir::Type, const sy::Layout *> layoutOf;
  llvm::DenseMap<mlir::Value, Place> places;
  llvm::DenseMap<std::pair<mlir::Attribute, mlir::Attribute>, Call> calls;
  uint64_t end = 0; // of the memory in use
  uint32_t numRoots = 0;

  uint64_t axes = 0; // of more than one rank, as bits
  int64_t numRanks = 1;
  llvm::DenseMap<mlir::StringAttr, std::pair<UnitOp, ParameterAttr>> parameters;
  llvm::MapVector<mlir::Operation *, sy::Unit> units;
  sy::Machine::Effects effects; // of the source
  sy::Meanings whole;           // of the plan
};

} // namespace fsdp::detail

#endif // FSDP_LIB_TARGET_PLAN_SOURCERUN_H
