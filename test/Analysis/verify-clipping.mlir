// A program that says that it clips the norm of its gradients does so.
// RUN: fsdp-opt %S/../Dialect/FSDP/Inputs/two_blocks.mlir --fsdp-shard=ranks=4 --fsdp-insert-optimizer="no-decay=b\.0" --fsdp-clip-gradients=clip-grad-norm=0.5 -o %t
// RUN: fsdp-opt %t --fsdp-verify-equivalence -o /dev/null

// A unit left out, or elements of it; measured twice, or otherwise.
// RUN: sed '/fsdp.measure/{n;n;s/ initial %%[a-z0-9_.#]*//}' %t | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=LEFT
// LEFT: error: {{.*}}expected measures of all gradients that are updated, found none of unit @
// RUN: sed 's/\(fsdp.measure squared_norm @b.1 \[0 to\) 16/\1 8/' %t | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=ELEMENTS
// ELEMENTS: error: {{.*}}expected parameter "b.1.w" to be measured, found element 8 in no interval
// RUN: sed 's/clip_factor squared_norm max_norm 5.000000e-01(\(.*\))/clip_factor squared_norm max_norm 5.000000e-01(\1, \1)/' %t | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=TWICE
// TWICE: error: {{.*}}to be measured once, found element 0 a second time
// RUN: sed 's/fsdp.measure squared_norm @b.1/fsdp.measure abs_sum @b.1/' %t | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=KIND
// KIND: error: {{.*}}expected a measure of the kind 'squared_norm', found another

// Another bound, another reduction, or none; no factor.
// RUN: sed 's/max_norm 5.000000e-01/max_norm 1.000000e+00/' %t | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=BOUND
// BOUND: error: {{.*}}expected the norm to be clipped as the program says, found another bound or order
// RUN: sed 's/post = 1> via f64/post = 2> via f64/' %t | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=REDUCTION
// RUN: sed 's/via f64/via f32/' %t | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=REDUCTION
// RUN: sed 's/via f64/via f64 max/' %t | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=REDUCTION
// REDUCTION: error: {{.*}}expected a measure to be the sum over ranks in f64, found another reduction
// RUN: sed '/for norm/s/over \["shard"\]/over ["replicate"]/' %t | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=AXES
// AXES: error: {{.*}}to be reduced over the axes ["shard"] along which it is sharded, found other axes
// RUN: sed '/adamw @b.1/s/ clip %%[a-z0-9_.#]*//' %t | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=FACTOR
// FACTOR: error: {{.*}}expected the gradient to be multiplied by the clip factor of the program alone, found no clip factor

// The group of a parameter is what the program says, too.
// RUN: sed 's/fsdp.no_decay = \[[^]]*\]/fsdp.no_decay = []/' %t | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=DECAY
// DECAY: error: {{.*}}expected parameter "b.0.w" to be updated with weight decay, as the program says
