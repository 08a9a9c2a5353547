// Two programs over the same parameters share units, states, buffers and what is computed once.

// RUN: fsdp-opt %s --fsdp-assign-units --fsdp-shard=ranks=2 --fsdp-insert-optimizer --fsdp-hoist-constants \
// RUN:   --fsdp-verify-logical --fsdp-verify-equivalence -o %t.logical.mlir
// RUN: FileCheck %s --check-prefix=LOGICAL --input-file=%t.logical.mlir

// LOGICAL: fsdp.unit @root on @mesh {{.*}} layout <["w" : 4 at 0, "v" : 4 at 4 frozen]
// LOGICAL-NOT: fsdp.unit

// The table is the same in both, so it is computed once; the other one is the evaluation's.
// LOGICAL: func.func @init() -> (tensor<4xf32>, tensor<8xf32>) attributes {fsdp.init} {
// LOGICAL: %[[TABLE:.*]] = aten.call "arange"(4)
// LOGICAL: %[[LONG:.*]] = aten.call "arange"(8)
// LOGICAL: return %[[TABLE]], %[[LONG]]

// LOGICAL: func.func @step(%{{.*}}: !fsdp.shard<8xf32, 2> {fsdp.state = #fsdp.state<@root, parameter>}
// LOGICAL-SAME: {fsdp.result = 0 : i64}
// LOGICAL-SAME: attributes {aten.program, fsdp.source = @step.source}
// LOGICAL: fsdp.adamw @root
// LOGICAL: func.func private @step.source

// Nothing trains here: no reduction but that of the loss, no state, no update.
// LOGICAL: func.func @eval(%{{.*}}: !fsdp.shard<8xf32, 2> {fsdp.state = #fsdp.state<@root, parameter>}
// LOGICAL-SAME: %{{.*}}: tensor<4xf32> {fsdp.result = 0 : i64}, %{{.*}}: tensor<8xf32> {fsdp.result = 1 : i64})
// LOGICAL-SAME: -> (tensor<f32> {aten.loss}) attributes {aten.program, fsdp.source = @eval.source}
// LOGICAL: fsdp.unshard @root <forward>
// LOGICAL-NOT: fsdp.adamw
// LOGICAL: fsdp.all_reduce on @mesh
// LOGICAL-NOT: fsdp.reduce_scatter
// LOGICAL: func.func private @eval.source

// Every pass works on both, and remarks say which.
// RUN: fsdp-opt %s --fsdp-pipeline=ranks=2 -o %t.plan.mlir --remarks-filter=plan-assign-memory --remark-format=emitRemark 2>&1 \
// RUN:   | FileCheck %s --check-prefix=REMARK
// REMARK-DAG: remark: [Analysis] memory | Category:plan-assign-memory | Function=init
// REMARK-DAG: remark: [Analysis] memory | Category:plan-assign-memory | Function=step
// REMARK-DAG: remark: [Analysis] memory | Category:plan-assign-memory | Function=eval

// Inputs and losses are a program's own, and lie apart from what comes and goes in the other one.
// RUN: FileCheck %s --check-prefix=PLAN --input-file=%t.plan.mlir
// PLAN-DAG: plan.buffer shard @root at
// PLAN-DAG: plan.buffer input @step number 0 at {{[0-9]+}} : tensor<4xf32>
// PLAN-DAG: plan.buffer input @eval number 0 at {{[0-9]+}} : tensor<8xf32>
// PLAN-DAG: plan.buffer loss @step
// PLAN-DAG: plan.buffer loss @eval
// PLAN: plan.program @init init {
// PLAN: plan.program @step {
// PLAN: plan.program @eval {
// PLAN-NOT: <backward>
// PLAN: plan.meaning "mesh" is
// PLAN: plan.meaning "exp_avg w" of @step is
// PLAN: plan.meaning "loss" of @step is
// PLAN: plan.meaning "exp_avg w" of @eval is
// PLAN-NOT: plan.meaning "gradient w" of @eval
// PLAN: plan.meaning "loss" of @eval is

// The file keeps all of it.
// RUN: fsdp-translate --export-plan %t.plan.mlir -o %t.plan
// RUN: fsdp-translate --import-plan %t.plan -o %t.again.mlir
// RUN: fsdp-opt %t.again.mlir --plan-verify | FileCheck %s --check-prefix=PLAN

// Each is proved: a mistake in the evaluation alone is found.
// RUN: sed '/plan.program @eval/,$s/post = 2/post = 1/' %t.again.mlir > %t.wrong.mlir
// RUN: not fsdp-opt %t.wrong.mlir --plan-verify 2>&1 | FileCheck %s --check-prefix=WRONG
// WRONG: error: the end of program eval: expected the loss of the model, {{.*}} divided by 1 before and 2 after, {{.*}}; found

// All of these are about the same parameters.
// RUN: sed '/@eval/s/aten.param = "v"/aten.param = "u"/' %s > %t.other.mlir
// RUN: not fsdp-opt %t.other.mlir --fsdp-assign-units 2>&1 | FileCheck %s --check-prefix=OTHER
// OTHER: error: program 'eval' has the parameter "u", which program 'step' has not: expected programs over the same parameters

func.func @step(%w: tensor<4xf32> {aten.param = "w"}, %v: tensor<4xf32> {aten.param = "v"}, %x: tensor<4xf32> {aten.input = 0 : i64})
    -> (tensor<f32> {aten.loss}, tensor<4xf32> {aten.grad_of = "w"}) attributes {aten.program} {
  %table = aten.call "arange"(4) : () -> tensor<4xf32>
  %xs = aten.call "mul.Tensor"(%x, %table) {phase = #aten<phase forward>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %ys = aten.call "mul.Tensor"(%xs, %v) {phase = #aten<phase forward>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %loss = aten.call "dot"(%ys, %w) {phase = #aten<phase forward>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  %grad = aten.call "mul.Tensor"(%xs, %v) {phase = #aten<phase backward>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %loss, %grad : tensor<f32>, tensor<4xf32>
}

func.func @eval(%v: tensor<4xf32> {aten.param = "v"}, %w: tensor<4xf32> {aten.param = "w"}, %x: tensor<8xf32> {aten.input = 0 : i64})
    -> (tensor<f32> {aten.loss}) attributes {aten.program, fsdp.source = @eval.source} {
  %table = aten.call "arange"(4) : () -> tensor<4xf32>
  %long = aten.call "arange"(8) : () -> tensor<8xf32>
  %xl = aten.call "mul.Tensor"(%x, %long) {phase = #aten<phase forward>} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %xs = aten.call "view"(%xl, [2, 4]) {phase = #aten<phase forward>} : (tensor<8xf32>) -> tensor<2x4xf32>
  %vs = aten.call "mul.Tensor"(%v, %table) {phase = #aten<phase forward>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %ys = aten.call "mul.Tensor"(%xs, %vs) {phase = #aten<phase forward>} : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  %zs = aten.call "mv"(%ys, %w) {phase = #aten<phase forward>} : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2xf32>
  %loss = aten.call "sum"(%zs) {phase = #aten<phase forward>} : (tensor<2xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}
