//===- ImportPT2.cpp - From exported programs to the ATen dialect ---------===//
//
// The program as a whole: its version, metadata, inputs and outputs.
//
//===----------------------------------------------------------------------===//

#include "Importer.h"

#include "mlir/IR/Verifier.h"
#include "llvm/ADT/StringSwitch.h"

using namespace mlir;
using namespace fsdp;
using namespace fsdp::pt2;
using aten::ATenDialect;

Importer::Importer(const archive::PT2Archive &archive,
                   const ImportOptions &options, MLIRContext *context)
    : archive(archive), options(options), document{archive.path(), context},
      builder(context) {}

OwningOpRef<ModuleOp> Importer::run() {
  // The archive promises the bytes after the text that simdjson wants.
  std::string_view text = archive.modelJSON();
  simdjson::dom::element root;
  if (auto error = parser.parse(text.data(), text.size(), false).get(root)) {
    document.error() << "the program is not JSON: "
                     << simdjson::error_message(error);
    return {};
  }
  if (failed(readProgram(Cursor(document, root))) || failed(verify(*module)))
    return {};
  return std::move(module);
}

// Cursors that are kept (the metadata of names) point to those of this frame.
LogicalResult Importer::readProgram(const Cursor &root) {
  Cursor graphModule, ranges, version, torch;
  if (failed(root.read({{"graph_module", graphModule},
                        {"range_constraints", ranges},
                        {"schema_version", version},
                        {"torch_version", torch}})))
    return failure();
  StringRef torchText;
  if (failed(torch.read(torchText)))
    return failure();
  torchVersion = torchText;
  if (failed(readVersion(version)))
    return failure();

  Cursor graph, signature, metadata, graphInputs, graphOutputs, nodes, tensors,
      ints, bools, floats, inputSpecs, outputSpecs;
  if (failed(graphModule.read({{"graph", graph},
                               {"signature", signature},
                               {"metadata", metadata}})) ||
      failed(graph.read({{"inputs", graphInputs},
                         {"outputs", graphOutputs},
                         {"nodes", nodes},
                         {"tensor_values", tensors},
                         {"sym_int_values", ints},
                         {"sym_bool_values", bools},
                         {"sym_float_values", floats}})) ||
      failed(signature.read(
          {{"input_specs", inputSpecs}, {"output_specs", outputSpecs}})))
    return failure();
  if (failed(readGraphMetadata(metadata)) ||
      failed(symbols.parseBindings(document, options.bind)) ||
      failed(symbols.readRanges(ranges)) ||
      failed(readNames(tensors, Type())) ||
      failed(readNames(ints, builder.getI64Type())) ||
      failed(readNames(bools, builder.getI1Type())) ||
      failed(readNames(floats, builder.getF64Type())) ||
      failed(readInputs(graphInputs, inputSpecs)) ||
      failed(evaluateScalars()) || failed(orderParameters(inputSpecs)) ||
      failed(checkParameters(paramDtypes, inputSpecs)) ||
      failed(checkParameters(reduceDtypes, inputSpecs)) ||
      failed(addArguments()) ||
      failed(nodes.forEachElement(
          [&](const Cursor &node) { return readNode(node); })) ||
      failed(readOutputs(graphOutputs, outputSpecs)))
    return failure();
  for (const auto &entry : names)
    if (!entry.getValue().isDefined)
      return entry.getValue().meta.error()
             << "neither an input nor a node defines " << quote(entry.getKey());
  if (!gradientSeed.empty())
    return metadata.error()
           << "gradient_seed: there is no node " << quote(gradientSeed);
  finish();
  return success();
}

LogicalResult Importer::readVersion(const Cursor &version) {
  Cursor major, minor;
  int64_t majorNumber = 0, minorNumber = 0;
  if (failed(version.read({{"major", major}, {"minor", minor}})) ||
      failed(major.read(majorNumber)) || failed(minor.read(minorNumber)))
    return failure();
  if (majorNumber != 8)
    return major.expected("8, the schema of torch 2.9 and later");
  schemaVersion =
      std::to_string(majorNumber) + "." + std::to_string(minorNumber);
  return success();
}

