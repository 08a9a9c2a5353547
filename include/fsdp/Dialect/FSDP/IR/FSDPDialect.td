//===- FSDPDialect.td - The fsdp dialect and its types ------*- tablegen -*-===//
//
// The dialect of sharded training: the logical level says which communication
// is needed, the scheduled level when it happens.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_IR_FSDPDIALECT_TD
#define FSDP_DIALECT_FSDP_IR_FSDPDIALECT_TD

include "fsdp/Dialect/FSDP/IR/FSDPEnums.td"
include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/EnumAttr.td"
include "mlir/IR/OpBase.td"

//===----------------------------------------------------------------------===//
// Dialect
//===----------------------------------------------------------------------===//

def FSDP_Dialect : Dialect {
  let name = "fsdp";
  let cppNamespace = "::fsdp";
  let summary = "Fully sharded data parallel training";
  let description = [{
    Two levels share this dialect. At the *logical* level all values are pure:
    `fsdp.unshard` turns a shard into a gathered flat parameter, `fsdp.view`
    looks at one parameter inside it, `fsdp.reduce_scatter` and
    `fsdp.all_reduce` reduce gradients, and optimizer ops update state. At the
    *scheduled* level (`fsdp.async.*`) a collective is launched on a stream,
    yields a future and is waited for, and a gathered value has an end.

    Functions carry the roles of their arguments and results:

    | on | attribute | meaning |
    |---|---|---|
    | argument | `fsdp.unit = "h.0"` | a parameter belongs to that unit; without it, to the unit `root`, which is the root |
    | argument | `fsdp.root` | beside `fsdp.unit`: the unit is the root, whatever its name |
    | argument | `fsdp.ignored` | beside `fsdp.unit`: a parameter that is neither sharded nor reduced; each rank has its own |
    | argument, result | `fsdp.state = #fsdp.state<@h.0, exp_avg>` | state of a unit; the same state on both is one place in memory |
    | argument | `fsdp.hyper = 0 : i64` | the hyper-parameters of that decay group, set by the caller for each run |
    | argument | `fsdp.no_decay` | beside `fsdp.hyper`: the weight decay of the group is 0, whatever the caller sets |
    | argument | `fsdp.result = 0 : i64` | comes from that result of the function with `fsdp.init` |
    | operation | `fsdp.cost = 1200 : i64` | how long it is predicted to take, in nanoseconds |
    | launch | `fsdp.links = array<i32: 1024, 960>` | what it takes of the bandwidth of links in a node, and of those between nodes, in parts of 1024; collectives that run at once share them |
    | launch, wait | `fsdp.issue = 12 : i64` | the place at which it is to be issued, until the schedule is applied |
    | all-gather | `fsdp.after = array<i64: 9>` | the places of the reshards that it is to start after |
    | function | `fsdp.shared_core` | the durations are for a machine on which all streams of a rank share a core |
    | function | `fsdp.contention = 195 : i64` | while a collective runs, a computation that takes 1024 takes so much more |
    | function | `fsdp.clip_grad_norm = array<f64: 1.0, 2.0>` | the norm of all gradients is clipped: the largest one, and its order |
    | function | `fsdp.grad_scaler = array<f64: 65536.0, 2.0, 0.5, 2000.0>` | the loss is scaled: first by this, and how the scale grows, backs off, and after how many steps it grows |
    | function | `fsdp.no_decay = ["h.0.b"]` | the parameters that are in groups without weight decay |
    | function | `fsdp.sync_buffers = "mean"` | the buffers that it changes become the mean of all ranks', or with "broadcast" those of the first rank |
    | function | `fsdp.init` | runs once, ahead of all programs |
    | function | `fsdp.source = @step.source` | the model that the program was made from, as it was before sharding; no pass changes it |
    | function | `fsdp.part = #fsdp.part<first>` | a program for one micro-batch of a step: the first one, one between, or the last one |
    | unit | `fsdp.reductions = [#fsdp.reduction<over ["shard"] divide <pre = 2, post = 2> via f32 to f32>]` | how its gradients are reduced, where it is not as `fsdp-shard` does it |
    | module | `fsdp.micro_batches = 4 : i64` | how many micro-batches a step has |
    | module | `fsdp.mean_loss` | beside `fsdp.micro_batches`: the loss of a step is the mean of theirs, so each starts its backward with a part of 1 |

    Buffers keep their role from the aten level. A buffer that the step changes
    is state as well: `aten.buffer` on the argument and `aten.buffer_mutation` on
    the result have the same name.

    **Constraints** of these attributes:

    * F1: the name is one of the above, and stands where the table says.
    * F2: the attribute has the kind that the table shows.
    * F3: a state stands on a value of type `!fsdp.shard`, an
      `unsharded_gradient` on a tensor, an `unsharded_parameter` on an
      `!fsdp.gathered`, hyper-parameters on a `tensor<7xf64>`; the
      number of a decay group is at least 0.
    * F4: `fsdp.no_decay` stands on hyper-parameters.
  }];
  let useDefaultTypePrinterParser = 1;
  let useDefaultAttributePrinterParser = 1;
  let dependentDialects = ["::fsdp::aten::ATenDialect"];
  let hasOperationAttrVerify = 1;
  let hasRegionArgAttrVerify = 1;
  let hasRegionResultAttrVerify = 1;
  let extraClassDeclaration = [{
    /// The names of the attributes that the table in the description explains.
    static llvm::StringRef getUnitAttrName() { return "fsdp.unit"; }
    static llvm::StringRef getRootAttrName() { return "fsdp.root"; }
    static llvm::StringRef getIgnoredAttrName() { return "fsdp.ignored"; }
    static llvm::StringRef getStateAttrName() { return "fsdp.state"; }
    static llvm::StringRef getHyperAttrName() { return "fsdp.hyper"; }
    static llvm::StringRef getNoDecayAttrName() { return "fsdp.no_decay"; }
    static llvm::StringRef getResultAttrName() { return "fsdp.result"; }
    static llvm::StringRef getCostAttrName() { return "fsdp.cost"; }
    static llvm::StringRef getLinksAttrName() { return "fsdp.links"; }
    static llvm::StringRef getIssueAttrName() { return "fsdp.issue"; }
    static llvm::StringRef getAfterAttrName() { return "fsdp.after"; }
    static llvm::StringRef getSharedCoreAttrName() { return "fsdp.shared_core"; }
    static llvm::StringRef getContentionAttrName() { return "fsdp.contention"; }
    static llvm::StringRef getClipGradNormAttrName() { return "fsdp.clip_grad_norm"; }
    static llvm::StringRef getSyncBuffersAttrName() { return "fsdp.sync_buffers"; }
    static llvm::StringRef getGradScalerAttrName() { return "fsdp.grad_scaler"; }
    static llvm::StringRef getInitAttrName() { return "fsdp.init"; }
    static llvm::StringRef getSourceAttrName() { return "fsdp.source"; }
    static llvm::StringRef getPartAttrName() { return "fsdp.part"; }
    static llvm::StringRef getReductionsAttrName() { return "fsdp.reductions"; }
    static llvm::StringRef getMicroBatchesAttrName() { return "fsdp.micro_batches"; }
    static llvm::StringRef getMeanLossAttrName() { return "fsdp.mean_loss"; }

  private:
    void registerAttributes();
    void registerTypes();

  public:
  }];
}

