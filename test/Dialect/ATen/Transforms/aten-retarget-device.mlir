// covers: GPU
// RUN: fsdp-opt %s -split-input-file -verify-diagnostics --aten-retarget-device=device=cuda | FileCheck %s
// RUN: fsdp-translate --import-pt2 %fixtures/llama.pt2 | fsdp-opt --aten-retarget-device | FileCheck %s --check-prefix=LLAMA
// RUN: fsdp-translate --import-pt2 %fixtures/bert.pt2 | fsdp-opt --aten-retarget-device | FileCheck %s --check-prefix=BERT
// RUN: fsdp-translate --import-pt2 %fixtures/llama_bf16.pt2 | fsdp-opt --aten-retarget-device | FileCheck %s --check-prefix=LLAMA
// RUN: fsdp-opt %s -split-input-file -verify-diagnostics --aten-retarget-device=cudnn | FileCheck %s --check-prefix=CUDNN
// RUN: fsdp-translate --import-pt2 %fixtures/gpt2.pt2 | fsdp-opt --aten-retarget-device=device=cpu | FileCheck %s --check-prefix=SAME

// LLAMA: aten.device = #aten<device cuda>
// LLAMA-NOT: _for_cpu
// LLAMA-NOT: = cpu
// LLAMA: aten.call "_scaled_dot_product_efficient_attention"(
// LLAMA-NOT: _for_cpu
// LLAMA: aten.call "_scaled_dot_product_efficient_attention_backward"(
// LLAMA-NOT: _for_cpu

// BERT: aten.device = #aten<device cuda>
// BERT-NOT: _for_cpu
// BERT: aten.call "_scaled_dot_product_efficient_attention"(
// BERT: aten.call "_scaled_dot_product_efficient_attention_backward"(

// SAME: aten.device = #aten<device cpu>
// SAME: _scaled_dot_product_flash_attention_for_cpu

