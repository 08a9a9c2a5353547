//===- IssueOrder.h - Where launches and waits are to stand -----*- C++ -*-===//
//
// The order in which a scheduled step is to be issued. Passes decide it, one
// after the other, and none of them moves an operation: decisions are
// attributes, until `--fsdp-apply-schedule` makes the order of the block of
// them. So an order can be tried, and priced, without a change of the IR.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ANALYSIS_ISSUEORDER_H
#define FSDP_ANALYSIS_ISSUEORDER_H

#include "mlir/IR/Block.h"
#include "mlir/IR/Operation.h"
#include "llvm/ADT/DenseMap.h"

#include <list>

namespace fsdp {

/// Reports an error at an operation that has regions or successors: orders and
/// memory are those of straight-line code.
mlir::LogicalResult checkStraightLine(mlir::Block &block);

class IssueOrder {
public:
  /// What the attributes of the block say, its own order where they say
  /// nothing. Reports an error at an operation whose decision cannot be, or
  /// unless the block is straight-line code.
  static mlir::FailureOr<IssueOrder> read(mlir::Block &block);

  /// The order of the block itself.
  static IssueOrder getOwn(mlir::Block &block);

  IssueOrder(IssueOrder &&) = default;
  IssueOrder &operator=(IssueOrder &&) = default;

  /// All operations of the block in the order of issue; the terminator is the
  /// last.
  const std::list<mlir::Operation *> &getOperations() const {
    return operations;
  }
  bool isBefore(mlir::Operation *a, mlir::Operation *b) const;
  /// The operation after `op`; null after the terminator.
  mlir::Operation *getNext(mlir::Operation *op) const;

  /// Moves a launch or a wait.
  void moveBefore(mlir::Operation *op, mlir::Operation *place);
  void moveAfter(mlir::Operation *op, mlir::Operation *place);

  /// Lets a gather, or the copy that it takes, start only when the memory of a
  /// reshard has been given up.
  void addAfter(mlir::Operation *launch, mlir::Operation *reshard) {
    after[launch].push_back(reshard);
  }
  /// The reshards that a launch starts after, apart from its operands.
  llvm::ArrayRef<mlir::Operation *> getAfter(mlir::Operation *launch) const;

  /// Writes the decisions as attributes; none if the order is the block's own.
  void write() const;
  /// Makes the block follow the decisions, and removes the attributes.
  void apply();

private:
  explicit IssueOrder(mlir::Block &block) : block(&block) {}
  mlir::LogicalResult readPlaces();
  mlir::LogicalResult readAfter();
  /// That no operation stands before what it needs.
  mlir::LogicalResult check() const;
  /// True if nothing was decided: the order is the block's.
  bool isOwn() const;

  using Operations = std::list<mlir::Operation *>;
  /// Where an operation is, and a number that grows along the order.
  struct Place {
    Operations::const_iterator it;
    uint64_t number;
  };
  Place &getPlace(mlir::Operation *op) const;
  /// Numbers the operations, with room between them.
  void number() const;

  mlir::Block *block;
  Operations operations;
  mutable llvm::DenseMap<mlir::Operation *, Place> places; // once asked for
  llvm::DenseMap<mlir::Operation *, llvm::SmallVector<mlir::Operation *, 1>>
      after;
};

/// Reports an error if the block still has decisions: then its own order is
/// not the one that was decided.
mlir::LogicalResult checkApplied(mlir::Block &block);

} // namespace fsdp

#endif // FSDP_ANALYSIS_ISSUEORDER_H
