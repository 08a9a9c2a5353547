// What a collective takes: the bytes that are sent, one call for a bucket, and the copies of copied ones.
// RUN: sed -e 's/gbytes = 1e9/gbytes = 1/' %S/Inputs/round.toml > %t.toml
// RUN: fsdp-opt %s --fsdp-annotate-costs=hardware=%t.toml --split-input-file | FileCheck %s
// RUN: fsdp-opt %s --fsdp-annotate-costs --split-input-file | FileCheck %s --check-prefix=CPU
// RUN: fsdp-opt %s --fsdp-annotate-costs --split-input-file | fsdp-opt --fsdp-annotate-costs=hardware=h100 --split-input-file | FileCheck %s --check-prefix=GPU

// On the CPU of a rank nothing overlaps; costs of another machine say otherwise.
// CPU: func.func @step({{.*}}) attributes {aten.program, fsdp.shared_core}
// GPU: func.func @step({{.*}}) attributes {aten.program, fsdp.contention = 195 : i64}

fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["w" : 1000 at 0], numel = 1000, padded = 1000>
fsdp.unit @v on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["w" : 1000 at 0], numel = 1000, padded = 1000>

// A link is 30 us, and 1 ns a byte: of 2000 bytes in bf16 half is the rank's own; the second unit of a call adds no latency.
// A copy takes 1 ns a byte too: of each shard 2000 bytes are read and 1000 written.
// CHECK-LABEL: @step
// CHECK: async.unshard @u {{.*}} {fsdp.cost = 34000 : i64}
// CHECK: async.unshard @v {{.*}} {fsdp.cost = 4000 : i64}
// A unit is copied out where it is waited for: 20 us, and 2000 bytes read and written.
// CHECK: async.wait {{.*}} {fsdp.cost = 24000 : i64}
// CHECK: async.wait {{.*}} {fsdp.cost = 24000 : i64}
func.func @step(%u: !fsdp.shard<1000xf32, 2> {fsdp.state = #fsdp.state<@u, parameter>},
                %v: !fsdp.shard<1000xf32, 2> {fsdp.state = #fsdp.state<@v, parameter>}) attributes {aten.program} {
  %f = fsdp.async.unshard @u <forward> over ["shard"] %u bucket 0 copy : !fsdp.shard<1000xf32, 2> -> !fsdp.future<!fsdp.gathered<1000xbf16>>
  %g = fsdp.async.unshard @v <forward> over ["shard"] %v bucket 0 copy : !fsdp.shard<1000xf32, 2> -> !fsdp.future<!fsdp.gathered<1000xbf16>>
  %a = fsdp.async.wait %f : !fsdp.future<!fsdp.gathered<1000xbf16>> -> !fsdp.gathered<1000xbf16>
  %b = fsdp.async.wait %g : !fsdp.future<!fsdp.gathered<1000xbf16>> -> !fsdp.gathered<1000xbf16>
  %0 = fsdp.async.reshard %a : !fsdp.gathered<1000xbf16>
  %1 = fsdp.async.reshard %b : !fsdp.gathered<1000xbf16>
  return
}

// -----

fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["w" : 1000 at 0], numel = 1000, padded = 1000>

// The flat gradient is laid out (2000 bytes read and written), and copied; it is sent in f32, in which it is reduced.
// CHECK-LABEL: @step
// CHECK: fsdp.flatten_grads @u({{.*}}) {fsdp.cost = 28000 : i64}
// CHECK: async.reduce_scatter @u {{.*}} {fsdp.cost = 32000 : i64}
// CHECK: fsdp.flatten_grads @u({{.*}}) {fsdp.cost = 24000 : i64}
// CHECK: async.reduce_scatter @u {{.*}} {fsdp.cost = 32000 : i64}
func.func @step(%g: tensor<1000xbf16>) attributes {aten.program} {
  %flat = fsdp.flatten_grads @u(%g) : (tensor<1000xbf16>) -> tensor<1000xbf16>
  %f = fsdp.async.reduce_scatter @u over ["shard"] divide <pre = 1, post = 2> via f32 %flat copy : tensor<1000xbf16> -> !fsdp.future<!fsdp.shard<1000xf32, 2>>
  %a = fsdp.async.wait %f : !fsdp.future<!fsdp.shard<1000xf32, 2>> -> !fsdp.shard<1000xf32, 2>
  %again = fsdp.flatten_grads @u(%g) : (tensor<1000xbf16>) -> tensor<1000xbf16>
  %h = fsdp.async.reduce_scatter @u over ["shard"] divide <pre = 1, post = 2> via f32 %again : tensor<1000xbf16> -> !fsdp.future<!fsdp.shard<1000xf32, 2>>
  %b = fsdp.async.wait %h : !fsdp.future<!fsdp.shard<1000xf32, 2>> -> !fsdp.shard<1000xf32, 2>
  return
}

// -----

// Two replicas of eight shards. Gathers and reductions share the links in a node, and all-reduces have the network for themselves: each sends to
// another node, and nothing to its own. Neighbours along "shard" share a node of an H100, and two replicas of a rank are in two nodes,
// few as they are. 2^30 bytes in the node: 8.4 + 7 * 3.4 us, and 7/8 of them at 360 GB/s; all-reduced over the network: 25 + 22 us, and
// the bytes at 48 GB/s. Of a machine with one node, 30 us and 1 ns for each byte that is sent.
fsdp.mesh @mesh ["replicate" = 2, "shard" = 8]
fsdp.unit @u on @mesh shard ["shard"] replicate ["replicate"] storage f32 reduce f32
  layout <["w" : 268435456 at 0], numel = 268435456, padded = 268435456>
// CHECK-LABEL: @step
// CHECK: async.unshard @u {{.*}} {fsdp.cost = 939554096 : i64}
// CHECK: async.all_reduce @u {{.*}} {fsdp.cost = 134247728 : i64}
// GPU: func.func @step(%{{.*}}: !fsdp.shard<268435456xf32, 8>
// GPU: async.unshard @u {{.*}} {fsdp.cost = 2641989 : i64, fsdp.links = array<i32: 1024, 0>}
// GPU: async.all_reduce @u {{.*}} {fsdp.cost = 2843203 : i64, fsdp.links = array<i32: 0, 1024>}
func.func @step(%u: !fsdp.shard<268435456xf32, 8> {fsdp.state = #fsdp.state<@u, parameter>},
                %g: !fsdp.shard<268435456xf32, 8>) attributes {aten.program} {
  %f = fsdp.async.unshard @u <forward> over ["shard"] %u : !fsdp.shard<268435456xf32, 8> -> !fsdp.future<!fsdp.gathered<268435456xf32>>
  %a = fsdp.async.wait %f : !fsdp.future<!fsdp.gathered<268435456xf32>> -> !fsdp.gathered<268435456xf32>
  %0 = fsdp.async.reshard %a : !fsdp.gathered<268435456xf32>
  %h = fsdp.async.all_reduce @u over ["replicate"] divide <pre = 1, post = 2> via f32 %g : !fsdp.shard<268435456xf32, 8> -> !fsdp.future<!fsdp.shard<268435456xf32, 8>>
  %b = fsdp.async.wait %h : !fsdp.future<!fsdp.shard<268435456xf32, 8>> -> !fsdp.shard<268435456xf32, 8>
  return
}