//===----------------------------------------------------------------------===//
// Metadata and names
//===----------------------------------------------------------------------===//

LogicalResult Importer::readGraphMetadata(const Cursor &metadata) {
  std::optional<Cursor> custom = metadata.find("custom");
  StringRef text;
  if (!custom)
    return success();
  if (failed(custom->read(text)))
    return failure();
  // A text in a document lies in simdjson's buffer, which ends in padding.
  simdjson::dom::element element;
  if (metadataParser.parse(text.data(), text.size(), false).get(element))
    return custom->expected("JSON");
  Cursor root(*custom, element);

  if (std::optional<Cursor> seed = root.find("gradient_seed")) {
    if (failed(seed->read(text)))
      return failure();
    gradientSeed = text;
  }
  if (std::optional<Cursor> names = root.find("symbols")) {
    auto readName = [&](StringRef name, const Cursor &symbol) {
      return symbols.readName(name, symbol);
    };
    if (failed(names->forEachMember(readName)))
      return failure();
  }
  if (std::optional<Cursor> tied = root.find("tied")) {
    auto readAlias = [&](StringRef alias,
                         const Cursor &value) -> LogicalResult {
      StringRef primary;
      // An alias of a parameter that the step doesn't use has no other name.
      if (value.isNull())
        return success();
      if (failed(value.read(primary)))
        return failure();
      aliases[primary].push_back(alias);
      return success();
    };
    if (failed(tied->forEachMember(readAlias)))
      return failure();
  }
  if (std::optional<Cursor> list = root.find("inputs"))
    if (failed(list->forEachElement([&](const Cursor &value) -> LogicalResult {
          StringRef name;
          if (failed(value.read(name)))
            return failure();
          if (llvm::is_contained(inputNames, name))
            return value.error() << "input " << quote(name) << " occurs twice";
          inputNames.push_back(name);
          return success();
        })))
      return failure();
  if (failed(readDtypes(root, "param_dtype", paramDtypes)) ||
      failed(readDtypes(root, "reduce_dtype", reduceDtypes)))
    return failure();
  std::optional<Cursor> parameters = root.find("parameters");
  hasParameterOrder = parameters.has_value();
  if (!parameters)
    return success();
  return parameters->forEachElement([&](const Cursor &value) -> LogicalResult {
    StringRef name;
    if (failed(value.read(name)))
      return failure();
    if (!parameterOrder.try_emplace(name, parameterOrder.size()).second)
      return value.error() << "parameter " << quote(name) << " occurs twice";
    return success();
  });
}

LogicalResult Importer::readDtypes(const Cursor &metadata, StringRef key,
                                   llvm::StringMap<Type> &types) {
  std::optional<Cursor> names = metadata.find(key);
  if (!names)
    return success();
  return names->forEachMember(
      [&](StringRef name, const Cursor &value) -> LogicalResult {
        StringRef dtype;
        if (failed(value.read(dtype)))
          return failure();
        Type type = llvm::StringSwitch<Type>(dtype)
                        .Case("float16", builder.getF16Type())
                        .Case("bfloat16", builder.getBF16Type())
                        .Case("float32", builder.getF32Type())
                        .Case("float64", builder.getF64Type())
                        .Default(Type());
        types[name] = type;
        return type ? success()
                    : value.expected("float16, bfloat16, float32 or float64");
      });
}

LogicalResult Importer::readNames(const Cursor &values, Type scalarType) {
  return values.forEachMember(
      [&](StringRef name, const Cursor &meta) -> LogicalResult {
        auto [entry, inserted] = names.try_emplace(name);
        if (!inserted)
          return meta.error() << "the name " << quote(name) << " occurs twice";
        entry->second.meta = meta;
        entry->second.scalarType = scalarType;
        return success();
      });
}

