//===- FSDPInterfaces.td - Interfaces of the fsdp dialect ---*- tablegen -*-===//
//
// What scheduling, costs and verifiers ask of an op, so that they name no op.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_IR_FSDPINTERFACES_TD
#define FSDP_DIALECT_FSDP_IR_FSDPINTERFACES_TD

include "fsdp/Dialect/FSDP/IR/FSDPEnums.td"
include "mlir/IR/OpBase.td"

def FSDP_CollectiveOpInterface : OpInterface<"CollectiveOpInterface"> {
  let cppNamespace = "::fsdp";
  let description = [{ A collective, at the logical or the scheduled level. }];
  let methods = [
    StaticInterfaceMethod<"What it does.", "::fsdp::CollectiveKind", "getKind">,
    InterfaceMethod<"The unit that it is of, or null.",
      "::mlir::FlatSymbolRefAttr", "getUnitAttr">,
    InterfaceMethod<"The mesh that it is on, or null: then it is the unit's.",
      "::mlir::FlatSymbolRefAttr", "getMeshAttr", (ins), [{}], [{
        return {};
      }]>,
    InterfaceMethod<"The axes of the mesh that it is over.",
      "::mlir::ArrayAttr", "getAxes">,
    InterfaceMethod<"The phase that a gather is for; null for a reduction.",
      "::fsdp::aten::PhaseAttr", "getPhaseAttr">,
    InterfaceMethod<"The divisors of a reduction, or null.",
      "::fsdp::DivideAttr", "getDivideAttr", (ins), [{}], [{
        return {};
      }]>,
    InterfaceMethod<"The element type in which it is sent.",
      "::mlir::Type", "getWireType", (ins), [{}], [{
        return ::fsdp::getElementType($_op->getResult(0).getType());
      }]>,
    InterfaceMethod<[{
        The bytes of the whole as they are sent: what it gathers or sums, on one rank.
      }],
      "int64_t", "getBytes", (ins), [{}], [{
        return ::fsdp::getBytes(
            std::max(::fsdp::getLocalNumel($_op->getOperand(0).getType()),
                     ::fsdp::getLocalNumel($_op->getResult(0).getType())),
            $_op.getWireType());
      }]>,
    InterfaceMethod<"The number of the launches that it is issued with, or null.",
      "::mlir::IntegerAttr", "getBucketAttr", (ins), [{}], [{
        return {};
      }]>,
    InterfaceMethod<"True if it goes through a buffer that is copied into and out of.",
      "bool", "getCopy", (ins), [{}], [{ return false; }]>,
  ];
  let extraSharedClassDeclaration = [{
    bool isGather() { return $_op.getKind() == ::fsdp::CollectiveKind::AllGather; }
    /// The names of the axes.
    auto getGroupAxes() {
      return ::llvm::to_vector($_op.getAxes().template getAsValueRange<::mlir::StringAttr>());
    }
  }];
}

def FSDP_LaunchOpInterface : OpInterface<"LaunchOpInterface"> {
  let cppNamespace = "::fsdp";
  let description = [{
    An op of the scheduled level that starts a collective or a copy on a stream of
    its own. It has the name, operand and attributes of the op that it starts, and
    says when that starts. All other ops of the level compute.
  }];
  let methods = [
    StaticInterfaceMethod<"The stream: there is one for each kind of launch.",
      "::fsdp::Stream", "getStream">,
    InterfaceMethod<"The unit that it is of, or null.",
      "::mlir::FlatSymbolRefAttr", "getUnitAttr">,
    InterfaceMethod<"The phase that a gather or a copy is for; null for a reduction.",
      "::fsdp::aten::PhaseAttr", "getPhaseAttr">,
    InterfaceMethod<"What it starts, in flight.",
      "::mlir::TypedValue<::fsdp::FutureType>", "getFuture">,
    InterfaceMethod<"True if it does not wait for the computations before it.",
      "bool", "getAhead", (ins), [{}], [{ return false; }]>,
    InterfaceMethod<"Says so; a reduction always waits for what it reduces.",
      "void", "setAhead", (ins "bool":$ahead), [{}], [{ (void)ahead; }]>,
  ];
  let extraSharedClassDeclaration = [{
    bool isGather() { return $_op.getStream() == ::fsdp::Stream::Gather; }
    bool isCopy() { return $_op.getStream() == ::fsdp::Stream::Copy; }
    bool isReduction() { return !isGather() && !isCopy(); }
    /// What is gathered, reduced or copied; it may be in flight itself.
    ::mlir::Value getLaunched() { return $_op->getOperand(0); }
    /// The copy that a gather takes in flight, or null.
    ::fsdp::LaunchOpInterface getCopyInFlight() {
      auto copy = ::llvm::dyn_cast_or_null<::fsdp::LaunchOpInterface>(getLaunched().getDefiningOp());
      return isGather() && copy && copy.isCopy() ? copy : ::fsdp::LaunchOpInterface();
    }
    /// The reshards that it is to start after; a reduction has none.
    ::mlir::OperandRange getAfter() { return $_op->getOperands().drop_front(); }
    void addAfter(::mlir::Value freed) {
      assert(!isReduction() && "a reduction starts after what it reduces");
      $_op->insertOperands($_op->getNumOperands(), freed);
    }
  }];
}

