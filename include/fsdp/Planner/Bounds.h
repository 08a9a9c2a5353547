//===- Bounds.h - What no decisions can beat --------------------*- C++ -*-===//
//
// Lower bounds of the time of a step within a budget. Notation, for one program
// in nanoseconds and bytes:
//
//   C        all computations; C[a..b] those in a range
//   K        all collectives that nothing can avoid: each unit's part of a
//   call,
//            and the latencies of the fewest calls (B5)
//   phi      x / (1 + x) for a contention of x: what of a collective's time
//            computations lose under it. 1 where all streams share a core.
//   M        the budget without what is persistent
//   mand(p)  bytes at computation p that nothing can avoid: activations,
//            transient memory, the gradient that is made and the unit in use
//
// B5, calls: all units of a call of the forward are there at the first use of
// its first unit, so that they have at most M - mand there; all gradients of a
// call are there when its last one is complete. Calls are of neighbours in the
// order of use, and so the fewest are counted exactly. Of gathers after a cut,
// each unit fills the part bytes / max (M - mand) of a call, over the places of
// the backward up to its use.
//
// Where collectives do not share a link, K is the largest of their streams'.
// What is recomputed is not known: each bound is the least over all choices of
// two numbers, a modules of which all is recomputed, and c of which what is
// cheap is. C has the a shortest replays of all and the c shortest of what is
// cheap: no such modules take less. mand is without the a largest savings of
// all and the c largest of what is cheap, and at least without the a + c
// largest of the better of both: no such modules save more.
//
// All hold for every decision that Decisions.h can express.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_PLANNER_BOUNDS_H
#define FSDP_PLANNER_BOUNDS_H

#include "fsdp/Planner/StepModel.h"

#include <memory>
#include <optional>

namespace fsdp::planner {

struct Bound {
  const char *name = "";
  int64_t time = 0; ///< Nanoseconds.
};

/// Bounds of one program; none where the budget is too small for it.
class ProgramBounds {
public:
  /// Both must outlive it; `check` accepts the model.
  ProgramBounds(const StepModel &model, size_t program);
  ~ProgramBounds();

  /// T >= C.
  std::optional<int64_t> boundCompute() const;

  /// B1, contention. While computations run, they lose phi of the time in which
  /// a collective does; h and t are the parts of the first gather and of the
  /// last reduction beside which nothing can be computed:
  ///   T >= C + phi K + (1 - phi) (h + t)
  /// or w in place of h + t, the time in which fixed calls are waited for (B7).
  /// K may have more gathers that are decided: of these units, and of pieces.
  std::optional<int64_t>
  boundContention(const std::vector<uint32_t> &units = {},
                  const std::vector<uint32_t> &pieces = {}) const;

  /// B2, memory cut, with B3, mandatory memory. At a computation p, at most
  /// rho = M - mand(p) bytes of units that are used later are there, kept or
  /// gathered early alike; all others are gathered after p. So both sides of p
  /// have collectives of their own, and each of them takes at least as long as
  /// B1 and B4 say:
  ///   T >= T(..p) + T(p.., K of units after p - rho, and of reductions)
  /// p may come after replays: as many as can are counted after it, and what
  /// they make is a part of mand(p). With B6, no room: what computations cannot
  /// hide of all collectives, one at a time, each where there is room for it
  /// (lib/Planner/Unhidden.h).
  std::optional<int64_t> boundMemoryCut() const;

  /// B4, head and tail, as of one machine. A unit's first use comes after all
  /// gathers up to its own, and a reduction after all that follow the gradients
  /// before it:
  ///   T >= C + max_a (K(gathers up to a) - C[..first use of a])
  ///          + max_z (K(reductions from z) - C[gradient of z..last update])
  std::optional<int64_t> boundHeadTail() const;

  /// The largest of them.
  std::optional<Bound> findLargest() const;

  /// No budget below this holds the program, persistent memory included.
  int64_t boundBudget() const;

private:
  struct Facts;
  std::unique_ptr<Facts> facts;
};

/// Of a step: the sum of its programs' largest bounds, and the name of that of
/// the program that takes longest. None where the budget is too small.
std::optional<Bound> findBound(const StepModel &model);

} // namespace fsdp::planner

#endif // FSDP_PLANNER_BOUNDS_H
