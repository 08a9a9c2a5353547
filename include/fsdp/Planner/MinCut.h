//===- MinCut.h - What is cheapest to keep ----------------------*- C++ -*-===//
//
// The least capacity that parts a source from a sink.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_PLANNER_MINCUT_H
#define FSDP_PLANNER_MINCUT_H

#include <cstdint>
#include <limits>
#include <vector>

namespace fsdp::planner {

/// Edges with capacities, of which a cut takes those that lead from the side of
/// the source to that of the sink.
class FlowNetwork {
public:
  /// An edge that no cut takes.
  static constexpr int64_t endless = std::numeric_limits<int64_t>::max() / 4;

  /// Returns the number of a new node.
  uint32_t addNode() {
    edgesOf.emplace_back();
    return uint32_t(edgesOf.size()) - 1;
  }
  /// The sum of all that are not endless stays below `endless`.
  void addEdge(uint32_t from, uint32_t to, int64_t capacity);

  /// Of all least cuts, that with the fewest nodes on the side of the sink:
  /// true of these, by node. Can be asked once. Expects no path of endless
  /// edges from source to sink.
  std::vector<uint8_t> findSinkSide(uint32_t source, uint32_t sink);

private:
  struct Edge {
    uint32_t to;
    int64_t left; ///< Of the capacity. The edge back is its neighbour.
  };
  bool augment(uint32_t source, uint32_t sink);

  std::vector<Edge> edges;
  std::vector<std::vector<uint32_t>> edgesOf; ///< By node, in both directions.
  std::vector<uint32_t> arrival;              ///< By node: the edge of a path.
};

} // namespace fsdp::planner

#endif // FSDP_PLANNER_MINCUT_H