def FSDP_UpdateOpInterface : OpInterface<"UpdateOpInterface"> {
  let cppNamespace = "::fsdp";
  let description = [{
    An update of a unit's shard and of the states beside it. Its first operands
    are the parameter, the gradient and the other states, its last ones the
    scalars (`FSDP_UpdateScalars`), its results what the parameter and these states
    become; in a plan, it changes them in place.
  }];
  let methods = [
    StaticInterfaceMethod<"What it does, as `--optimizer` names it.",
      "::llvm::StringRef", "getRule">,
    InterfaceMethod<"The kinds of the states that it changes: first the parameter.",
      "::llvm::SmallVector<::llvm::StringRef>", "getStateKinds">,
    InterfaceMethod<"The unit.", "::mlir::FlatSymbolRefAttr", "getUnitAttr">,
    InterfaceMethod<"The elements that it updates: begins and ends in the whole flat parameter.",
      "::llvm::ArrayRef<int64_t>", "getIntervals">,
    InterfaceMethod<"The gradient.", "::mlir::Value", "getGradient">,
    InterfaceMethod<"The hyper-parameters of the decay group.",
      "::mlir::Value", "getHyper">,
    InterfaceMethod<"The place of one of its scalars among the operands; empty if it takes none.",
      "::mlir::MutableOperandRange", "getScalarMutable", (ins "::fsdp::UpdateScalar":$scalar), [{}], [{
        auto &sizes = $_op.getProperties().operandSegmentSizes;
        unsigned group = sizes.size() - ::fsdp::numUpdateScalars + unsigned(scalar);
        auto [begin, length] = $_op.getODSOperandIndexAndLength(group);
        return ::mlir::MutableOperandRange($_op, begin, length, ::mlir::MutableOperandRange::OperandSegment(
            group, {$_op.getOperandSegmentSizesAttrName(),
                    ::mlir::DenseI32ArrayAttr::get($_op->getContext(), sizes)}));
      }]>,
  ];
  let extraSharedClassDeclaration = [{
    /// The states that it changes, in the order of their kinds.
    ::llvm::SmallVector<::fsdp::UpdatedState> getStates() {
      ::llvm::SmallVector<::fsdp::UpdatedState> states;
      for (auto [i, kind] : ::llvm::enumerate($_op.getStateKinds()))
        states.push_back({kind, $_op->getOperand(i ? i + 1 : 0),
                          i < $_op->getNumResults() ? $_op->getResult(i) : ::mlir::Value()});
      return states;
    }
    /// The operands that it may change where it works in place: the states, and
    /// the gradient, which it may scale.
    ::mlir::OperandRange getChanged() {
      return $_op->getOperands().take_front(1 + $_op.getStateKinds().size());
    }
    /// One of its scalars, or null.
    ::mlir::Value getScalar(::fsdp::UpdateScalar scalar) {
      ::mlir::OperandRange operand = $_op.getScalarMutable(scalar);
      return operand.empty() ? ::mlir::Value() : operand.front();
    }
    /// All of them; those that it does not take are null.
    ::fsdp::UpdateScalars getScalars() {
      ::fsdp::UpdateScalars scalars;
      for (unsigned i = 0; i != ::fsdp::numUpdateScalars; ++i)
        scalars[i] = $_op.getScalar(::fsdp::UpdateScalar(i));
      return scalars;
    }
    void setScalar(::fsdp::UpdateScalar scalar, ::mlir::Value value) {
      $_op.getScalarMutable(scalar).assign(value);
    }
  }];
}

// What else an update takes, at every level, where there is something that asks
// for it: operands of one type after all others, each after its keyword.
class FSDP_UpdateScalars<Type type> {
  defvar names = !foreach(scalar, FSDP_UpdateScalar.enumerants, scalar.str);
  dag operands = !dag(ins, !foreach(name, names, Optional<type>), names);
  string format = !interleave(!foreach(name, names, "(`" # name # "` $" # name # "^)?"), " ");
}

// The rules, at every level.
defvar FSDP_AdamWRule = [{
    static ::llvm::StringRef getRule() { return "adamw"; }
    ::llvm::SmallVector<::llvm::StringRef> getStateKinds() {
      return {::fsdp::StateAttr::getParameterKind(), ::fsdp::StateAttr::getExpAvgKind(),
              ::fsdp::StateAttr::getExpAvgSqKind()};
    }
  }];
defvar FSDP_SGDRule = [{
    static ::llvm::StringRef getRule() { return "sgd"; }
    ::llvm::SmallVector<::llvm::StringRef> getStateKinds() {
      if (!getMomentum())
        return {::fsdp::StateAttr::getParameterKind()};
      return {::fsdp::StateAttr::getParameterKind(), ::fsdp::StateAttr::getMomentumKind()};
    }
  }];

#endif // FSDP_DIALECT_FSDP_IR_FSDPINTERFACES_TD
