//===- FSDPEnums.td - Enumerations of the fsdp dialect ------*- tablegen -*-===//
//
// Enumerations, in a file that includes no other dialect's.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_IR_FSDPENUMS_TD
#define FSDP_DIALECT_FSDP_IR_FSDPENUMS_TD

include "mlir/IR/EnumAttr.td"

def FSDP_Stream : I32Enum<"Stream", "a stream of the step", [
    I32EnumCase<"Compute", 0, "compute">, I32EnumCase<"Gather", 1, "gather">,
    I32EnumCase<"Reduce", 2, "reduce">, I32EnumCase<"AllReduce", 3, "all_reduce">,
    I32EnumCase<"Copy", 4, "copy">]> {
  let cppNamespace = "::fsdp";
}

def FSDP_CollectiveKind : I32Enum<"CollectiveKind", "what a collective does", [
    I32EnumCase<"AllGather", 0, "all_gather">,
    I32EnumCase<"ReduceScatter", 1, "reduce_scatter">,
    I32EnumCase<"AllReduce", 2, "all_reduce">]> {
  let cppNamespace = "::fsdp";
}

def FSDP_ReductionRole : I32Enum<"ReductionRole", "what is summed over a mesh", [
    I32EnumCase<"Loss", 0, "loss">, I32EnumCase<"Norm", 1, "norm">,
    I32EnumCase<"Buffer", 2, "buffer">]> {
  let cppNamespace = "::fsdp";
}

def FSDP_MemorySpace : I32Enum<"MemorySpace", "where a shard lies", [
    I32EnumCase<"Device", 0, "device">, I32EnumCase<"Host", 1, "host">]> {
  let cppNamespace = "::fsdp";
}

def FSDP_SyncBuffers : I32Enum<"SyncBuffers", "what becomes of the buffers that a program changes", [
    I32EnumCase<"None", 0, "none">, I32EnumCase<"Broadcast", 1, "broadcast">, I32EnumCase<"Mean", 2, "mean">]> {
  let cppNamespace = "::fsdp";
}

def FSDP_Strategy : I32Enum<"Strategy", "what is sharded, and for how long", [
    I32EnumCase<"FullShard", 0, "full_shard">, I32EnumCase<"ShardGradOp", 1, "shard_grad_op">,
    I32EnumCase<"NoShard", 2, "no_shard">, I32EnumCase<"HybridShard", 3, "hybrid_shard">,
    I32EnumCase<"HybridShardZero2", 4, "hybrid_shard_zero2">]> {
  let cppNamespace = "::fsdp";
}

// The values are those of the plan file.
def FSDP_Part : I32Enum<"Part", "which micro-batch of a step a program is for", [
    I32EnumCase<"First", 1, "first">, I32EnumCase<"Middle", 2, "middle">,
    I32EnumCase<"Last", 3, "last">]> {
  let cppNamespace = "::fsdp";
}

// The values are those of the plan file.
def FSDP_MeasureKind : I32Enum<"MeasureKind", "what the elements of a shard add up to", [
    I32EnumCase<"SquaredNorm", 0, "squared_norm">,
    I32EnumCase<"FoundInf", 1, "found_inf">,
    I32EnumCase<"AbsSum", 2, "abs_sum">, I32EnumCase<"AbsMax", 3, "abs_max">]> {
  let cppNamespace = "::fsdp";
}

// The values are those of the plan file, the spellings those of the assembly.
def FSDP_UpdateScalar : I32Enum<"UpdateScalar", "a number that an update takes, of f32", [
    I32EnumCase<"ClipFactor", 0, "clip">, I32EnumCase<"LossScale", 1, "scale">,
    I32EnumCase<"FoundInf", 2, "found_inf">, I32EnumCase<"Skipped", 3, "skipped">]> {
  let cppNamespace = "::fsdp";
}

#endif // FSDP_DIALECT_FSDP_IR_FSDPENUMS_TD
