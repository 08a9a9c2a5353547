//===- Importer.h - The state of an import ----------------------*- C++ -*-===//
//
// One object per import. Its methods are spread over files by concern: the
// signature (ImportPT2.cpp), nodes (Nodes.cpp), arguments (Arguments.cpp) and
// tensors (Tensors.cpp).
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_IMPORT_PT2_IMPORTER_H
#define FSDP_LIB_IMPORT_PT2_IMPORTER_H

#include "JSON.h"
#include "Symbols.h"

#include "fsdp/Archive/PT2Archive.h"
#include "fsdp/Dialect/ATen/IR/ATen.h"
#include "fsdp/Import/PT2/ImportPT2.h"
#include "fsdp/Operators/OpFacts.h"
#include "fsdp/Operators/OperatorSchema.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"

namespace fsdp::pt2 {

/// A name of the graph.
struct NamedValue {
  /// What the graph says of the value: a tensor's metadata, or a symbolic
  /// scalar with its type.
  Cursor meta;
  mlir::Type scalarType;
  /// Set for a scalar whose value is known.
  mlir::Attribute constant;
  /// Set by the definition.
  mlir::Value value;
  bool isDefined = false;
};

/// An input of the graph that becomes an argument.
struct Input {
  enum Role { Parameter, Buffer, Constant, User } role;
  llvm::StringRef name; // in the model
  NamedValue *value;
  llvm::StringRef valueName;
  bool isPersistent = false;
  /// Of a parameter: its place in the model. Of a user input: its number.
  size_t index = 0;
  /// The output that is its gradient, or its new content.
  bool hasGradient = false, isMutated = false;
};

/// A target of nodes.
struct Target {
  aten::OpNameAttr name;
  const operators::OpFacts *facts = nullptr;
  llvm::ArrayRef<operators::OperatorSchema::Argument> parameters;
};

class Importer {
public:
  Importer(const archive::PT2Archive &archive, const ImportOptions &options,
           mlir::MLIRContext *context);
  mlir::OwningOpRef<mlir::ModuleOp> run();

private:
  // ImportPT2.cpp
  mlir::LogicalResult readProgram(const Cursor &root);
  mlir::LogicalResult readVersion(const Cursor &version);
  mlir::LogicalResult readGraphMetadata(const Cursor &metadata);
  mlir::LogicalResult readDtypes(const Cursor &metadata, llvm::StringRef key,
                                 llvm::StringMap<mlir::Type> &types);
  mlir::LogicalResult readNames(const Cursor &values, mlir::Type scalarType);
  mlir::LogicalResult readInputs(const Cursor &inputs, const Cursor &specs);
  mlir::LogicalResult readInputSpec(const Cursor &input, const Cursor &spec);
  mlir::LogicalResult evaluateScalars();
  mlir::LogicalResult orderParameters(const Cursor &specs);
  mlir::LogicalResult checkParameters(const llvm::StringMap<mlir::Type> &types,
                                      const Cursor &specs);
  mlir::LogicalResult addArguments();
  mlir::LogicalResult readOutputs(const Cursor &outputs, const Cursor &specs);
  mlir::LogicalResult readOutputSpec(const Cursor &output, const Cursor &spec,
                                     mlir::NamedAttrList &attrs,
                                     mlir::Value &value);
  mlir::LogicalResult checkLoss(const Cursor &where, mlir::Value loss);
  Input *findInput(Input::Role role, llvm::StringRef name);
  void finish();

  // Nodes.cpp
  mlir::LogicalResult readNode(const Cursor &node);
  mlir::FailureOr<Target *> readTarget(const Cursor &target);
  mlir::LogicalResult checkArguments(const Cursor &inputs, const Target &target,
                                     size_t numPositional,
                                     llvm::ArrayRef<mlir::StringAttr> keywords);
  mlir::LogicalResult readNodeMetadata(const Cursor &metadata,
                                       mlir::StringAttr &scope,
                                       aten::PhaseAttr &phase);
  mlir::StringAttr readModuleStack(llvm::StringRef stack);
  mlir::LogicalResult checkScalars(const Cursor &node, const Target &target,
                                   llvm::ArrayRef<mlir::Attribute> values,
                                   bool &isDone);
  void inferPhases();

