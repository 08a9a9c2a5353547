//===- FSDPAsyncOps.td - Scheduled level of the fsdp dialect -*- tablegen -*-===//
//
// When each collective runs: launches, futures, waits and ends of lifetimes.
// Block order is issue order.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_IR_FSDPASYNCOPS_TD
#define FSDP_DIALECT_FSDP_IR_FSDPASYNCOPS_TD

include "fsdp/Dialect/FSDP/IR/FSDPOps.td"

// Launch order of collectives is the same on every rank, so it is a resource.
def FSDP_CommunicatorResource : Resource<"::fsdp::CommunicatorResource">;
// A collective between its launch and its wait.
def FSDP_InFlightResource : Resource<"::fsdp::InFlightResource">;
// Memory of gathered parameters, from the launch of the gather to its reshard.
def FSDP_GatheredMemoryResource : Resource<"::fsdp::GatheredMemoryResource">;

// %f = fsdp.async.unshard @h.0 <forward> %h0 : !fsdp.shard<..> -> !fsdp.future<!fsdp.gathered<..>>        stream gather
//   arguments (unit, phase, shard) as fsdp.unshard
// %r = fsdp.async.reduce_scatter @h.0 over [..] divide <..> via f32 %flat : .. -> !fsdp.future<!fsdp.shard<..>>   stream reduce
// %r = fsdp.async.all_reduce ... : .. -> !fsdp.future<..>                                                  stream all_reduce
// %v = fsdp.async.wait %f : !fsdp.future<T> -> T       consumes the future (MemFree in flight); the compute stream waits
// fsdp.async.reshard %full : !fsdp.gathered<..>        ends the gathered memory (MemFree gathered memory)
// fsdp.view, flatten_grads, adamw, sgd stay the same ops at this level.

#endif
