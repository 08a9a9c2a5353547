// Durations by the formulas of hardware/cpu.toml, worked out by hand, and what has none.
// RUN: fsdp-opt %s --fsdp-annotate-costs | FileCheck %s
// RUN: fsdp-opt %s --fsdp-annotate-costs=profile=%S/Inputs/profile.json | FileCheck %s --check-prefix=MEASURED
// RUN: fsdp-opt %s --fsdp-annotate-costs=profile=%S/Inputs/profile.json --remarks-filter=fsdp-annotate-costs --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK
// RUN: fsdp-opt %s --fsdp-annotate-costs=hardware=h100 | FileCheck %s --check-prefix=H100
// RUN: not fsdp-opt %s --fsdp-annotate-costs=hardware=%t.none 2>&1 | FileCheck %s --check-prefix=MISSING
// RUN: echo "launch_us = 1" > %t.toml
// RUN: not fsdp-opt %s --fsdp-annotate-costs=hardware=%t.toml 2>&1 | FileCheck %s --check-prefix=BAD

// MISSING: error: {{.*}}.none: cannot open: No such file or directory
// BAD: error: {{.*}}.toml: name: expected a text
// RUN: echo '{"nodes": []}' > %t.json
// RUN: not fsdp-opt %s --fsdp-annotate-costs=profile=%t.json 2>&1 | FileCheck %s --check-prefix=PROFILE
// PROFILE: error: {{.*}}.json: expected a member 'collectives', found none
// REMARK: costs | Category:fsdp-annotate-costs | Function=step | Measured=4, MeasuredNanoseconds=1160000, Nanoseconds=9608290, Operations=8

fsdp.mesh @mesh ["replicate" = 1, "shard" = 4]
fsdp.unit @u on @mesh shard ["shard"] replicate ["replicate"] storage f32 reduce f32
  layout <["w" : 512x512 at 0], numel = 262144, padded = 262144>

func.func @step(%shard: !fsdp.shard<262144xf32, 4> {fsdp.state = #fsdp.state<@u, parameter>}, %x: tensor<64x512xf32>,
                %table: tensor<4096x512xf32>, %i: tensor<64xi64>, %q: tensor<1x8x256x64xbf16>) attributes {aten.program} {
  // A quarter of each rank's 1 MiB is its own: 5000 + 3 * 1000 + 3/4 * 2^20 / 4.5 ns.
  // CHECK: fsdp.async.unshard @u {{.*}} {fsdp.cost = 182763 : i64}
  // H100: fsdp.async.unshard @u {{.*}} {fsdp.cost = 20785 : i64, fsdp.links = array<i32: 1024, 0>}
  // MEASURED: fsdp.async.unshard @u {{.*}} {fsdp.cost = 90000 : i64}
  %f = fsdp.async.unshard @u <forward> over ["shard"] %shard : !fsdp.shard<262144xf32, 4> -> !fsdp.future<!fsdp.gathered<262144xf32>>
  // CHECK-NOT: fsdp.cost
  // CHECK: fsdp.async.wait
  %full = fsdp.async.wait %f : !fsdp.future<!fsdp.gathered<262144xf32>> -> !fsdp.gathered<262144xf32>
  %w = fsdp.view %full[@u, "w"] : !fsdp.gathered<262144xf32> -> tensor<512x512xf32>
  %t = aten.call "t"(%w) : (tensor<512x512xf32>) -> tensor<512x512xf32, #aten.strided<[1, 512]>>
  // 500 + 2 * 64 * 512 * 512 / 85.
  // CHECK: aten.call "mm"({{.*}}) {fsdp.cost = 395258 : i64}
  // MEASURED: aten.call "mm"({{.*}}) {fsdp.cost = 70000 : i64}
  %y = aten.call "mm"(%x, %t) : (tensor<64x512xf32>, tensor<512x512xf32, #aten.strided<[1, 512]>>) -> tensor<64x512xf32> loc("mm_1")
  // Two operands and a result of 128 KiB, from the cache: 500 + 3 * 131072 / 50.
  // CHECK: aten.call "add.Tensor"({{.*}}) {fsdp.cost = 8364 : i64}
  %z = aten.call "add.Tensor"(%x, %y) : (tensor<64x512xf32>, tensor<64x512xf32>) -> tensor<64x512xf32> loc("both")
  // Ten operations for each element: 500 + 10 * 32768 / 8.
  // CHECK: aten.call "_softmax"({{.*}}) {fsdp.cost = 41460 : i64}
  // Two operations of one node share what it took, as predicted: 8364 / (8364 + 41460) of 1 ms.
  // MEASURED: aten.call "add.Tensor"({{.*}}) {fsdp.cost = 167871 : i64}
  // MEASURED: aten.call "_softmax"({{.*}}) {fsdp.cost = 832129 : i64}
  %s = aten.call "_softmax"(%z, 1, false) : (tensor<64x512xf32>) -> tensor<64x512xf32> loc("both")
  // What was not measured is as predicted.
  // MEASURED: aten.call "embedding"({{.*}}) {fsdp.cost = 5753 : i64}
  // Of the table, only the 64 rows: 500 + (512 + 2 * 131072) / 50.
  // CHECK: aten.call "embedding"({{.*}}) {fsdp.cost = 5753 : i64}
  %e = aten.call "embedding"(%table, %i) : (tensor<4096x512xf32>, tensor<64xi64>) -> tensor<64x512xf32>
  // 500 + 4 * 8 * 256 * 64 * 256 / 24, and half of that if causal.
  // CHECK: aten.call "_scaled_dot_product_flash_attention_for_cpu"({{.*}}) {fsdp.cost = 5592905 : i64}
  %a:2 = aten.call "_scaled_dot_product_flash_attention_for_cpu"(%q, %q, %q)
    : (tensor<1x8x256x64xbf16>, tensor<1x8x256x64xbf16>, tensor<1x8x256x64xbf16>) -> (tensor<1x8x256x64xbf16>, tensor<1x8x256xf32>)
  // CHECK: aten.call "_scaled_dot_product_flash_attention_for_cpu"({{.*}}) {fsdp.cost = 2796703 : i64}
  %c:2 = aten.call "_scaled_dot_product_flash_attention_for_cpu"(%q, %q, %q, 0.0, true)
    : (tensor<1x8x256x64xbf16>, tensor<1x8x256x64xbf16>, tensor<1x8x256x64xbf16>) -> (tensor<1x8x256x64xbf16>, tensor<1x8x256xf32>)
  // An operator that nobody knows is ten times its bytes: 500 + 10 * 2 * 131072 / 50.
  // CHECK: aten.call "mine::op"({{.*}}) {fsdp.cost = 52929 : i64}
  %m = aten.call "mine::op"(%z) : (tensor<64x512xf32>) -> tensor<64x512xf32>
  // CHECK-NOT: fsdp.cost
  // CHECK: return
  %freed = fsdp.async.reshard %full : !fsdp.gathered<262144xf32>
  return
}
