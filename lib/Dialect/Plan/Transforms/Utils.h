//===- Utils.h - What the passes of the plan dialect share ------*- C++ -*-===//
//
// Windows that are made once, and who touches a buffer when.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_DIALECT_PLAN_TRANSFORMS_UTILS_H
#define FSDP_LIB_DIALECT_PLAN_TRANSFORMS_UTILS_H

#include "fsdp/Dialect/Plan/IR/Plan.h"

#include "mlir/IR/Builders.h"

namespace fsdp::plan {

/// Makes equal views one, and erases views, and transient buffers, that nobody
/// uses.
void tidyBuffers(ModuleOp plan);

/// A window on the bytes of `base`, `offset` bytes after its first element:
/// `base` itself if that is what it would be. Made after `base`.
mlir::Value createView(mlir::Location loc, mlir::Value base, int64_t offset,
                       mlir::RankedTensorType type);

/// The number that `launch` has as an exponent, if its operator is a power that
/// is something simpler for some.
std::optional<double> getExponent(LaunchOp launch);

/// True if what `launch` writes are the elements of its first input.
bool isCopy(LaunchOp launch);

/// One use of a buffer by a command.
struct Access {
  mlir::Operation *command;
  uint32_t position; ///< Of the command in its program.
  bool isWrite;
  Stream stream;
  int64_t begin, end; ///< Bytes of the root.
};

/// All accesses in one program, by root, in the order of commands.
class Accesses {
public:
  explicit Accesses(ProgramOp program);

  llvm::ArrayRef<Access> of(BufferOp root) const {
    auto found = accesses.find(root);
    return found == accesses.end() ? llvm::ArrayRef<Access>()
                                   : llvm::ArrayRef<Access>(found->second);
  }
  uint32_t positionOf(mlir::Operation *command) const {
    return positions.lookup(command);
  }
  uint32_t getNumCommands() const { return numCommands; }

private:
  llvm::DenseMap<mlir::Operation *, llvm::SmallVector<Access, 4>> accesses;
  llvm::DenseMap<mlir::Operation *, uint32_t> positions;
  uint32_t numCommands = 0;
};

} // namespace fsdp::plan

#endif // FSDP_LIB_DIALECT_PLAN_TRANSFORMS_UTILS_H
