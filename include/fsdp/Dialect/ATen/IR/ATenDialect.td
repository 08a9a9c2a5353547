//===- ATenDialect.td - The ATen dialect -------------------*- tablegen -*-===//
//
// The dialect itself and its attributes.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_ATEN_IR_ATENDIALECT_TD
#define FSDP_DIALECT_ATEN_IR_ATENDIALECT_TD

include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/DialectBase.td"
include "mlir/IR/EnumAttr.td"
include "mlir/IR/OpAsmInterface.td"
include "mlir/IR/TensorEncoding.td"

//===----------------------------------------------------------------------===//
// Dialect
//===----------------------------------------------------------------------===//

def ATen_Dialect : Dialect {
  let name = "aten";
  let summary = "What a training step computes, in PyTorch's own operators";
  let description = [{
    One generic operation, `aten.call`, stands for each of PyTorch's several
    thousand operators. What a pass must know of an operator (is it random, does
    it return a view, what does it cost) is looked up in a table of facts, so
    that an operator which no one has heard of imports, prints and is treated
    with caution, instead of being an error.

    A function imported from an exported program has its roles on its arguments
    and results:

    | on an argument | meaning |
    |---|---|
    | `aten.param = "h.0.weight"` | a parameter, by its name in the model |
    | `aten.aliases = ["lm_head.weight"]` | further names of a tied parameter |
    | `aten.param_dtype = bf16` | what the program casts the parameter to before it uses it |
    | `aten.storage_dtype = f32` | what the parameter is kept as, where the program takes it in another type |
    | `aten.reduce_dtype = f32` | the type in which the parameter's gradient is summed over ranks |
    | `aten.buffer = "inv_freq"` | a buffer, by its name in the model |
    | `aten.persistent` | the buffer is part of checkpoints |
    | `aten.constant = "c0"` | a tensor constant of the program |
    | `aten.value = dense<...>` | the content of a buffer or constant that no checkpoint has |
    | `aten.input = 0 : i64` | an input of the step, by its position |
    | `aten.input_name = "labels"` | what the model calls an input; each its own name |
    | `aten.dims = ["s70", 16]` | the sizes of an input, where some are symbols |

    | on a result | meaning |
    |---|---|
    | `aten.loss` | the loss |
    | `aten.grad_of = "h.0.weight"` | the gradient of a parameter |
    | `aten.grad_of_input = 0 : i64` | the gradient of an input |
    | `aten.buffer_mutation = "running_mean"` | the new content of a buffer |
    | `aten.output = 0 : i64` | an output for the user, by its position |

    The module may say `aten.device` (where the program was captured for),
    `aten.source` (which file, and who wrote it), `aten.classes` (the class of
    the module at each scope, here or in a `#aten.resource`), `aten.symbols` (the
    range of each symbolic size) and `aten.parameter_order` (`"model"` if the
    parameters stand in the order in which the model registers them, `"archive"`
    if that is not known).

    A function says `aten.program` if it is run as a whole: a captured graph.
    A call may say `aten.gradient_seed`: its result is the gradient of the loss by
    itself, where the backward begins. Who scales the loss scales this.

    **Constraints** of these attributes:

    * A1: the name is one of the above, and stands where the table says.
    * A2: the attribute has the kind that the table shows.
    * A3: an argument has at most one of `param`, `buffer`, `constant`, `input`;
      a result has at most one role.
    * A4: `aliases`, `param_dtype`, `storage_dtype` and `reduce_dtype` come with
      `param`, `persistent` with `buffer`, `dims` with `input`, and `value` with
      a `constant` or a `buffer` that is not `persistent`.
    * A5: `value` has the shape and element type of the argument.
    * A6: an argument of a program, or one with a role, has, or reaches with its
      strides, at most 2^40 elements.
    * A7: no two arguments of a function are the same parameter, buffer,
      constant or input; aliases count as names of parameters.
  }];
  let cppNamespace = "::fsdp::aten";
  let useDefaultAttributePrinterParser = 1;
  let hasOperationAttrVerify = 1;
  let hasRegionArgAttrVerify = 1;
  let hasRegionResultAttrVerify = 1;
  let extraClassDeclaration = [{
    /// The names of the attributes that the table in the description explains.
    static constexpr ::llvm::StringLiteral getParamAttrName() { return "aten.param"; }
    static constexpr ::llvm::StringLiteral getAliasesAttrName() { return "aten.aliases"; }
    static constexpr ::llvm::StringLiteral getParamDtypeAttrName() { return "aten.param_dtype"; }
    static constexpr ::llvm::StringLiteral getStorageDtypeAttrName() { return "aten.storage_dtype"; }
    static constexpr ::llvm::StringLiteral getReduceDtypeAttrName() { return "aten.reduce_dtype"; }
    static constexpr ::llvm::StringLiteral getBufferAttrName() { return "aten.buffer"; }
    static constexpr ::llvm::StringLiteral getPersistentAttrName() { return "aten.persistent"; }
    static constexpr ::llvm::StringLiteral getConstantAttrName() { return "aten.constant"; }
    static constexpr ::llvm::StringLiteral getValueAttrName() { return "aten.value"; }
    static constexpr ::llvm::StringLiteral getInputAttrName() { return "aten.input"; }
    static constexpr ::llvm::StringLiteral getInputNameAttrName() { return "aten.input_name"; }
    static constexpr ::llvm::StringLiteral getDimsAttrName() { return "aten.dims"; }
    static constexpr ::llvm::StringLiteral getLossAttrName() { return "aten.loss"; }
    static constexpr ::llvm::StringLiteral getGradOfAttrName() { return "aten.grad_of"; }
    static constexpr ::llvm::StringLiteral getGradOfInputAttrName() { return "aten.grad_of_input"; }
    static constexpr ::llvm::StringLiteral getBufferMutationAttrName() { return "aten.buffer_mutation"; }
    static constexpr ::llvm::StringLiteral getOutputAttrName() { return "aten.output"; }
    static constexpr ::llvm::StringLiteral getProgramAttrName() { return "aten.program"; }
    static constexpr ::llvm::StringLiteral getGradientSeedAttrName() { return "aten.gradient_seed"; }
    static constexpr ::llvm::StringLiteral getDeviceAttrName() { return "aten.device"; }
    static constexpr ::llvm::StringLiteral getSourceAttrName() { return "aten.source"; }
    static constexpr ::llvm::StringLiteral getClassesAttrName() { return "aten.classes"; }
    static constexpr ::llvm::StringLiteral getSymbolsAttrName() { return "aten.symbols"; }
    static constexpr ::llvm::StringLiteral getParameterOrderAttrName() { return "aten.parameter_order"; }

    /// The schema of a known operator, parsed at its first use; null if there
    /// is none.
    const operators::OperatorSchema *getSchema(const operators::OpFacts &facts);

  private:
    void registerAttributes();
    void registerResources();
    std::unique_ptr<detail::Schemas> schemas;

  public:
  }];
}