LogicalResult Importer::evaluateScalars() {
  for (auto &entry : names) {
    NamedValue &name = entry.second;
    if (!name.scalarType)
      continue;
    StringRef variant;
    Cursor content, expression;
    if (failed(name.meta.readUnion(variant, content)))
      return failure();
    SmallVector<Value> none;
    if (variant != "as_expr") {
      if (failed(readScalar(name.meta, name.constant, none)))
        return failure();
      continue;
    }
    Known known;
    if (failed(content.read({{"expr_str", expression}})) ||
        failed(symbols.evaluate(expression, known)))
      return failure();
    if (!known)
      continue;
    if (name.scalarType.isF64())
      name.constant = builder.getF64FloatAttr(
          static_cast<double>(known->numerator) / known->denominator);
    else if (!known->isInteger())
      return expression.error()
             << "expected an integer, found " << known->numerator << "/"
             << known->denominator;
    else
      name.constant = builder.getIntegerAttr(name.scalarType, known->numerator);
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Inputs
//===----------------------------------------------------------------------===//

/// Calls `visit` for each pair of elements of two arrays of equal length.
static LogicalResult
forEachPair(const Cursor &left, const Cursor &right,
            function_ref<LogicalResult(const Cursor &, const Cursor &)> visit) {
  SmallVector<simdjson::dom::element> elements;
  if (failed(right.forEachElement([&](const Cursor &element) {
        elements.push_back(element.get());
        return success();
      })))
    return failure();
  size_t index = 0;
  if (failed(left.forEachElement([&](const Cursor &element) -> LogicalResult {
        if (index == elements.size())
          return right.error() << "expected one element per element of the "
                                  "graph, found only "
                               << index;
        Cursor other(right, elements[index], index);
        ++index;
        return visit(element, other);
      })))
    return failure();
  if (index != elements.size())
    return right.expected("an array of " + Twine(index) +
                          ", one element per element of the graph");
  return success();
}

LogicalResult Importer::readInputs(const Cursor &graphInputs,
                                   const Cursor &specs) {
  return forEachPair(graphInputs, specs,
                     [&](const Cursor &input, const Cursor &spec) {
                       return readInputSpec(input, spec);
                     });
}

/// Reads `{"as_tensor": {"name": ...}}`.
static LogicalResult readTensorName(const Cursor &argument, Cursor &name) {
  StringRef variant;
  Cursor content;
  if (failed(argument.readUnion(variant, content)))
    return failure();
  if (variant != "as_tensor")
    return argument.expected("as_tensor");
  // The path ends at the argument, which outlives `content`.
  std::optional<Cursor> field = content.find("name");
  if (!field)
    return argument.expected("a tensor with a name");
  name = Cursor(argument, field->get());
  return success();
}

LogicalResult Importer::readInputSpec(const Cursor &graphInput,
                                      const Cursor &spec) {
  StringRef kind;
  Cursor content, argument, modelName, persistent;
  if (failed(spec.readUnion(kind, content)))
    return failure();
  if (kind == "constant_input")
    return success();

  Input input;
  if (kind == "user_input") {
    input.role = Input::User;
    if (failed(content.read({{"arg", argument}})))
      return failure();
    StringRef variant;
    Cursor value;
    if (failed(argument.readUnion(variant, value)))
      return failure();
    // Whatever is no value was fixed when the program was captured.
    if (variant != "as_tensor" && variant != "as_sym_int")
      return success();
    Cursor name;
    if (failed(value.read(
            {{variant == "as_tensor" ? "name" : "as_name", name}})) ||
        failed(name.read(input.valueName)))
      return failure();
  } else {
    input.role = llvm::StringSwitch<Input::Role>(kind)
                     .Case("parameter", Input::Parameter)
                     .Case("buffer", Input::Buffer)
                     .Case("tensor_constant", Input::Constant)
                     .Default(Input::User);
    if (input.role == Input::User)
      return spec.expected("parameter, buffer, tensor_constant, user_input or "
                           "constant_input");
    std::string key = kind.str() + "_name";
    Cursor name;
    if (failed(content.read({{"arg", argument}, {key, modelName}})) ||
        failed(modelName.read(input.name)) ||
        failed(argument.read({{"name", name}})) ||
        failed(name.read(input.valueName)))
      return failure();
    if (kind == "buffer" &&
        (failed(content.read({{"persistent", persistent}})) ||
         failed(persistent.read(input.isPersistent))))
      return failure();
  }

  StringRef variant, graphName;
  Cursor value, name;
  if (failed(graphInput.readUnion(variant, value)) ||
      failed(
          value.read({{variant == "as_sym_int" ? "as_name" : "name", name}})) ||
      failed(name.read(graphName)))
    return failure();
  if (graphName != input.valueName)
    return name.expected(quote(input.valueName) +
                         ", as the signature says of this input");

  FailureOr<NamedValue *> info = lookup(name);
  if (failed(info))
    return failure();
  if ((*info)->isDefined)
    return name.error() << "the name " << quote(graphName)
                        << " is defined twice";
  (*info)->isDefined = true;
  input.value = *info;
  if (input.role == Input::User && !(*info)->scalarType) {
    Cursor sizes;
    if (failed((*info)->meta.read({{"sizes", sizes}})) ||
        failed(sizes.forEachElement(
            [&](const Cursor &size) { return symbols.takeHint(size); })))
      return failure();
  }
  inputs.push_back(input);
  return success();
}

LogicalResult Importer::orderParameters(const Cursor &specs) {
  // An input whose value is known needs no argument.
  llvm::erase_if(inputs,
                 [](const Input &input) { return input.value->constant; });
  size_t numUser = 0;
  for (auto [index, input] : llvm::enumerate(inputs)) {
    input.index = input.role == Input::User ? numUser++ : index;
    if (input.role != Input::Parameter || !hasParameterOrder)
      continue;
    std::optional<size_t> place;
    auto consider = [&](StringRef name) {
      auto found = parameterOrder.find(name);
      if (found != parameterOrder.end())
        place = std::min(place.value_or(found->second), found->second);
    };
    consider(input.name);
    for (StringRef alias : aliases.lookup(input.name))
      consider(alias);
    if (!place)
      return specs.error() << "parameter " << quote(input.name)
                           << " is not in the metadata's list of parameters";
    input.index = *place;
  }
  llvm::sort(inputs, [](const Input &a, const Input &b) {
    return std::tie(a.role, a.index) < std::tie(b.role, b.index);
  });
  for (auto [index, input] : llvm::enumerate(inputs)) {
    if (input.role == Input::User)
      input.name = input.valueName;
    if (!inputIndices.try_emplace({input.role, input.name}, index).second)
      return specs.error() << "two inputs are called " << quote(input.name);
  }
  return success();
}

Input *Importer::findInput(Input::Role role, StringRef name) {
  auto found = inputIndices.find({role, name});
  return found == inputIndices.end() ? nullptr : &inputs[found->second];
}

static Location getNameLoc(Builder &builder, StringRef name) {
  return NameLoc::get(builder.getStringAttr(name));
}

/// Reports an error unless all names are of parameters.
LogicalResult Importer::checkParameters(const llvm::StringMap<Type> &types,
                                        const Cursor &specs) {
  for (StringRef name : types.keys())
    if (!findInput(Input::Parameter, name))
      return specs.error() << "there is no parameter " << quote(name)
                           << ", for which the metadata has a dtype";
  return success();
}

LogicalResult Importer::addArguments() {
  SmallVector<Type> types;
  SmallVector<Attribute> attrs;
  for (const Input &input : inputs) {
    NamedAttrList list;
    if (input.value->scalarType) {
      types.push_back(input.value->scalarType);
    } else {
      FailureOr<RankedTensorType> type = readTensorType(input.value->meta);
      if (failed(type) ||
          failed(checkPayload(input.value->meta, input, *type, list)))
        return failure();
      types.push_back(*type);
      if (input.role == Input::User && !type->hasStaticShape())
        list.set(ATenDialect::getDimsAttrName(), readDims(input.value->meta));
    }
    StringAttr name = builder.getStringAttr(input.name);
    switch (input.role) {
    case Input::Parameter: {
      list.set(ATenDialect::getParamAttrName(), name);
      auto found = aliases.find(input.name);
      if (found != aliases.end())
        list.set(ATenDialect::getAliasesAttrName(),
                 builder.getStrArrayAttr(found->second));
      if (Type type = paramDtypes.lookup(input.name))
        list.set(ATenDialect::getParamDtypeAttrName(), TypeAttr::get(type));
      if (Type type = reduceDtypes.lookup(input.name))
        list.set(ATenDialect::getReduceDtypeAttrName(), TypeAttr::get(type));
      break;
    }
    case Input::Buffer:
      list.set(ATenDialect::getBufferAttrName(), name);
      if (input.isPersistent)
        list.set(ATenDialect::getPersistentAttrName(), builder.getUnitAttr());
      break;
    case Input::Constant:
      list.set(ATenDialect::getConstantAttrName(), name);
      break;
    case Input::User:
      list.set(ATenDialect::getInputAttrName(),
               builder.getI64IntegerAttr(input.index));
      if (input.index < inputNames.size())
        list.set(ATenDialect::getInputNameAttrName(),
                 builder.getStringAttr(inputNames[input.index]));
      break;
    }
    attrs.push_back(list.getDictionary(builder.getContext()));
  }

  Location loc = builder.getUnknownLoc();
  module = ModuleOp::create(loc);
  builder.setInsertionPointToEnd(module->getBody());
  function = func::FuncOp::create(builder, loc, "step",
                                  builder.getFunctionType(types, {}));
  function->setAttr(ATenDialect::getProgramAttrName(), builder.getUnitAttr());
  function.setArgAttrsAttr(builder.getArrayAttr(attrs));
  Block *body = builder.createBlock(&function.getBody());
  for (auto [input, type] : llvm::zip_equal(inputs, types))
    input.value->value =
        body->addArgument(type, getNameLoc(builder, input.valueName));
  return success();
}

//===----------------------------------------------------------------------===//
// Outputs
//===----------------------------------------------------------------------===//

LogicalResult Importer::readOutputs(const Cursor &outputs,
                                    const Cursor &specs) {
  if (failed(forEachPair(
          outputs, specs,
          [&](const Cursor &output, const Cursor &spec) -> LogicalResult {
            NamedAttrList attrs;
            Value value;
            if (failed(readOutputSpec(output, spec, attrs, value)))
              return failure();
            if (!value)
              return success();
            results.push_back(value);
            resultAttrs.push_back(attrs.getDictionary(builder.getContext()));
            return success();
          })))
    return failure();
  for (const Input &input : inputs)
    if (input.hasGradient && !hasLoss)
      return specs.error() << "there are gradients, but no loss";
  return success();
}

LogicalResult Importer::checkLoss(const Cursor &where, Value loss) {
  auto type = dyn_cast<RankedTensorType>(loss.getType());
  if (!type || type.getRank() != 0 || !isa<FloatType>(type.getElementType()))
    return where.error()
           << "expected the loss to be one floating-point number, a tensor "
              "without dimensions, found "
           << loss.getType();
  if (hasLoss)
    return where.error() << "expected one loss, found another";
  hasLoss = true;
  return success();
}

LogicalResult Importer::readOutputSpec(const Cursor &output, const Cursor &spec,
                                       NamedAttrList &attrs, Value &value) {
  StringRef kind, variant;
  Cursor content, argument, specName, graphName;
  if (failed(spec.readUnion(kind, content)))
    return failure();
  if (kind == "user_input_mutation" || kind == "parameter_mutation")
    return spec.error() << "a program that changes its inputs or parameters in "
                           "place is not supported";
  if (kind == "user_output") {
    Cursor scalar;
    int64_t number = numOutputs++;
    if (failed(content.read({{"arg", argument}})) ||
        failed(argument.readUnion(variant, scalar)))
      return failure();
    // An output that is no tensor is known before the step runs.
    if (variant != "as_tensor")
      return success();
    attrs.set(ATenDialect::getOutputAttrName(),
              builder.getI64IntegerAttr(number));
    if (failed(readTensorName(argument, specName)))
      return failure();
  } else {
    if (failed(content.read({{"arg", argument}})) ||
        failed(argument.read({{"name", specName}})))
      return failure();
  }

  StringRef name;
  if (failed(specName.read(name)) || failed(readTensorName(output, graphName)))
    return failure();
  FailureOr<NamedValue *> info = lookup(graphName);
  if (failed(info))
    return failure();
  StringRef nameInGraph;
  if (failed(graphName.read(nameInGraph)))
    return failure();
  if (nameInGraph != name)
    return graphName.expected(quote(name) +
                              ", as the signature says of this output");
  value = (*info)->value;
  if (!value)
    return graphName.error() << quote(name) << " is not defined";
  if (kind == "user_output")
    return success();
  if (kind == "loss_output") {
    ++numOutputs;
    attrs.set(ATenDialect::getLossAttrName(), builder.getUnitAttr());
    return checkLoss(output, value);
  }

  // Gradients and mutations belong to an input of the same shape.
  struct Kind {
    StringRef name, key, attr;
    Input::Role role;
    bool Input::*flag;
  };
  static const Kind kinds[] = {
      {"gradient_to_parameter", "parameter_name",
       ATenDialect::getGradOfAttrName(), Input::Parameter, &Input::hasGradient},
      {"gradient_to_user_input", "user_input_name",
       ATenDialect::getGradOfInputAttrName(), Input::User, &Input::hasGradient},
      {"buffer_mutation", "buffer_name",
       ATenDialect::getBufferMutationAttrName(), Input::Buffer,
       &Input::isMutated}};
  const Kind *entry = llvm::find_if(
      kinds, [&](const Kind &entry) { return entry.name == kind; });
  if (entry == std::end(kinds))
    return spec.expected("user_output, loss_output, gradient_to_parameter, "
                         "gradient_to_user_input or buffer_mutation");
  Cursor targetName;
  StringRef target;
  if (failed(content.read({{entry->key, targetName}})) ||
      failed(targetName.read(target)))
    return failure();
  Input *input = findInput(entry->role, target);
  if (!input)
    return targetName.error() << "there is no input " << quote(target);
  if (std::exchange(input->*(entry->flag), true))
    return targetName.error()
           << "there is another output for " << quote(target);
  auto type = cast<RankedTensorType>(input->value->value.getType());
  auto found = dyn_cast<RankedTensorType>(value.getType());
  if (!found || found.getShape() != type.getShape() ||
      found.getElementType() != type.getElementType())
    return output.error() << "expected the shape and element type of "
                          << quote(target) << ", " << type << ", found "
                          << value.getType();
  if (entry->role == Input::User)
    attrs.set(entry->attr, builder.getI64IntegerAttr(input->index));
  else
    attrs.set(entry->attr, builder.getStringAttr(target));
  return success();
}

void Importer::finish() {
  func::ReturnOp::create(builder, builder.getUnknownLoc(), results);
  function.setFunctionType(builder.getFunctionType(
      function.getArgumentTypes(), ValueRange(results).getTypes()));
  function.setResAttrsAttr(builder.getArrayAttr(resultAttrs));
  if (!hasPhases)
    inferPhases();

  auto set = [&](StringRef name, Attribute value) {
    (*module)->setAttr(name, value);
  };
  if (device)
    set(ATenDialect::getDeviceAttrName(),
        aten::DeviceAttr::get(builder.getContext(), *device));
  set(ATenDialect::getParameterOrderAttrName(),
      builder.getStringAttr(hasParameterOrder ? "model" : "archive"));
  set(ATenDialect::getSourceAttrName(),
      builder.getDictionaryAttr(
          {builder.getNamedAttr("schema", builder.getStringAttr(schemaVersion)),
           builder.getNamedAttr("torch",
                                builder.getStringAttr(torchVersion))}));
  SmallVector<NamedAttribute> scopeClasses;
  for (auto [scope, name] : classes)
    scopeClasses.emplace_back(scope, name);
  set(ATenDialect::getClassesAttrName(),
      aten::ResourceAttr::get("classes",
                              builder.getDictionaryAttr(scopeClasses)));
  DictionaryAttr unbound = symbols.getUnbound(builder.getContext());
  if (!unbound.empty())
    set(ATenDialect::getSymbolsAttrName(), unbound);
}

//===----------------------------------------------------------------------===//
// Entry
//===----------------------------------------------------------------------===//

OwningOpRef<ModuleOp> fsdp::importPT2(StringRef path,
                                      const ImportOptions &options,
                                      MLIRContext *context) {
  context->loadDialect<ATenDialect, func::FuncDialect>();
  auto archive = archive::PT2Archive::open(path.str());
  if (!archive) {
    emitError(UnknownLoc::get(context)) << archive.error().message;
    return {};
  }
  return Importer(*archive, options, context).run();
}
