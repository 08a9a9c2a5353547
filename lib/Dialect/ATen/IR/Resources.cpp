//===- Resources.cpp - Long attributes at the end of a file ---------------===//
//
// The text of an attribute is a resource of the dialect: a string at the end of
// the file, which `--mlir-elide-resource-strings-if-larger` leaves out.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/ATen/IR/ATen.h"

#include "mlir/AsmParser/AsmParser.h"
#include "mlir/Bytecode/BytecodeImplementation.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/Diagnostics.h"

using namespace mlir;
using namespace fsdp::aten;

using Manager = ResourceHandle::ManagerInterface;

static AsmResourceBlob makeBlob(StringRef text) {
  return HeapAsmResourceBlob::allocateAndCopyInferAlign(
      ArrayRef(text.data(), text.size()));
}

static StringRef getText(const AsmResourceBlob &blob) {
  return {blob.getData().data(), blob.getData().size()};
}

namespace {
class AsmInterface : public OpAsmDialectInterface {
public:
  AsmInterface(Dialect *dialect, Manager &manager)
      : OpAsmDialectInterface(dialect), manager(manager) {}

  FailureOr<AsmDialectResourceHandle>
  declareResource(StringRef key) const final {
    return manager.insert(key);
  }

  std::string
  getResourceKey(const AsmDialectResourceHandle &handle) const final {
    return cast<ResourceHandle>(handle).getKey().str();
  }

  LogicalResult parseResource(AsmParsedResourceEntry &entry) const final {
    FailureOr<std::string> text = entry.parseAsString();
    if (failed(text))
      return failure();
    manager.update(entry.getKey(), makeBlob(*text));
    return success();
  }

  void buildResources(Operation *,
                      const SetVector<AsmDialectResourceHandle> &handles,
                      AsmResourceBuilder &builder) const final {
    for (const AsmDialectResourceHandle &each : handles)
      if (auto *handle = dyn_cast<ResourceHandle>(&each))
        if (const AsmResourceBlob *blob = handle->getBlob())
          builder.buildString(handle->getKey(), getText(*blob));
  }

private:
  Manager &manager;
};

/// Of the other attributes bytecode has their text, where a handle would be
/// declared a second time.
class BytecodeInterface : public BytecodeDialectInterface {
public:
  explicit BytecodeInterface(Dialect *dialect)
      : BytecodeDialectInterface(dialect) {}

  LogicalResult writeAttribute(Attribute attr,
                               DialectBytecodeWriter &writer) const final {
    auto resource = dyn_cast<ResourceAttr>(attr);
    if (!resource)
      return failure();
    writer.writeResourceHandle(resource.getHandle());
    return success();
  }

  Attribute readAttribute(DialectBytecodeReader &reader) const final {
    FailureOr<ResourceHandle> handle =
        reader.readResourceHandle<ResourceHandle>();
    return succeeded(handle) ? ResourceAttr::get(getContext(), *handle)
                             : Attribute();
  }
};
} // namespace

void ATenDialect::registerResources() {
  addInterface<AsmInterface>(addInterface<Manager>());
  addInterface<BytecodeInterface>();
}

ResourceAttr ResourceAttr::get(StringRef key, Attribute value) {
  std::string text;
  llvm::raw_string_ostream(text) << value;
  auto *dialect = value.getContext()->getLoadedDialect<ATenDialect>();
  return get(
      value.getContext(),
      dialect->getRegisteredInterface<Manager>()->insert(key, makeBlob(text)));
}

Attribute ResourceAttr::read() const {
  ScopedDiagnosticHandler quiet(getContext(), [](Diagnostic &) {});
  const AsmResourceBlob *blob = getHandle().getBlob();
  return blob ? parseAttribute(getText(*blob), getContext()) : Attribute();
}

DictionaryAttr fsdp::aten::getClasses(ModuleOp module) {
  Attribute classes = module->getAttr(ATenDialect::getClassesAttrName());
  if (auto resource = dyn_cast_or_null<ResourceAttr>(classes))
    classes = resource.read();
  return dyn_cast_or_null<DictionaryAttr>(classes);
}