//===----------------------------------------------------------------------===//
// Enumerations
//===----------------------------------------------------------------------===//

class ATen_Enum<string name, string summary, list<I32EnumCase> cases>
    : I32Enum<name, summary, cases> {
  let cppNamespace = "::fsdp::aten";
}

def ATen_Phase : ATen_Enum<"Phase", "a part of the training step", [
    I32EnumCase<"Forward", 0, "forward">, I32EnumCase<"Backward", 1, "backward">,
    I32EnumCase<"Recompute", 2, "recompute">, I32EnumCase<"Update", 3, "update">]>;

def ATen_PhaseAttr : EnumAttr<ATen_Dialect, ATen_Phase, "phase">;

def ATen_Device : ATen_Enum<"Device", "a type of device", [
    I32EnumCase<"CPU", 0, "cpu">, I32EnumCase<"CUDA", 1, "cuda">]>;

def ATen_DeviceAttr : EnumAttr<ATen_Dialect, ATen_Device, "device">;

def ATen_Layout : ATen_Enum<"Layout", "how a tensor lies in memory", [
    I32EnumCase<"Strided", 0, "strided">, I32EnumCase<"SparseCOO", 1, "sparse_coo">,
    I32EnumCase<"SparseCSR", 2, "sparse_csr">, I32EnumCase<"SparseCSC", 3, "sparse_csc">,
    I32EnumCase<"SparseBSR", 4, "sparse_bsr">, I32EnumCase<"SparseBSC", 5, "sparse_bsc">]>;

def ATen_LayoutAttr : EnumAttr<ATen_Dialect, ATen_Layout, "layout">;

def ATen_MemoryFormat : ATen_Enum<"MemoryFormat", "an order of dimensions in memory", [
    I32EnumCase<"Contiguous", 0, "contiguous_format">,
    I32EnumCase<"ChannelsLast", 1, "channels_last">,
    I32EnumCase<"ChannelsLast3D", 2, "channels_last_3d">,
    I32EnumCase<"Preserve", 3, "preserve_format">]>;

def ATen_MemoryFormatAttr : EnumAttr<ATen_Dialect, ATen_MemoryFormat, "memory_format">;

//===----------------------------------------------------------------------===//
// Attributes
//===----------------------------------------------------------------------===//

class ATen_Attr<string name, string attrMnemonic, list<Trait> traits = []>
    : AttrDef<ATen_Dialect, name, traits> {
  let mnemonic = attrMnemonic;
}

