//===- ProgramBuilder.h - A program as the planner sees it ------*- C++ -*-===//
//
// One program of the planner's model, from its variants: computations, what
// they do with units, what these send, and memory.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_DIALECT_FSDP_TRANSFORMS_SCHEDULED_PROGRAMBUILDER_H
#define FSDP_LIB_DIALECT_FSDP_TRANSFORMS_SCHEDULED_PROGRAMBUILDER_H

#include "StepVariants.h"

#include "fsdp/Dialect/FSDP/Transforms/CostModel.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringMap.h"

#include <map>

namespace fsdp {

/// Builds one program of the model.
class ProgramBuilder {
public:
  ProgramBuilder(mlir::func::FuncOp program, const CostModel &costs,
                 planner::StepModel &model,
                 const llvm::StringMap<uint32_t> &units,
                 std::vector<RankGroup> &groups)
      : name(program), costs(costs), model(model), units(units),
        groups(groups) {}

  /// Of `variants`.
  mlir::LogicalResult build(llvm::ArrayRef<uint32_t> modules);
  /// What may be kept of units, from the program with all pieces.
  void addPieces(mlir::func::FuncOp withPieces);

  StepVariants variants; ///< The first two are those of nothing and all.
  planner::Program program;
  std::vector<uint32_t> sizes;

private:
  /// What a computation does with units.
  struct Roles {
    llvm::SmallSetVector<uint32_t, 1> weights, gradients, updates;
  };
  /// The lives of one piece of memory in all variants.
  struct Uses {
    std::map<uint32_t, uint8_t> ifs; ///< Computations: bits of variants.
    uint8_t isIn = 0;                ///< Bits of variants that have it.
    int64_t bytes = 0;
    uint32_t begin = 0;
  };
  /// By maker, number of its result, whether it is communication, and how many
  /// such there were before.
  using Key = std::tuple<uint32_t, unsigned, bool, unsigned>;

  mlir::InFlightDiagnostic reject() {
    return mlir::func::FuncOp(name).emitError();
  }
  mlir::LogicalResult addTraffic();
  void addGather(LaunchOpInterface launch);
  void addReduction(LaunchOpInterface launch);
  mlir::LogicalResult addCopy(LaunchOpInterface launch);
  planner::CollectiveCost getCollectiveCost(mlir::Operation *launch);
  uint32_t getGroup(mlir::Operation *launch);
  bool isUnitMemory(const MemoryLife &life);
  mlir::LogicalResult findRoles();
  void findWeights(const StepVariant &variant, LaunchOpInterface gather);
  void findReaders(const StepVariant &variant, mlir::Value value,
                   llvm::function_ref<void(uint32_t)> add);
  void addOps();
  bool isOfUnit(const MemoryLife &life, const StreamOrder &order) const;
  void collectLives(const StepVariant &variant, std::map<Key, Uses> &all) const;
  planner::Life makeLife(const Uses &uses) const;
  void addLives();
  void fold(int64_t bytes, uint32_t begin, uint32_t end);

  mlir::func::FuncOp name;
  const CostModel &costs;
  planner::StepModel &model; ///< Gets what groups take of links.
  const llvm::StringMap<uint32_t> &units;
  std::vector<RankGroup> &groups;
  mlir::SymbolTableCollection symbols;
  const StepVariant *full = nullptr; // in which everything is recomputed
  std::vector<Roles> roles;
  std::vector<uint32_t> mainOp; // of the model, by computation
  std::vector<int64_t> takes, frees;
  llvm::DenseMap<mlir::Value, uint32_t>
      gradientOf; // flat gradients: their unit
};

} // namespace fsdp

#endif // FSDP_LIB_DIALECT_FSDP_TRANSFORMS_SCHEDULED_PROGRAMBUILDER_H