// The sums are as many as the kernel makes. Seed and offset, which may be in host memory, are not used: the backward reads neither.
// CHECK: module attributes {aten.device = #aten<device cuda>}
module attributes {aten.device = #aten<device cpu>} {
// CHECK-LABEL: @causal
func.func @causal(%q: tensor<2x3x17x8xf32>) -> (tensor<2x3x17x8xf32>, tensor<2x3x17x8xf32>) attributes {aten.program} {
  // CHECK: %[[STATE:.*]] = aten.call "full"([], 0, dtype = i64, device = cuda) {phase = #aten<phase forward>} : () -> tensor<i64>
  // CHECK: %[[F:.*]]:4 = aten.call "_scaled_dot_product_efficient_attention"(%[[Q:.*]], %[[Q]], %[[Q]], none, true, 0.0, true, scale = 0.5) {phase = #aten<phase forward>, scope = "a"}
  // CHECK-SAME: -> (tensor<2x3x17x8xf32>, tensor<2x3x32xf32>, none, none)
  %o, %l = aten.call "_scaled_dot_product_flash_attention_for_cpu"(%q, %q, %q, 0.0, true, scale = 0.5) {phase = #aten<phase forward>, scope = "a"}
    : (tensor<2x3x17x8xf32>, tensor<2x3x17x8xf32>, tensor<2x3x17x8xf32>) -> (tensor<2x3x17x8xf32>, tensor<2x3x17xf32, #aten.strided<[51, 1, 3]>>)
  // CHECK: %[[B:.*]]:4 = aten.call "_scaled_dot_product_efficient_attention_backward"(%[[Q]], %[[Q]], %[[Q]], %[[Q]], none, %[[F]]#0, %[[F]]#1, %[[STATE]], %[[STATE]], 0.0, [true, true, true, false], true, scale = 0.5) {phase = #aten<phase backward>}
  // CHECK-SAME: -> (tensor<2x3x17x8xf32>, tensor<2x3x17x8xf32>, tensor<2x3x17x8xf32>, none)
  %g:3 = aten.call "_scaled_dot_product_flash_attention_for_cpu_backward"(%q, %q, %q, %q, %o, %l, 0.0, true, scale = 0.5) {phase = #aten<phase backward>}
    : (tensor<2x3x17x8xf32>, tensor<2x3x17x8xf32>, tensor<2x3x17x8xf32>, tensor<2x3x17x8xf32>, tensor<2x3x17x8xf32>, tensor<2x3x17xf32, #aten.strided<[51, 1, 3]>>)
      -> (tensor<2x3x17x8xf32>, tensor<2x3x17x8xf32>, tensor<2x3x17x8xf32>)
  // CHECK: return %[[F]]#0, %[[B]]#1
  return %o, %g#1 : tensor<2x3x17x8xf32>, tensor<2x3x17x8xf32>
}

// A mask of one head is seen as one of all; device arguments change.
// CHECK-LABEL: @mask
func.func @mask(%q: tensor<2x3x16x8xf32>, %m: tensor<2x1x16x16xf32>) -> (tensor<2x3x16x8xf32>, tensor<2x3x16x8xf32>, tensor<2xf32>) attributes {aten.program} {
  // CHECK: %[[M:.*]] = aten.call "expand"(%{{.*}}, [2, 3, 16, 16]) {{.*}} : (tensor<2x1x16x16xf32>) -> tensor<2x3x16x16xf32, #aten.strided<[256, 0, 16, 1]>>
  // CHECK: aten.call "_scaled_dot_product_efficient_attention"(%{{.*}}, %{{.*}}, %{{.*}}, %[[M]], true, 0.0, false)
  %o, %l = aten.call "_scaled_dot_product_flash_attention_for_cpu"(%q, %q, %q, attn_mask = %m) {phase = #aten<phase forward>}
    : (tensor<2x3x16x8xf32>, tensor<2x3x16x8xf32>, tensor<2x3x16x8xf32>, tensor<2x1x16x16xf32>) -> (tensor<2x3x16x8xf32>, tensor<2x3x16xf32>)
  // CHECK: aten.call "_scaled_dot_product_efficient_attention_backward"(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %[[M]],
  %g:3 = aten.call "_scaled_dot_product_flash_attention_for_cpu_backward"(%q, %q, %q, %q, %o, %l, 0.0, false, attn_mask = %m) {phase = #aten<phase backward>}
    : (tensor<2x3x16x8xf32>, tensor<2x3x16x8xf32>, tensor<2x3x16x8xf32>, tensor<2x3x16x8xf32>, tensor<2x3x16x8xf32>, tensor<2x3x16xf32>, tensor<2x1x16x16xf32>)
      -> (tensor<2x3x16x8xf32>, tensor<2x3x16x8xf32>, tensor<2x3x16x8xf32>)
  // CHECK: aten.call "full"([2], 0.0, device = cuda, pin_memory = false)
  %z = aten.call "full"([2], 0.0, device = cpu, pin_memory = false) : () -> tensor<2xf32>
  return %o, %g#0, %z : tensor<2x3x16x8xf32>, tensor<2x3x16x8xf32>, tensor<2xf32>
}
}

// -----

// 16 bits without a mask. All attention of a block has one constant in place of seed and offset.
// CHECK-LABEL: @flash
// cuDNN's sums have one size more.
// CUDNN-LABEL: @flash
// CUDNN: %[[STATE:.*]] = aten.call "full"([], 0, dtype = i64, device = cuda)
// CUDNN: %[[F:.*]]:9 = aten.call "_scaled_dot_product_cudnn_attention"(%[[Q:.*]], %[[Q]], %[[Q]], none, true, 0.0, true, scale = 0.5)
// CUDNN-SAME: -> (tensor<2x3x17x8xbf16>, tensor<2x3x17x1xf32>, none, none, none, none, none, none, none)
// CUDNN: aten.call "_scaled_dot_product_cudnn_attention_backward"(%{{.*}}, %[[Q]], %[[Q]], %[[Q]], %[[F]]#0, %[[F]]#1, %[[STATE]], %[[STATE]], none, none, none, 17, 17, 0.0, true, scale = 0.5)
func.func @flash(%q: tensor<2x3x17x8xbf16>) -> (tensor<2x3x17x8xbf16>, tensor<2x3x17x8xbf16>) attributes {aten.program} {
  // CHECK: %[[STATE:.*]] = aten.call "full"([], 0, dtype = i64, device = cuda)
  // CHECK: %[[F:.*]]:9 = aten.call "_scaled_dot_product_flash_attention"(%[[Q:.*]], %[[Q]], %[[Q]], 0.0, true, scale = 0.5)
  // CHECK-SAME: -> (tensor<2x3x17x8xbf16>, tensor<2x3x17xf32>, none, none, none, none, none, none, none)
  %o, %l = aten.call "_scaled_dot_product_flash_attention_for_cpu"(%q, %q, %q, 0.0, true, scale = 0.5) {phase = #aten<phase forward>, scope = "a"}
    : (tensor<2x3x17x8xbf16>, tensor<2x3x17x8xbf16>, tensor<2x3x17x8xbf16>) -> (tensor<2x3x17x8xbf16>, tensor<2x3x17xf32, #aten.strided<[51, 1, 3]>>)
  // CHECK-NEXT: %[[G:.*]]:9 = aten.call "_scaled_dot_product_flash_attention"(%[[F]]#0,
  %p, %m = aten.call "_scaled_dot_product_flash_attention_for_cpu"(%o, %q, %q, 0.0, true, scale = 0.5) {phase = #aten<phase forward>, scope = "b"}
    : (tensor<2x3x17x8xbf16>, tensor<2x3x17x8xbf16>, tensor<2x3x17x8xbf16>) -> (tensor<2x3x17x8xbf16>, tensor<2x3x17xf32, #aten.strided<[51, 1, 3]>>)
  // CHECK: aten.call "_scaled_dot_product_flash_attention_backward"(%[[Q]], %[[F]]#0, %[[Q]], %[[Q]], %[[G]]#0, %[[G]]#1, none, none, 17, 17, 0.0, true, %[[STATE]], %[[STATE]], scale = 0.5) {phase = #aten<phase backward>}
  %h:3 = aten.call "_scaled_dot_product_flash_attention_for_cpu_backward"(%q, %o, %q, %q, %p, %m, 0.0, true, scale = 0.5) {phase = #aten<phase backward>}
    : (tensor<2x3x17x8xbf16>, tensor<2x3x17x8xbf16>, tensor<2x3x17x8xbf16>, tensor<2x3x17x8xbf16>, tensor<2x3x17x8xbf16>, tensor<2x3x17xf32, #aten.strided<[51, 1, 3]>>)
      -> (tensor<2x3x17x8xbf16>, tensor<2x3x17x8xbf16>, tensor<2x3x17x8xbf16>)
  // CHECK: aten.call "_scaled_dot_product_flash_attention_backward"(%{{.*}}, %[[Q]], %[[Q]], %[[Q]], %[[F]]#0, %[[F]]#1, none, none, 17, 17, 0.0, true, %[[STATE]], %[[STATE]], scale = 0.5)
  %g:3 = aten.call "_scaled_dot_product_flash_attention_for_cpu_backward"(%h#0, %q, %q, %q, %o, %l, 0.0, true, scale = 0.5) {phase = #aten<phase backward>}
    : (tensor<2x3x17x8xbf16>, tensor<2x3x17x8xbf16>, tensor<2x3x17x8xbf16>, tensor<2x3x17x8xbf16>, tensor<2x3x17x8xbf16>, tensor<2x3x17xf32, #aten.strided<[51, 1, 3]>>)
      -> (tensor<2x3x17x8xbf16>, tensor<2x3x17x8xbf16>, tensor<2x3x17x8xbf16>)
  return %p, %g#1 : tensor<2x3x17x8xbf16>, tensor<2x3x17x8xbf16>
}

// -----

// Flash attention has no mask, no values of another size, no other triangle.
// CHECK-LABEL: @others
// CUDNN-LABEL: @others
// CUDNN-COUNT-4: "_scaled_dot_product_efficient_attention"
// CUDNN: "_scaled_dot_product_cudnn_attention"
// CUDNN: "_scaled_dot_product_flash_attention"
func.func @others(%q: tensor<2x3x16x8xbf16>, %v: tensor<2x3x16x16xbf16>, %k: tensor<2x3x24x8xbf16>, %m: tensor<16x16xbf16>, %w: tensor<2x3x16x264xf16>, %u: tensor<2x3x16x136xf16>) attributes {aten.program} {
  // CHECK: "_scaled_dot_product_efficient_attention"
  %a:2 = aten.call "_scaled_dot_product_flash_attention_for_cpu"(%q, %q, %q, attn_mask = %m)
    : (tensor<2x3x16x8xbf16>, tensor<2x3x16x8xbf16>, tensor<2x3x16x8xbf16>, tensor<16x16xbf16>) -> (tensor<2x3x16x8xbf16>, tensor<2x3x16xf32>)
  // CHECK: "_scaled_dot_product_efficient_attention"
  %b:2 = aten.call "_scaled_dot_product_flash_attention_for_cpu"(%q, %q, %v)
    : (tensor<2x3x16x8xbf16>, tensor<2x3x16x8xbf16>, tensor<2x3x16x16xbf16>) -> (tensor<2x3x16x16xbf16>, tensor<2x3x16xf32>)
  // CHECK: "_scaled_dot_product_efficient_attention"
  %c:2 = aten.call "_scaled_dot_product_flash_attention_for_cpu"(%q, %k, %k, 0.0, true)
    : (tensor<2x3x16x8xbf16>, tensor<2x3x24x8xbf16>, tensor<2x3x24x8xbf16>) -> (tensor<2x3x16x8xbf16>, tensor<2x3x16xf32>)
  // CHECK: "_scaled_dot_product_efficient_attention"
  %d:2 = aten.call "_scaled_dot_product_flash_attention_for_cpu"(%w, %w, %w)
    : (tensor<2x3x16x264xf16>, tensor<2x3x16x264xf16>, tensor<2x3x16x264xf16>) -> (tensor<2x3x16x264xf16>, tensor<2x3x16xf32>)
  // CHECK: "_scaled_dot_product_flash_attention"(%{{.*}}, %{{.*}}, %{{.*}}, 0.0, false)
  %e:2 = aten.call "_scaled_dot_product_flash_attention_for_cpu"(%q, %k, %k)
    : (tensor<2x3x16x8xbf16>, tensor<2x3x24x8xbf16>, tensor<2x3x24x8xbf16>) -> (tensor<2x3x16x8xbf16>, tensor<2x3x16xf32>)
  // CHECK: "_scaled_dot_product_flash_attention"
  %f:2 = aten.call "_scaled_dot_product_flash_attention_for_cpu"(%u, %u, %u)
    : (tensor<2x3x16x136xf16>, tensor<2x3x16x136xf16>, tensor<2x3x16x136xf16>) -> (tensor<2x3x16x136xf16>, tensor<2x3x16xf32>)
  return
}

// -----

func.func @heads(%q: tensor<2x3x16x6xf32>) attributes {aten.program} {
  // expected-error @+1 {{expected heads of a multiple of 4 elements for attention on cuda, got 6}}
  %o, %l = aten.call "_scaled_dot_product_flash_attention_for_cpu"(%q, %q, %q)
    : (tensor<2x3x16x6xf32>, tensor<2x3x16x6xf32>, tensor<2x3x16x6xf32>) -> (tensor<2x3x16x6xf32>, tensor<2x3x16xf32>)
  return
}

// -----

func.func @keys(%q: tensor<2x3x17x8xf32>, %m: tensor<17x17xf32>) attributes {aten.program} {
  // expected-error @+1 {{expected a mask over a multiple of 4 keys for attention on cuda, got 17}}
  %o, %l = aten.call "_scaled_dot_product_flash_attention_for_cpu"(%q, %q, %q, attn_mask = %m)
    : (tensor<2x3x17x8xf32>, tensor<2x3x17x8xf32>, tensor<2x3x17x8xf32>, tensor<17x17xf32>) -> (tensor<2x3x17x8xf32>, tensor<2x3x17xf32>)
  return
}

// -----

func.func @truth(%q: tensor<2x3x16x8xf32>, %m: tensor<16x16xi1>) attributes {aten.program} {
  // expected-error @+1 {{expected a mask of the element type of the queries for attention on cuda, got 'tensor<16x16xi1>'}}
  %o, %l = aten.call "_scaled_dot_product_flash_attention_for_cpu"(%q, %q, %q, attn_mask = %m)
    : (tensor<2x3x16x8xf32>, tensor<2x3x16x8xf32>, tensor<2x3x16x8xf32>, tensor<16x16xi1>) -> (tensor<2x3x16x8xf32>, tensor<2x3x16xf32>)
  return
}

// -----

func.func @grouped(%q: tensor<2x4x16x8xf32>, %k: tensor<2x2x16x8xf32>) attributes {aten.program} {
  // expected-error @+1 {{expected as many heads of keys as of queries for attention on cuda, got 2 and 4}}
  %o, %l = aten.call "_scaled_dot_product_flash_attention_for_cpu"(%q, %k, %k)
    : (tensor<2x4x16x8xf32>, tensor<2x2x16x8xf32>, tensor<2x2x16x8xf32>) -> (tensor<2x4x16x8xf32>, tensor<2x4x16xf32>)
  return
}

// -----

func.func @unknown_size(%q: tensor<?x3x16x8xf32>) attributes {aten.program} {
  // expected-error @+1 {{expected attention over tensors of four known sizes}}
  %o, %l = aten.call "_scaled_dot_product_flash_attention_for_cpu"(%q, %q, %q)
    : (tensor<?x3x16x8xf32>, tensor<?x3x16x8xf32>, tensor<?x3x16x8xf32>) -> (tensor<?x3x16x8xf32>, tensor<?x3x16xf32>)
  return
}

// -----

func.func @key_that_is_no_tensor(%q: tensor<2x3x16x8xf32>) attributes {aten.program} {
  // expected-error @+1 {{expected attention over tensors of four known sizes, got another argument 1}}
  %o, %l = aten.call "_scaled_dot_product_flash_attention_for_cpu"(%q, 1, %q)
    : (tensor<2x3x16x8xf32>, tensor<2x3x16x8xf32>) -> (tensor<2x3x16x8xf32>, tensor<2x3x16xf32>)
  return
}

// -----

func.func @value_of_another_rank(%q: tensor<2x3x16x8xf32>, %v: tensor<8xf32>) attributes {aten.program} {
  // expected-error @+1 {{expected attention over tensors of four known sizes, got another argument 2}}
  %o, %l = aten.call "_scaled_dot_product_flash_attention_for_cpu"(%q, %q, %v)
    : (tensor<2x3x16x8xf32>, tensor<2x3x16x8xf32>, tensor<8xf32>) -> (tensor<2x3x16x8xf32>, tensor<2x3x16xf32>)
  return
}

// -----

func.func @mask_of_five_sizes(%q: tensor<2x3x16x8xf32>, %m: tensor<1x2x3x16x16xf32>) attributes {aten.program} {
  // expected-error @+1 {{expected a mask of at most four sizes for attention on cuda, got 'tensor<1x2x3x16x16xf32>'}}
  %o, %l = aten.call "_scaled_dot_product_flash_attention_for_cpu"(%q, %q, %q, attn_mask = %m)
    : (tensor<2x3x16x8xf32>, tensor<2x3x16x8xf32>, tensor<2x3x16x8xf32>, tensor<1x2x3x16x16xf32>) -> (tensor<2x3x16x8xf32>, tensor<2x3x16xf32>)
  return
}

// -----

func.func @dropout(%q: tensor<2x3x16x8xf32>) attributes {aten.program} {
  // expected-error @+1 {{expected attention without dropout}}
  %o, %l = aten.call "_scaled_dot_product_flash_attention_for_cpu"(%q, %q, %q, 0.1)
    : (tensor<2x3x16x8xf32>, tensor<2x3x16x8xf32>, tensor<2x3x16x8xf32>) -> (tensor<2x3x16x8xf32>, tensor<2x3x16xf32>)
  return
}

// -----

func.func @sums(%q: tensor<2x3x16x8xf32>) -> tensor<2x3x16xf32> attributes {aten.program} {
  %o, %l = aten.call "_scaled_dot_product_flash_attention_for_cpu"(%q, %q, %q)
    : (tensor<2x3x16x8xf32>, tensor<2x3x16x8xf32>, tensor<2x3x16x8xf32>) -> (tensor<2x3x16x8xf32>, tensor<2x3x16xf32>)
  // expected-error @+1 {{expected the sums of attention to be used by its backward only}}
  return %l : tensor<2x3x16xf32>
}

// -----

// A step that was captured on a GPU: seed and offset are read by nobody there, either.
module attributes {aten.device = #aten<device cuda>} {
// CHECK-LABEL: @captured_there
// CHECK: %[[STATE:.*]] = aten.call "full"
// CHECK: aten.call "_scaled_dot_product_efficient_attention"(
// CHECK-SAME: -> (tensor<2x3x32x8xf32>, tensor<2x3x32xf32>, none, none)
// CHECK: aten.call "_scaled_dot_product_efficient_attention_backward"(
// CHECK-SAME: %[[STATE]], %[[STATE]],
func.func @captured_there(%q: tensor<2x3x32x8xf32>) -> (tensor<2x3x32x8xf32>, tensor<2x3x32x8xf32>) attributes {aten.program} {
  %o, %l, %s, %n = aten.call "_scaled_dot_product_efficient_attention"(%q, %q, %q, none, true, 0.0, true) {phase = #aten<phase forward>}
    : (tensor<2x3x32x8xf32>, tensor<2x3x32x8xf32>, tensor<2x3x32x8xf32>) -> (tensor<2x3x32x8xf32>, tensor<2x3x32xf32>, tensor<i64>, tensor<i64>)
  %dq, %dk, %dv, %dm = aten.call "_scaled_dot_product_efficient_attention_backward"(%o, %q, %q, %q, none, %o, %l, %s, %n, 0.0, [true, true, true, false], true) {phase = #aten<phase backward>}
    : (tensor<2x3x32x8xf32>, tensor<2x3x32x8xf32>, tensor<2x3x32x8xf32>, tensor<2x3x32x8xf32>, tensor<2x3x32x8xf32>, tensor<2x3x32xf32>, tensor<i64>, tensor<i64>) -> (tensor<2x3x32x8xf32>, tensor<2x3x32x8xf32>, tensor<2x3x32x8xf32>, none)
  return %o, %dq : tensor<2x3x32x8xf32>, tensor<2x3x32x8xf32>
}
// Dropout reads them.
// CHECK-LABEL: @with_dropout
// CHECK: -> (tensor<2x3x32x8xf32>, tensor<2x3x32xf32>, tensor<i64>, tensor<i64>)
func.func @with_dropout(%q: tensor<2x3x32x8xf32>) -> tensor<i64> attributes {aten.program} {
  %o, %l, %s, %n = aten.call "_scaled_dot_product_efficient_attention"(%q, %q, %q, none, true, 0.1, true) {phase = #aten<phase forward>}
    : (tensor<2x3x32x8xf32>, tensor<2x3x32x8xf32>, tensor<2x3x32x8xf32>) -> (tensor<2x3x32x8xf32>, tensor<2x3x32xf32>, tensor<i64>, tensor<i64>)
  return %s : tensor<i64>
}
}