def ATen_OpNameAttr : ATen_Attr<"OpName", "op"> {
  let summary = "the name of a PyTorch operator";
  let description = [{
    An operator and its overload: `mm` and `add.Tensor` of ATen itself,
    `myns::twice` or `myns::twice.out` of another namespace. The overload that
    PyTorch spells `default` has no name, as in the dispatcher.

    The attribute finds the facts of the operator when it is created, that is
    once per distinct name and not once per call.

    Example:

    ```mlir
    #aten.op<"add.Tensor">
    ```

    **Constraints**:

    * N1: the name is `[namespace::]operator[.overload]` of letters, digits and
      underscores.
    * N2: the default overload is not spelled out, nor is the namespace `aten`.
  }];
  let parameters = (ins StringRefParameter<>:$name);
  let assemblyFormat = "`<` $name `>`";
  let genStorageClass = 0;
  let storageClass = "OpNameAttrStorage";
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    /// What is known of the operator, or null.
    const operators::OpFacts *getFacts() const;
    /// The name with its namespace, as the dispatcher knows it:
    /// "aten::add.Tensor".
    std::string getQualifiedName() const;
  }];
}

def ATen_ResourceAttr : ATen_Attr<"Resource", "resource"> {
  let summary = "an attribute whose text stands at the end of the file";
  let description = [{
    Names a resource of the dialect: a string that holds an attribute too long to
    be read where it belongs. `--mlir-elide-resource-strings-if-larger` leaves it
    out.

    Example:

    ```mlir
    module attributes {aten.classes = #aten.resource<classes>} {
    }
    {-#
      dialect_resources: {
        aten: {
          classes: "{h.0 = \22models.Block\22}"
        }
      }
    #-}
    ```
  }];
  let parameters = (ins ResourceHandleParameter<"ResourceHandle">:$handle);
  let assemblyFormat = "`<` $handle `>`";
  let extraClassDeclaration = [{
    /// With another key if there is one of that name.
    static ResourceAttr get(::llvm::StringRef key, ::mlir::Attribute value);
    /// Null if the file has none, or what is no attribute.
    ::mlir::Attribute read() const;
  }];
}

def ATen_OperandAttr : ATen_Attr<"Operand", "operand"> {
  let summary = "the place of the next operand";
  let description = [{
    Stands in an argument template where a call has an operand. Places have no
    number: the first is the first operand and so on, so that calls which differ
    only in their operands share one template.
  }];
  let parameters = (ins);
  let assemblyFormat = "";
}

def ATen_ArgsAttr : ATen_Attr<"Args", "args"> {
  let summary = "the arguments of a call, with places for the operands";
  let description = [{
    Positional arguments, then named ones. An argument is one of

    * a place, written `?`;
    * `none`, an integer, a float, `true` or `false`, a string;
    * an element type, a device, a layout, a memory format, written as a word;
    * a list of such; lists may contain places.

    Example:

    ```mlir
    #aten.args<([?, none, ?], "mean", 1, [2, 3], dtype = f32, device = cpu)>
    ```

    **Constraints**:

    * G1: every value is one of the above: integers are `i64`, floats `f64`.
    * G2: lists are canonical: one of only integers, only floats or only
      booleans is a dense array, an empty one is an empty array of integers;
      lists do not contain lists.
    * G3: names are identifiers, no name occurs twice, and there are no more
      names than values.
  }];
  let parameters = (ins
    OptionalArrayRefParameter<"::mlir::Attribute">:$values,
    OptionalArrayRefParameter<"::mlir::StringAttr">:$keywords);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    /// The list of `elements` in its canonical form.
    static ::mlir::Attribute getList(::mlir::MLIRContext *context,
                                     ::llvm::ArrayRef<::mlir::Attribute> elements);
    /// How many operands `value`, one of the arguments, has places for.
    static unsigned countPlaces(::mlir::Attribute value);
    /// How many operands all arguments together have places for.
    unsigned countPlaces() const;
    /// How many arguments come without a name.
    unsigned getNumPositional() const {
      return getValues().size() - getKeywords().size();
    }
    /// The index among the values of the argument called `keyword`.
    std::optional<unsigned> find(::llvm::StringRef keyword) const;
  }];
}

def ATen_StridedAttr : ATen_Attr<"Strided", "strided",
    [DeclareAttrInterfaceMethods<VerifiableTensorEncoding>]> {
  let summary = "a layout that is not dense and row-major";
  let description = [{
    The strides of a tensor and the offset of its first element, both in
    elements and relative to the tensor's own storage. A dense row-major tensor
    at offset 0 has no layout, so that equal layouts are equal types. Strides of
    dimensions of size 1 count: they are what PyTorch reports.

    Example:

    ```mlir
    tensor<16x2x32xf32, #aten.strided<[32, 512, 1]>>
    tensor<2x3xf32, #aten.strided<[4, 1], offset = 4>>
    ```

    **Constraints**:

    * S1: there is one stride per dimension.
    * S2: strides and offset are not negative.
    * S3: the layout is not the dense one (checked where all sizes are known).
  }];
  let parameters = (ins ArrayRefParameter<"int64_t">:$strides, "int64_t":$offset);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
}

#endif // FSDP_DIALECT_ATEN_IR_ATENDIALECT_TD
