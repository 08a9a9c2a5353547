//===- Nodes.cpp - Nodes become calls -------------------------------------===//
//
// Targets, metadata and phases of nodes.
//
//===----------------------------------------------------------------------===//

#include "Importer.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace fsdp;
using namespace fsdp::pt2;

//===----------------------------------------------------------------------===//
// Targets
//===----------------------------------------------------------------------===//

FailureOr<Target *> Importer::readTarget(const Cursor &cursor) {
  StringRef text;
  if (failed(cursor.read(text)))
    return failure();
  auto [entry, inserted] = targets.try_emplace(text);
  if (!inserted)
    return &entry->second;

  // Operators of PyTorch, or Python functions on symbolic scalars.
  StringRef rest = text;
  bool isOperator = rest.consume_front("torch.ops.");
  auto [space, name] = rest.split('.');
  if (space == "higher_order")
    return cursor.error() << "the higher-order operator " << quote(name)
                          << " is not supported";
  if (!llvm::all_of(text, llvm::isPrint) ||
      (!isOperator && space != "_operator" && space != "math" &&
       space != "torch"))
    return cursor.expected(
        "an operator: torch.ops.<namespace>.<name>.<overload>");
  if (isOperator && !name.contains('.'))
    return cursor.expected("an operator with an overload");
  if (name.ends_with(".default"))
    name = name.drop_back(strlen(".default"));
  std::string spelling =
      isOperator && space == "aten" ? name.str() : (space + "::" + name).str();
  auto emitError = [&] { return cursor.error(); };
  Target &target = entry->second;
  target.name = aten::OpNameAttr::getChecked(
      function_ref<InFlightDiagnostic()>(emitError), builder.getContext(),
      StringRef(spelling));
  if (!target.name)
    return failure();
  target.facts = target.name.getFacts();
  if (!target.facts)
    return &target;
  if (target.facts->isMutating())
    return cursor.error() << "operator " << quote(name)
                          << " changes its arguments in place; capture the "
                             "program in functional form";
  if (const operators::OperatorSchema *schema =
          cast<aten::ATenDialect>(target.name.getDialect())
              .getSchema(*target.facts))
    target.parameters = schema->arguments;
  return &target;
}

LogicalResult Importer::checkArguments(const Cursor &inputs,
                                       const Target &target,
                                       size_t numPositional,
                                       ArrayRef<StringAttr> keywords) {
  if (!target.facts)
    return success();
  StringRef name = target.name.getName();
  if (numPositional + keywords.size() > target.parameters.size())
    return inputs.error() << "operator " << quote(name) << " takes "
                          << target.parameters.size() << " arguments, found "
                          << numPositional + keywords.size();
  for (const operators::OperatorSchema::Argument &parameter :
       ArrayRef(target.parameters).drop_front(numPositional))
    if (!parameter.fallback && llvm::none_of(keywords, [&](StringAttr keyword) {
          return keyword == parameter.name;
        }))
      return inputs.error() << "operator " << quote(name)
                            << " needs the argument " << quote(parameter.name);
  return success();
}

//===----------------------------------------------------------------------===//
// Metadata
//===----------------------------------------------------------------------===//

/// The path of a module in the model: "L['self'].layers[0].attn", which some
/// ways to capture write, is "layers.0.attn".
static std::string normalizePath(StringRef path) {
  if (!path.consume_front("L['self']"))
    return path.str();
  std::string result;
  for (char c : path) {
    if (c == '[')
      result += '.';
    else if (c != ']' && c != '\'' && c != '"')
      result += c;
  }
  return StringRef(result).ltrim('.').str();
}

StringAttr Importer::readModuleStack(StringRef stack) {
  auto [entry, inserted] = scopes.try_emplace(stack);
  if (!inserted)
    return entry->second;
  // Entries "key,path,class" from the root to the innermost module.
  for (StringRef item : llvm::split(stack, ';')) {
    auto [path, name] = item.split(',').second.split(',');
    entry->second = builder.getStringAttr(normalizePath(path));
    if (!entry->second.empty() && !name.empty())
      classes.insert({entry->second, builder.getStringAttr(name)});
  }
  return entry->second;
}

LogicalResult Importer::readNodeMetadata(const Cursor &metadata,
                                         StringAttr &scope,
                                         aten::PhaseAttr &phase) {
  return metadata.forEachMember(
      [&](StringRef key, const Cursor &value) -> LogicalResult {
        StringRef text;
        if (failed(value.read(text)))
          return failure();
        if (key == "nn_module_stack")
          scope = readModuleStack(text);
        if (key != "custom")
          return success();
        // A text in a document lies in simdjson's buffer, which ends in
        // padding.
        simdjson::dom::element element;
        if (nodeParser.parse(text.data(), text.size(), false).get(element))
          return value.expected("JSON");
        Cursor custom(value, element);
        std::optional<Cursor> found = custom.find("phase");
        if (!found)
          return success();
        StringRef word;
        if (failed(found->read(word)))
          return failure();
        if (word != "fw" && word != "bw")
          return found->expected("'fw' or 'bw'");
        phase = aten::PhaseAttr::get(builder.getContext(),
                                     word == "fw" ? aten::Phase::Forward
                                                  : aten::Phase::Backward);
        hasPhases = true;
        return success();
      });
}

