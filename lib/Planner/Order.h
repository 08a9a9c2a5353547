//===- Order.h - The computations of a program, in order --------*- C++ -*-===//
//
// What of a program depends on nothing but what is recomputed: which
// computations run, who uses which unit where, and what memory they leave.
// Computations between which nothing can be launched, waited for or freed are
// one stretch. Place p is in front of stretch p; the last place is the end.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_PLANNER_ORDER_H
#define FSDP_LIB_PLANNER_ORDER_H

#include "Times.h"

namespace fsdp::planner {

struct Order {
  struct Stretch {
    uint32_t begin; ///< In `ops`.
    /// Bytes: the most alive in it above what is when it begins, and what it
    /// leaves.
    int64_t most, change;
    uint32_t launches, awaits; ///< Fixed calls, or `nobody`.
  };
  /// The stretches that use a unit, or `nobody`.
  struct Use {
    std::array<uint32_t, numPhases> first = {nobody, nobody};
    std::array<uint32_t, numPhases> last = {nobody, nobody};
    uint32_t gradient = nobody; ///< The first part of it.
    uint32_t update = nobody, lastUpdate = nobody;
  };
  struct FirstUse {
    uint32_t unit;
    Phase phase;
    bool isAgain;  ///< The forward had it.
    uint32_t slot; ///< That it makes.
  };
  struct Completion {
    uint32_t unit;
    bool isClosed; ///< What was reduced last has been read: nothing joins it.
    uint32_t slot;
  };

  /// In `ops`, where the stretch after a place begins.
  uint32_t getBegin(size_t place) const {
    return place < stretches.size() ? stretches[place].begin
                                    : uint32_t(ops.size());
  }
  /// The place of a slot; the end, of what is past all of them.
  uint32_t getPlace(size_t slot) const {
    return slot < slots.size() ? slots[slot] : uint32_t(stretches.size());
  }

  std::vector<Recompute> recompute; ///< By module: what it is the order of.
  std::vector<uint32_t> ops;        ///< Those of the program that are there.
  std::vector<Stretch> stretches;
  std::vector<uint32_t> slots;         ///< Their places, ascending.
  std::vector<uint32_t> fixedPlaces;   ///< Of stretches with a fixed call.
  std::vector<Use> uses;               ///< By unit.
  std::vector<FirstUse> firstUses;     ///< In their order.
  std::vector<Completion> completions; ///< Of gradients, in their order.
  /// By scenario and stretch, nanoseconds.
  std::vector<std::vector<int64_t>> durations;
};

/// Makes orders of a program; keeps its memory from one to the next.
class OrderMaker {
public:
  OrderMaker(const StepModel &model, const Program &program,
             const std::vector<Scenario> &scenarios);

  void make(const std::vector<Recompute> &recompute, Order &order);

  std::vector<Times> times; ///< By scenario.

private:
  void findRuns();
  void findSpans();
  void reserve(Order &order) const;
  void walk(Order &order);
  void emit(uint32_t index, Order &order);
  void addLives(const Order &order);
  void findBegins(const Order &order);
  void fold(Order &order);
  void addDurations(const Order &order, const std::vector<int64_t> &before,
                    std::vector<int64_t> &durations) const;
  void renumber(Order &order) const;

  /// Operations of the program in a row that are there if some of a module is
  /// recomputed, or in any case.
  struct Run {
    uint32_t begin, end, condition;
    uint32_t endRole; ///< Of its part of `roles`, which follow each other.
  };
  struct Memory {
    int64_t takes, transient, frees;
  };
  /// A life, of which the reads follow those of the life before.
  struct Span {
    int64_t bytes;
    uint32_t condition, begin, end, endRead;
  };
  /// The number of a condition; 0 is always met.
  static size_t getCondition(const ComputeOp &op) {
    return op.onlyIf == nobody
               ? 0
               : 1 + op.onlyIf * numRecomputes + size_t(op.recompute);
  }

  const StepModel &model;
  const Program &program;
  /// By operation: it completes a gradient, whatever is decided.
  std::vector<uint8_t> completes;
  std::vector<Run> runs;
  std::vector<uint32_t> roles; ///< Operations that do something with a unit.
  std::vector<Memory> own;     ///< Of operations, without lives.
  std::vector<Span> spans;
  std::vector<Life::Read> reads; ///< Of all spans.
  bool isClosed = false;

  // Of the latest order, by computation that is there, and for the end.
  std::vector<uint8_t> isMet; ///< By condition.
  /// Where runs begin that are there.
  struct Piece {
    uint32_t place, op;
  };
  std::vector<Piece> pieces;
  std::vector<Memory> memory;
  std::vector<uint8_t> begins; ///< A stretch.
  std::vector<uint32_t> stretchOf;
  std::vector<uint32_t> placeOf; ///< By operation of the program.
};

} // namespace fsdp::planner

#endif // FSDP_LIB_PLANNER_ORDER_H
