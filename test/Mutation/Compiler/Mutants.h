//===- Mutants.h - Small mistakes in legal programs -------------*- C++ -*-===//
//
// All ways of one mistake in one operation of a schedule or a plan: it is gone,
// there twice, at another place, or says something else. Whether the result is
// still legal is for the verifiers to say, which is what mutants are for.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_TEST_MUTATION_MUTANTS_H
#define FSDP_TEST_MUTATION_MUTANTS_H

#include "mlir/IR/BuiltinOps.h"

#include <functional>
#include <string>

namespace fsdp::test {

struct Mutant {
  std::string op;       ///< The kind of the operation: its name.
  std::string mutation; ///< One of a few words.
  std::string what;     ///< For people.
  /// Damages a copy of the program, given all operations of the copy in the
  /// order of a walk, parents first.
  std::function<void(llvm::ArrayRef<mlir::Operation *>)> apply;
};

/// All operations of a program, parents first.
llvm::SmallVector<mlir::Operation *> listOperations(mlir::ModuleOp module);

/// The mutants of the step and its tables; the private function that a step was
/// made from, and what a plan means, stay as they are. The same program and
/// seed give the same mutants.
std::vector<Mutant> makeMutants(mlir::ModuleOp module, unsigned seed);

/// `count` pairs of them: two mistakes in one program.
std::vector<Mutant> pairUp(const std::vector<Mutant> &mutants, unsigned count,
                           unsigned seed);

/// About one in `every` of them, and at least one of each kind of operation and
/// mutation.
std::vector<Mutant> choose(std::vector<Mutant> mutants, unsigned every,
                           unsigned seed);

} // namespace fsdp::test

#endif // FSDP_TEST_MUTATION_MUTANTS_H