  // Arguments.cpp
  mlir::LogicalResult readArgument(const Cursor &argument,
                                   mlir::Attribute &value,
                                   llvm::SmallVectorImpl<mlir::Value> &inputs);
  mlir::LogicalResult readScalar(const Cursor &scalar, mlir::Attribute &value,
                                 llvm::SmallVectorImpl<mlir::Value> &inputs);
  mlir::LogicalResult readResult(const Cursor &output,
                                 llvm::SmallVectorImpl<mlir::Type> &types,
                                 llvm::SmallVectorImpl<NamedValue *> &names);
  mlir::LogicalResult readUse(const Cursor &name, mlir::Attribute &value,
                              llvm::SmallVectorImpl<mlir::Value> &inputs);
  mlir::FailureOr<NamedValue *> define(const Cursor &name, mlir::Type &type);
  mlir::FailureOr<NamedValue *> lookup(const Cursor &name);

  // Tensors.cpp
  mlir::FailureOr<mlir::Type> readElementType(const Cursor &code);
  mlir::LogicalResult readDevice(const Cursor &device, aten::DeviceAttr &attr);
  mlir::LogicalResult readLayout(const Cursor &code, aten::LayoutAttr &attr);
  mlir::FailureOr<mlir::RankedTensorType> readTensorType(const Cursor &meta);
  mlir::ArrayAttr readDims(const Cursor &meta);
  mlir::LogicalResult checkPayload(const Cursor &meta, const Input &input,
                                   mlir::RankedTensorType type,
                                   mlir::NamedAttrList &attrs);
  mlir::FailureOr<mlir::DenseElementsAttr>
  readElements(const archive::Payload &payload, mlir::RankedTensorType type);

  const archive::PT2Archive &archive;
  const ImportOptions &options;
  Document document;
  mlir::OpBuilder builder;
  simdjson::dom::parser parser, metadataParser, nodeParser;

  Symbols symbols;
  llvm::StringMap<NamedValue> names;
  llvm::SmallVector<Input, 0> inputs;
  llvm::DenseMap<std::pair<int, llvm::StringRef>, size_t> inputIndices;

  /// From the graph's metadata: the model's parameters in order, and all names
  /// of each tied one beyond its first.
  bool hasParameterOrder = false;
  llvm::StringMap<size_t> parameterOrder;
  llvm::StringMap<llvm::SmallVector<llvm::StringRef, 1>> aliases;

  /// From the graph's metadata: what parameters are cast to, and the type in
  /// which their gradients are summed.
  llvm::StringMap<mlir::Type> paramDtypes, reduceDtypes;

  /// From the graph's metadata: the node that is the gradient of the loss by
  /// itself. Empty once that node has been read.
  std::string gradientSeed;
  llvm::SmallVector<llvm::StringRef> inputNames; ///< Of user inputs.

  llvm::StringMap<Target> targets;
  llvm::StringMap<mlir::StringAttr> scopes;
  llvm::MapVector<mlir::StringAttr, mlir::StringAttr> classes;
  std::optional<aten::Device> device;
  std::optional<int64_t> deviceIndex;
  std::string torchVersion, schemaVersion;
  bool hasPhases = false;

  mlir::OwningOpRef<mlir::ModuleOp> module;
  mlir::func::FuncOp function;
  llvm::SmallVector<mlir::Value> results;
  llvm::SmallVector<mlir::Attribute> resultAttrs;
  int64_t numOutputs = 0;
  int64_t constantBytes = 0; ///< Of all, dense.
  bool hasLoss = false;
};

} // namespace fsdp::pt2

#endif // FSDP_LIB_IMPORT_PT2_IMPORTER_H