void Importer::inferPhases() {
  // What the outputs other than gradients need is the forward.
  llvm::SetVector<Operation *> forward;
  auto need = [&](Value value) {
    if (Operation *op = value.getDefiningOp())
      forward.insert(op);
  };
  for (auto [result, attrs] : llvm::zip_equal(results, resultAttrs)) {
    auto roles = cast<DictionaryAttr>(attrs);
    if (!roles.contains(aten::ATenDialect::getGradOfAttrName()) &&
        !roles.contains(aten::ATenDialect::getGradOfInputAttrName()))
      need(result);
  }
  for (size_t i = 0; i < forward.size(); ++i)
    for (Value operand : forward[i]->getOperands())
      need(operand);
  for (auto call : function.getOps<aten::CallOp>())
    call.setPhase(forward.contains(call) || !hasLoss ? aten::Phase::Forward
                                                     : aten::Phase::Backward);
}

//===----------------------------------------------------------------------===//
// Nodes
//===----------------------------------------------------------------------===//

LogicalResult Importer::checkScalars(const Cursor &node, const Target &target,
                                     ArrayRef<Attribute> values, bool &isDone) {
  StringRef name = target.name.getName();
  bool isRange = name.starts_with("sym_constrain_range");
  isDone = (name == "_assert_scalar" || isRange) && !values.empty() &&
           !isa<aten::OperandAttr>(values.front());
  auto condition =
      isDone && !isRange ? dyn_cast<BoolAttr>(values.front()) : BoolAttr();
  if (condition && !condition.getValue())
    return node.error() << "with these sizes a condition of the program does "
                           "not hold";
  return success();
}

LogicalResult Importer::readNode(const Cursor &node) {
  Cursor targetCursor, inputsCursor, outputsCursor, metadata, nameCursor;
  if (failed(node.read({{"target", targetCursor},
                        {"inputs", inputsCursor},
                        {"outputs", outputsCursor},
                        {"metadata", metadata},
                        {"name", nameCursor}})))
    return failure();
  FailureOr<Target *> target = readTarget(targetCursor);
  if (failed(target))
    return failure();

  SmallVector<Attribute> values;
  SmallVector<StringAttr> keywords;
  SmallVector<Value> operands;
  auto readInput = [&](const Cursor &input) -> LogicalResult {
    Cursor name, argument, kind;
    int64_t code = 0;
    if (failed(
            input.read({{"name", name}, {"arg", argument}, {"kind", kind}})) ||
        failed(kind.read(code)))
      return failure();
    if (code != 1 && code != 2)
      return kind.expected("1 (positional) or 2 (by name)");
    if (code == 1 && !keywords.empty())
      return kind.expected("2: positional arguments come before named ones");
    StringRef keyword;
    if (failed(name.read(keyword)))
      return failure();
    if (code == 2) {
      StringAttr attr = builder.getStringAttr(keyword);
      if (llvm::is_contained(keywords, attr))
        return name.error()
               << "the argument " << quote(keyword) << " occurs twice";
      keywords.push_back(attr);
    }
    // Newer writers may call an argument otherwise, but none calls it by the
    // name of another.
    for (auto [place, parameter] : llvm::enumerate((*target)->parameters))
      if (code == 1 && parameter.name == keyword && place != values.size())
        return name.error()
               << "expected argument " << place
               << " of the operator, found argument " << values.size();
    return readArgument(argument, values.emplace_back(), operands);
  };
  if (failed(inputsCursor.forEachElement(readInput)) ||
      failed(checkArguments(inputsCursor, **target,
                            values.size() - keywords.size(), keywords)))
    return failure();

  SmallVector<Type> types;
  SmallVector<NamedValue *> names;
  if (failed(outputsCursor.forEachElement([&](const Cursor &output) {
        return readResult(output, types, names);
      })))
    return failure();

  // What only computes or checks known scalars is done.
  bool isDone = false;
  if (failed(checkScalars(node, **target, values, isDone)))
    return failure();
  if (isDone || (!names.empty() && llvm::all_of(names, [](NamedValue *name) {
        return name && name->constant;
      })))
    return success();

  StringAttr scope;
  aten::PhaseAttr phase;
  StringRef name;
  if (failed(readNodeMetadata(metadata, scope, phase)))
    return failure();
  if (!nameCursor.isNull() && failed(nameCursor.read(name)))
    return failure();
  Location loc = builder.getUnknownLoc();
  if (!name.empty())
    loc = NameLoc::get(builder.getStringAttr(name));
  auto emitError = [&] { return inputsCursor.error(); };
  auto args = aten::ArgsAttr::getChecked(
      function_ref<InFlightDiagnostic()>(emitError), builder.getContext(),
      ArrayRef(values), ArrayRef(keywords));
  if (!args)
    return failure();
  auto call = aten::CallOp::create(builder, loc, types, (*target)->name, args,
                                   scope, phase, operands);
  if (!name.empty() && name == gradientSeed) {
    call->setAttr(aten::ATenDialect::getGradientSeedAttrName(),
                  builder.getUnitAttr());
    gradientSeed.clear();
  }
  for (auto [result, info] : llvm::zip_equal(call.getResults(), names))
    if (info)
      info->value = result;
  return success();
}
