//===- Arguments.h - Launch arguments, between dialect and file -*- C++ -*-===//
//
// A launch in the dialect has the arguments that the model gave; one in the
// plan file has all of its operator's, in the order of the schema. This is the
// way from one to the other and back.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_TARGET_PLAN_ARGUMENTS_H
#define FSDP_LIB_TARGET_PLAN_ARGUMENTS_H

#include "fsdp/Dialect/Plan/IR/Plan.h"
#include "fsdp/Operators/OperatorSchema.h"
#include "fsdp/Schema/plan_generated.h"

#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace fsdp {

/// The element type's number in the plan file, if it has one; and back.
std::optional<planfile::DType> toPlanDType(mlir::Type type);
mlir::Type fromPlanDType(planfile::DType dtype, mlir::MLIRContext *context);

/// A constant argument. Truth values, enumerations and references are integers.
struct ConstantValue {
  planfile::Value kind = planfile::Value::None;
  std::vector<int64_t> integers = {};
  std::vector<double> floats = {};
  std::string text = {};

  bool operator<(const ConstantValue &other) const {
    // Floats by their bits: -0.0 is not 0.0, and NaN equals itself.
    return std::tie(kind, integers, text) <
               std::tie(other.kind, other.integers, other.text) ||
           (std::tie(kind, integers, text) ==
                std::tie(other.kind, other.integers, other.text) &&
            bits() < other.bits());
  }
  std::vector<uint64_t> bits() const;
};

flatbuffers::Offset<planfile::Constant>
writeConstant(flatbuffers::FlatBufferBuilder &fbb, const ConstantValue &value);

/// The argument that a constant of a plan for `device` stands for; lists of
/// references are not among them.
mlir::Attribute readConstant(const planfile::Constant &constant,
                             aten::Device device, mlir::MLIRContext *context);

/// All arguments of an operator in the order of its schema, and the places of
/// its results, if it writes none of its arguments.
struct LaunchArguments {
  struct Argument {
    bool isTensor = false, isTensorList = false;
    llvm::SmallVector<mlir::Value, 1> tensors; // null in a list: none
    ConstantValue constant;
  };
  std::vector<Argument> arguments;
  llvm::SmallVector<mlir::Value> results; // null: left undefined
};

/// Where an argument of an operator comes from: a constant, or the operands
/// from `firstOperand` on, one for each that is present.
struct MatchedArgument {
  enum Kind { Constant, Tensor, Tensors, Written } kind = Constant;
  unsigned firstOperand = 0;
  llvm::SmallVector<bool, 1> present;
  ConstantValue constant;
};

/// The arguments of `schema`, from those that were given and the defaults.
/// `op` is what a diagnostic is about.
mlir::FailureOr<std::vector<MatchedArgument>>
matchArguments(mlir::Operation *op, const operators::OperatorSchema &schema,
               aten::ArgsAttr args);

/// Completes the arguments of `launch` with the defaults of its schema.
mlir::FailureOr<LaunchArguments> completeArguments(plan::LaunchOp launch);

/// The schema of the launch's operator as the plan file has it. Of an operator
/// without facts only the name is known: the kinds are those of the arguments.
std::string getSchemaText(plan::LaunchOp launch);
std::string getSchemaText(aten::OpNameAttr callee, aten::ArgsAttr args,
                          size_t numResults);

/// The content of an embedded buffer of a type, as its bytes lie in memory.
/// `op` is what a diagnostic is about.
mlir::FailureOr<std::vector<uint8_t>> getBytes(mlir::Operation *op,
                                               mlir::ElementsAttr elements,
                                               mlir::RankedTensorType type);

} // namespace fsdp

#endif // FSDP_LIB_TARGET_PLAN_ARGUMENTS_H
