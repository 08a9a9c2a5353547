//===- Commands.h - What a plan file has of each command --------*- C++ -*-===//
//
// A command is one table of the plan file. Each field of the table is listed
// here with what it holds of the command; export and import walk the same lists
// in opposite directions.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_TARGET_PLAN_COMMANDS_H
#define FSDP_LIB_TARGET_PLAN_COMMANDS_H

#include "Arguments.h"

#include "fsdp/Dialect/Plan/IR/Plan.h"
#include "fsdp/PlanFile/Steps.h"

#include <tuple>
#include <utility>

namespace fsdp::steps {

namespace pf = fsdp::planfile;

/// An op under construction.
template <typename Op> struct CommandParts {
  typename Op::Properties properties;
  /// By the groups that its arguments in ODS make of them.
  llvm::SmallVector<llvm::SmallVector<mlir::Value, 1>> operands;
  mlir::Value *result = nullptr; // where it is to be kept, if it has one

  static constexpr bool hasSegments =
      Op::template hasTrait<mlir::OpTrait::AttrSizedOperandSegments>();

  CommandParts() {
    if constexpr (hasSegments)
      operands.resize(properties.operandSegmentSizes.size());
  }
  void addOperand(size_t group, mlir::Value value) {
    operands.resize(std::max(operands.size(), group + 1));
    if (value)
      operands[group].push_back(value);
  }
};

//===----------------------------------------------------------------------===//
// Fields
//===----------------------------------------------------------------------===//

/// `get(exporter, op)` makes a field of an op, `set(importer, parts, field)` a
/// part of an op of a field.
template <typename Get, typename Set> struct Field {
  Get get;
  Set set;
};
template <typename Get, typename Set> Field(Get, Set) -> Field<Get, Set>;

/// The buffer that is the operand group of this number, or none.
template <unsigned group>
inline constexpr Field operand{
    [](auto &file, auto op) -> uint32_t {
      mlir::OperandRange operands = op.getODSOperands(group);
      return file.buffer(operands.empty() ? mlir::Value() : operands.front());
    },
    [](auto &file, auto &parts, uint32_t index) {
      parts.addOperand(group, file.buffer(index));
    }};

inline constexpr Field communicator{
    [](auto &file, auto op) {
      return uint8_t(file.communicator(op.getCommunicator()));
    },
    [](auto &file, auto &parts, uint8_t index) {
      parts.properties.communicator = file.communicator(index);
    }};

inline constexpr Field unit{
    [](auto &file, auto op) -> uint32_t { return file.unit(op.getUnit()); },
    [](auto &file, auto &parts, uint32_t index) {
      parts.properties.unit = file.unit(index);
    }};

inline constexpr Field recorded{
    [](auto &file, auto op) -> uint32_t { return file.event(op.getEvent()); },
    [](auto &file, auto &parts, uint32_t index) {
      parts.result = &file.event(index);
    }};

inline constexpr Field awaited{recorded.get,
                               [](auto &file, auto &parts, uint32_t index) {
                                 parts.addOperand(0, file.event(index));
                               }};

inline constexpr Field intervals{
    [](auto &file, auto op) {
      llvm::ArrayRef<int64_t> flat = op.getIntervals();
      std::vector<pf::Interval> intervals;
      for (size_t i = 0; i + 1 < flat.size(); i += 2)
        intervals.emplace_back(uint64_t(flat[i]), uint64_t(flat[i + 1]));
      return file.fbb.CreateVectorOfStructs(intervals);
    },
    [](auto &file, auto &parts, const auto *intervals) {
      llvm::SmallVector<int64_t> flat;
      for (const pf::Interval *interval : *intervals) {
        flat.push_back(int64_t(interval->begin()));
        flat.push_back(int64_t(interval->end()));
      }
      parts.properties.intervals = file.builder.getDenseI64ArrayAttr(flat);
    }};

// Two fields of one attribute: the second one completes it.
inline constexpr Field pre{
    [](auto &, auto op) -> double { return op.getDivide().getPre(); },
    [](auto &file, auto &parts, double pre) {
      parts.properties.divide = DivideAttr::get(file.context, pre, 1);
    }};
inline constexpr Field post{
    [](auto &, auto op) -> double { return op.getDivide().getPost(); },
    [](auto &file, auto &parts, double post) {
      DivideAttr &divide = parts.properties.divide;
      divide = DivideAttr::get(file.context, divide.getPre(), post);
    }};

/// Buffers have that type, so a plan file knows it.
inline constexpr Field via{
    [](auto &, auto op) { return *toPlanDType(op.getVia()); },
    [](auto &file, auto &parts, pf::DType via) {
      parts.properties.via = mlir::TypeAttr::get(file.type(via));
    }};

inline constexpr Field purpose{
    [](auto &, auto op) {
      std::optional<ReductionRole> role = op.getPurpose();
      return role ? pf::Purpose(1 + unsigned(*role)) : pf::Purpose::Gradient;
    },
    [](auto &file, auto &parts, pf::Purpose purpose) {
      if (purpose != pf::Purpose::Gradient)
        parts.properties.purpose = ReductionRoleAttr::get(
            file.context, ReductionRole(unsigned(purpose) - 1));
    }};

inline constexpr Field reduceKind{
    [](auto &, auto op) {
      return op.getMax()     ? pf::ReduceKind::Max
             : op.getFirst() ? pf::ReduceKind::First
                             : pf::ReduceKind::Sum;
    },
    [](auto &file, auto &parts, pf::ReduceKind kind) {
      if (kind == pf::ReduceKind::Max)
        parts.properties.max = file.builder.getUnitAttr();
      if (kind == pf::ReduceKind::First)
        parts.properties.first = file.builder.getUnitAttr();
    }};

inline constexpr Field measured{
    [](auto &, auto op) { return pf::MeasureKind(op.getKind()); },
    [](auto &file, auto &parts, pf::MeasureKind kind) {
      parts.properties.kind =
          MeasureKindAttr::get(file.context, MeasureKind(kind));
    }};

/// The rule of an update is that of its op.
template <typename Op> bool hasRule(pf::UpdateRule rule) {
  return Op::getRule() == llvm::StringRef(pf::getFacts(rule).name);
}
inline constexpr Field rule{[](auto &, auto op) {
                              return *llvm::find_if(pf::EnumValuesUpdateRule(),
                                                    hasRule<decltype(op)>);
                            },
                            [](auto &, auto &, pf::UpdateRule) {}};

/// The states of an update beside the parameter, after its gradient.
inline constexpr Field states{
    [](auto &file, auto op) {
      llvm::SmallVector<UpdatedState> all = op.getStates();
      std::vector<uint32_t> states;
      for (const UpdatedState &state : llvm::drop_begin(all))
        states.push_back(file.buffer(state.before));
      return file.fbb.CreateVector(states);
    },
    [](auto &file, auto &parts, const auto *states) {
      for (auto [i, state] : llvm::enumerate(*states))
        parts.addOperand(2 + i, file.buffer(state));
    }};

/// What stands at the end of an update: the hyper-parameters, then the scalars.
constexpr size_t tailLength = 1 + numUpdateScalars;
template <size_t place>
inline constexpr Field tail{
    [](auto &file, auto op) -> uint32_t {
      if constexpr (place == 0)
        return file.buffer(op.getHyper());
      else
        return file.buffer(op.getScalar(UpdateScalar(place - 1)));
    },
    [](auto &file, auto &parts, uint32_t index) {
      parts.addOperand(parts.operands.size() - tailLength + place,
                       file.buffer(index));
    }};

//===----------------------------------------------------------------------===//
// Commands
//===----------------------------------------------------------------------===//

/// A table, and what its fields hold, in their order.
template <typename StepTable, typename... Fields> struct Step {
  using Table = StepTable;
  static_assert(sizeof...(Fields) == Table::Traits::fields_number,
                "expected all fields of the table");
  std::tuple<Fields...> fields;
};
template <typename Table, typename... Fields>
constexpr Step<Table, Fields...> make(Fields... fields) {
  return {{fields...}};
}
template <size_t... places>
constexpr auto makeUpdate(std::index_sequence<places...>) {
  return make<pf::Update>(rule, unit, operand<0>, operand<1>, states, intervals,
                          tail<places>...);
}

/// What the file has of an op.
template <typename Op> inline constexpr auto stepOf = nullptr;
template <>
inline constexpr auto stepOf<plan::AllGatherOp> =
    make<pf::AllGather>(communicator, operand<0>, operand<1>, unit);
template <>
inline constexpr auto stepOf<plan::ReduceScatterOp> = make<pf::ReduceScatter>(
    communicator, operand<0>, operand<1>, unit, pre, post, via);
template <>
inline constexpr auto stepOf<plan::AllReduceOp> =
    make<pf::AllReduce>(communicator, operand<0>, operand<1>, unit, pre, post,
                        via, purpose, reduceKind);
template <>
inline constexpr auto stepOf<plan::AdamWOp> =
    makeUpdate(std::make_index_sequence<tailLength>());
template <> inline constexpr auto stepOf<plan::SGDOp> = stepOf<plan::AdamWOp>;
template <>
inline constexpr auto stepOf<plan::MeasureOp> = make<pf::Measure>(
    measured, unit, operand<0>, operand<2>, intervals, operand<1>);
template <>
inline constexpr auto stepOf<plan::ZeroOp> = make<pf::Zero>(operand<0>);
template <>
inline constexpr auto stepOf<plan::CopyOp> =
    make<pf::Copy>(operand<0>, operand<1>);
template <>
inline constexpr auto stepOf<plan::RecordOp> = make<pf::Record>(recorded);
template <>
inline constexpr auto stepOf<plan::WaitOp> = make<pf::Wait>(awaited);
template <>
inline constexpr auto stepOf<plan::PieceOp> =
    make<pf::Piece>(communicator, operand<0>, operand<1>, unit);
template <>
inline constexpr auto stepOf<plan::AccumulateOp> =
    make<pf::Accumulate>(unit, operand<0>, operand<1>);

/// All commands but the launches, whose fields are those of their operator.
using Commands =
    std::tuple<plan::AllGatherOp, plan::ReduceScatterOp, plan::AllReduceOp,
               plan::AdamWOp, plan::SGDOp, plan::MeasureOp, plan::ZeroOp,
               plan::CopyOp, plan::RecordOp, plan::WaitOp, plan::PieceOp,
               plan::AccumulateOp>;

} // namespace fsdp::steps

#endif // FSDP_LIB_TARGET_PLAN_COMMANDS_H