//===----------------------------------------------------------------------===//
// Types
//===----------------------------------------------------------------------===//

class FSDP_Type<string name, string typeMnemonic>
    : TypeDef<FSDP_Dialect, name> {
  let mnemonic = typeMnemonic;
  let genVerifyDecl = 1;
}

// Device memory, if nothing is said.
def FSDP_SpaceParameter : EnumParameter<FSDP_MemorySpace> {
  let defaultValue = "::fsdp::MemorySpace::Device";
}

def FSDP_ShardType : FSDP_Type<"Shard", "shard"> {
  let summary = "one rank's shard of a flat tensor";
  let description = [{
    The flat tensor has `numel` elements and is split into `shards` pieces of equal
    length; a value is one of them. Used for parameters, reduced gradients and
    optimizer state, and for what `fsdp.piece` keeps of a gathered parameter. A
    shard that is offloaded lies in host memory: its type says so.

    Example:

    ```mlir
    !fsdp.shard<12704xf32, 4>
    !fsdp.shard<12704xf32, 4, host>
    ```

    **Constraints**:

    * T1: there are at most 2^40 elements.
    * T2: elements are floats.
    * T3: the number of shards is positive and divides the number of elements.
  }];
  let parameters = (ins "int64_t":$numel, "::mlir::Type":$elementType, "int64_t":$shards,
                        FSDP_SpaceParameter:$space);
  let assemblyFormat = "`<` custom<FlatShape>($numel, $elementType) `,` $shards (`,` $space^)? `>`";
  let builders = [TypeBuilder<(ins "int64_t":$numel, "::mlir::Type":$elementType, "int64_t":$shards), [{
    return $_get($_ctxt, numel, elementType, shards, MemorySpace::Device);
  }]>];
  let extraClassDeclaration = [{
    bool isOnHost() const { return getSpace() == MemorySpace::Host; }
    /// The same in that memory.
    ShardType in(MemorySpace space) const {
      return get(getContext(), getNumel(), getElementType(), getShards(), space);
    }
    /// How many elements one rank has.
    int64_t getLocalNumel() const { return getNumel() / getShards(); }
  }];
}

def FSDP_GatheredType : FSDP_Type<"Gathered", "gathered"> {
  let summary = "a whole flat parameter, in compute dtype";
  let description = [{
    Not a tensor: it is entered only through `fsdp.view`, so that "use after
    reshard" is a question about one value and its views.

    Example:

    ```mlir
    !fsdp.gathered<12704xbf16>
    ```

    **Constraints**: T1 and T2 of `!fsdp.shard`.
  }];
  let parameters = (ins "int64_t":$numel, "::mlir::Type":$elementType);
  let assemblyFormat = "`<` custom<FlatShape>($numel, $elementType) `>`";
}

def FSDP_FutureType : FSDP_Type<"Future", "future"> {
  let summary = "the result of a launched collective";
  let description = [{
    Linear: consumed by exactly one `fsdp.async.wait` on every path, which
    `--fsdp-verify-futures` checks.

    Example:

    ```mlir
    !fsdp.future<!fsdp.gathered<12704xbf16>>
    ```

    **Constraints**:

    * T4: what is in flight is a gathered parameter, a shard or a tensor.
  }];
  let parameters = (ins "::mlir::Type":$valueType);
  let assemblyFormat = "`<` $valueType `>`";
}

def FSDP_TokenType : FSDP_Type<"Token", "token">,
    BuildableType<"::fsdp::TokenType::get($_builder.getContext())"> {
  let summary = "a gathered unit has been freed";
  let description = [{
    Result of `fsdp.async.reshard`: what names it starts when all that used the
    gathered unit is done.

    Example:

    ```mlir
    !fsdp.token
    ```
  }];
  let genVerifyDecl = 0;
}

#endif // FSDP_DIALECT_FSDP_IR_FSDPDIALECT_TD
