// What moves launches and waits does so in straight-line code alone: an end in a branch is in no order with the rest.
// RUN: fsdp-opt %s --fsdp-prefetch --verify-diagnostics
// RUN: fsdp-opt %s --fsdp-bucket=bucket=units:2 --verify-diagnostics
// RUN: fsdp-opt %s --fsdp-limit-in-flight --verify-diagnostics
// RUN: fsdp-opt %s --fsdp-place-reduce-waits --verify-diagnostics
// RUN: fsdp-opt %s --fsdp-schedule --verify-diagnostics
// RUN: fsdp-opt %s --fsdp-apply-schedule --verify-diagnostics
// RUN: fsdp-opt %s --fsdp-verify-memory --verify-diagnostics

fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 2x4 at 0], numel = 8, padded = 8>
func.func @resharded_on_one_path(%p: !fsdp.shard<8xf32, 2>, %c: i1) -> tensor<2x4xf32> attributes {aten.program} {
  %f = fsdp.async.unshard @u <forward> over ["shard"] %p : !fsdp.shard<8xf32, 2> -> !fsdp.future<!fsdp.gathered<8xf32>>
  %full = fsdp.async.wait %f : !fsdp.future<!fsdp.gathered<8xf32>> -> !fsdp.gathered<8xf32>
  // expected-error @below {{expected a step without control flow}}
  scf.if %c {
    fsdp.async.reshard %full : !fsdp.gathered<8xf32>
  }
  %a = fsdp.view %full[@u, "a"] : !fsdp.gathered<8xf32> -> tensor<2x4xf32>
  return %a : tensor<2x4xf32>
}
