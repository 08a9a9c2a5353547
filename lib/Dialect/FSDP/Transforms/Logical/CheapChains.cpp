//===- CheapChains.cpp - What is cheap to compute again -------------------===//
//
// A value is two nodes, with an edge between them that a cut takes if the value
// is kept. A cheap call is a node between its operands and its results, and a
// cut takes the edge from the source to it if it is computed again; results of
// others come from the source. What the backward reads leads to the sink.
//
//===----------------------------------------------------------------------===//

#include "CheapChains.h"

#include "fsdp/Operators/OpFacts.h"
#include "fsdp/Planner/MinCut.h"

using namespace mlir;
using fsdp::planner::FlowNetwork;

namespace fsdp {

/// A call that moves more bytes than this for each byte that is no longer kept
/// is not worth it: to compute products again costs about as much.
static constexpr int64_t mostMoved = 16;

namespace {
class Chains {
public:
  Chains(const BackwardCopies::Operations &repeatable,
         llvm::function_ref<int64_t(Value)> getBytes)
      : repeatable(repeatable), getBytes(getBytes) {}

  void add(aten::CallOp call);
  BackwardCopies::Operations cut();

private:
  /// The node that a value leaves by.
  uint32_t getEnd(Value memory);

  const BackwardCopies::Operations &repeatable;
  llvm::function_ref<int64_t(Value)> getBytes;
  FlowNetwork network;
  uint32_t source = network.addNode(), sink = network.addNode();
  DenseMap<Value, uint32_t> begins; // of values; the end is the next node
  SmallVector<std::pair<Operation *, uint32_t>> cheap;
};
} // namespace

static bool isCheap(aten::CallOp call) {
  const operators::OpFacts *facts = call.getFacts();
  return facts && facts->isCheapToRecompute;
}

/// Bytes that a call reads and writes.
static int64_t getMovedBytes(aten::CallOp call) {
  int64_t bytes = 0;
  for (TypeRange types :
       {TypeRange(call.getInputs()), TypeRange(call.getResults())})
    for (Type type : types)
      bytes += getMemoryBytes(type);
  return bytes;
}

uint32_t Chains::getEnd(Value memory) {
  auto [entry, isNew] = begins.try_emplace(memory, 0);
  if (isNew) {
    uint32_t begin = entry->second = network.addNode();
    network.addEdge(begin, network.addNode(), getBytes(memory));
    auto call = memory.getDefiningOp<aten::CallOp>();
    if (!call || !repeatable.contains(call) || !isCheap(call))
      network.addEdge(source, begin, FlowNetwork::endless);
  }
  return begins.lookup(memory) + 1;
}

/// Whether the backward reads a value or a view of it.
static bool isRead(Value value) {
  return llvm::any_of(value.getUsers(), [](Operation *user) {
    return isBackward(user) || (aten::getViewSource(user) &&
                                llvm::any_of(user->getResults(), isRead));
  });
}

void Chains::add(aten::CallOp call) {
  if (!repeatable.contains(call) || aten::getViewSource(call))
    return;
  uint32_t node = 0;
  if (isCheap(call)) {
    node = network.addNode();
    cheap.emplace_back(call, node);
    network.addEdge(source, node, getMovedBytes(call) / mostMoved);
    for (Value input : call.getInputs())
      network.addEdge(getEnd(aten::getViewRoot(input)), node,
                      FlowNetwork::endless);
  }
  for (Value result : call.getResults()) {
    uint32_t end = getEnd(result);
    if (node)
      network.addEdge(node, end - 1, FlowNetwork::endless);
    if (isRead(result))
      network.addEdge(end, sink, FlowNetwork::endless);
  }
}

BackwardCopies::Operations Chains::cut() {
  std::vector<uint8_t> isRepeated = network.findSinkSide(source, sink);
  BackwardCopies::Operations found;
  for (auto [call, node] : cheap)
    if (isRepeated[node])
      found.insert(call);
  return found;
}

BackwardCopies::Operations
findCheapChains(ArrayRef<Operation *> calls,
                const BackwardCopies::Operations &repeatable,
                llvm::function_ref<int64_t(Value)> getBytes) {
  Chains chains(repeatable, getBytes);
  for (Operation *op : calls)
    chains.add(cast<aten::CallOp>(op));
  BackwardCopies::Operations found = chains.cut();
  for (Operation *op : calls)
    if (repeatable.contains(op))
      if (Value viewed = aten::getViewSource(op);
          viewed && found.contains(viewed.getDefiningOp()))
        found.insert(op);
  return found;
}

} // namespace fsdp
