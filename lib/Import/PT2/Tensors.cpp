//===- Tensors.cpp - Types, layouts and the content of tensors ------------===//
//
// What the archive says of tensors: their metadata, and the bytes of those that
// belong to the program.
//
//===----------------------------------------------------------------------===//

#include "Importer.h"

using namespace mlir;
using namespace fsdp;
using namespace fsdp::pt2;

/// Constants are part of the program's text: this is no way to ship weights.
static constexpr int64_t maxConstantBytes = int64_t(64) << 20;
static constexpr int64_t maxTotalBytes = int64_t(1) << 30;

FailureOr<Type> Importer::readElementType(const Cursor &cursor) {
  int64_t code = 0;
  if (failed(cursor.read(code)))
    return failure();
  std::optional<archive::DType> dtype = archive::getDTypeFromSchemaCode(code);
  if (!dtype)
    return cursor.expected("the number of an element type");
  return aten::getElementType(builder.getContext(),
                              archive::getMLIRName(*dtype));
}

LogicalResult Importer::readDevice(const Cursor &cursor,
                                   aten::DeviceAttr &attr) {
  Cursor type, index;
  StringRef name;
  if (failed(cursor.read({{"type", type}, {"index", index}})) ||
      failed(type.read(name)))
    return failure();
  std::optional<aten::Device> found = aten::symbolizeDevice(name);
  if (!found)
    return type.expected("'cpu' or 'cuda'");
  int64_t number = 0;
  if (!index.isNull() && failed(index.read(number)))
    return failure();
  if (device.value_or(*found) != *found)
    return type.expected("'" + aten::stringifyDevice(*device) +
                         "', the device of all tensors before");
  device = found;
  if (!index.isNull()) {
    if (deviceIndex.value_or(number) != number)
      return index.expected(Twine(*deviceIndex) +
                            ", the index of all devices before");
    deviceIndex = number;
  }
  attr = aten::DeviceAttr::get(builder.getContext(), *found);
  return success();
}

LogicalResult Importer::readLayout(const Cursor &cursor,
                                   aten::LayoutAttr &attr) {
  static constexpr aten::Layout layouts[] = {
      aten::Layout::SparseCOO, aten::Layout::SparseCSR, aten::Layout::SparseCSC,
      aten::Layout::SparseBSR, aten::Layout::SparseBSC};
  int64_t code = 0;
  if (failed(cursor.read(code)))
    return failure();
  if (code != 7 && (code < 1 || code > 5))
    return cursor.expected("the number of a layout");
  attr = aten::LayoutAttr::get(builder.getContext(), code == 7
                                                         ? aten::Layout::Strided
                                                         : layouts[code - 1]);
  return success();
}

FailureOr<RankedTensorType> Importer::readTensorType(const Cursor &meta) {
  Cursor dtype, sizes, strides, offset, deviceCursor, layout, requiresGrad;
  if (failed(meta.read({{"dtype", dtype},
                        {"sizes", sizes},
                        {"strides", strides},
                        {"storage_offset", offset},
                        {"device", deviceCursor},
                        {"layout", layout},
                        {"requires_grad", requiresGrad}})))
    return failure();
  FailureOr<Type> elementType = readElementType(dtype);
  aten::DeviceAttr device;
  aten::LayoutAttr layoutAttr;
  bool isLeaf = false;
  if (failed(elementType) || failed(readDevice(deviceCursor, device)) ||
      failed(readLayout(layout, layoutAttr)) ||
      failed(requiresGrad.read(isLeaf)))
    return failure();
  if (layoutAttr.getValue() != aten::Layout::Strided)
    return layout.error() << "sparse tensors are not supported";

  // Whether a tensor with unknown sizes is dense is asked of the example's.
  SmallVector<int64_t, 6> shape, stride, exampleShape, exampleStride;
  auto readSizes = [&](const Cursor &cursor, SmallVectorImpl<int64_t> &values,
                       SmallVectorImpl<int64_t> &examples) {
    return cursor.forEachElement([&](const Cursor &size) {
      return symbols.readSize(size, values.emplace_back(),
                              examples.emplace_back());
    });
  };
  int64_t start = 0, exampleStart = 0;
  if (failed(readSizes(sizes, shape, exampleShape)) ||
      failed(readSizes(strides, stride, exampleStride)) ||
      failed(symbols.readSize(offset, start, exampleStart)))
    return failure();
  if (shape.size() != stride.size())
    return strides.expected("an array of " + Twine(shape.size()) +
                            ", one stride per dimension");
  int64_t elements = 1;
  for (int64_t size : exampleShape)
    if (llvm::MulOverflow(elements, std::max<int64_t>(size, 1), elements) ||
        elements > std::numeric_limits<int64_t>::max() / 16)
      return sizes.error() << "the tensor is too large";
  bool isDense =
      exampleStart == 0 && exampleStride == aten::getDenseStrides(exampleShape);
  aten::StridedAttr encoding;
  if (!isDense)
    encoding = aten::StridedAttr::get(builder.getContext(), stride, start);
  return RankedTensorType::get(shape, *elementType, encoding);
}

ArrayAttr Importer::readDims(const Cursor &meta) {
  SmallVector<Attribute> dims;
  Cursor sizes;
  // All of this has been read once, when the type was.
  (void)meta.read({{"sizes", sizes}});
  (void)sizes.forEachElement([&](const Cursor &size) {
    StringRef variant, text;
    Cursor content, expression;
    int64_t value = 0, example = 0;
    if (failed(symbols.readSize(size, value, example)) ||
        failed(size.readUnion(variant, content)))
      return failure();
    if (!ShapedType::isDynamic(value)) {
      dims.push_back(builder.getI64IntegerAttr(value));
      return success();
    }
    if (failed(content.read({{"expr_str", expression}})) ||
        failed(expression.read(text)))
      return failure();
    dims.push_back(
        builder.getStringAttr(symbols.getSymbol(text).value_or(text)));
    return success();
  });
  return builder.getArrayAttr(dims);
}

//===----------------------------------------------------------------------===//
// Content
//===----------------------------------------------------------------------===//

LogicalResult Importer::checkPayload(const Cursor &meta, const Input &input,
                                     RankedTensorType type,
                                     NamedAttrList &attrs) {
  if (input.role == Input::User)
    return success();
  bool isWeight = input.role == Input::Parameter || input.isPersistent;
  const archive::Payload *payload = isWeight ? archive.findWeight(input.name)
                                             : archive.findConstant(input.name);
  if (!payload)
    return meta.error() << "expected a tensor " << quote(input.name)
                        << " among the " << (isWeight ? "weights" : "constants")
                        << " of the archive, found none";
  Type elementType = aten::getElementType(builder.getContext(),
                                          archive::getMLIRName(payload->dtype));
  if (type.getElementType() != elementType ||
      type.getShape() != ArrayRef(payload->sizes))
    return meta.error() << "expected the shape and element type of "
                        << quote(input.name) << " in the archive, "
                        << RankedTensorType::get(payload->sizes, elementType)
                        << ", found " << type;
  if (isWeight || (!payload->hasBytes() && type.getNumElements() != 0))
    return success();
  // The elements of a small archive may overlap, and be many.
  if (type.getNumElements() > maxConstantBytes / aten::getItemSize(elementType))
    return meta.error() << "constants of more than 64 MiB are not supported";
  constantBytes += type.getNumElements() * aten::getItemSize(elementType);
  if (constantBytes > maxTotalBytes)
    return meta.error()
           << "constants of more than 1 GiB in all are not supported";
  FailureOr<DenseElementsAttr> elements = readElements(*payload, type);
  if (failed(elements))
    return failure();
  attrs.set(aten::ATenDialect::getValueAttrName(), *elements);
  return success();
}

FailureOr<DenseElementsAttr>
Importer::readElements(const archive::Payload &payload, RankedTensorType type) {
  // What has no elements may have no record.
  archive::Expected<std::string> record(std::string{});
  if (type.getNumElements() != 0)
    record = archive.readRecord(payload);
  if (!record)
    return emitError(UnknownLoc::get(builder.getContext()))
           << record.error().message;

  // The bytes of the window, dense and row-major. The archive has checked that
  // the window lies inside the record.
  size_t itemSize = archive::getItemSize(payload.dtype);
  SmallVector<char, 0> bytes;
  bytes.reserve(type.getNumElements() * itemSize);
  SmallVector<int64_t> place(type.getRank());
  for (int64_t i = 0, e = type.getNumElements(); i != e; ++i) {
    int64_t at = payload.storageOffset;
    for (auto [index, stride] : llvm::zip_equal(place, payload.strides))
      at += index * stride;
    const char *item = record->data() + at * itemSize;
    bytes.append(item, item + itemSize);
    for (int64_t dim = type.getRank(); dim-- > 0;) {
      if (++place[dim] != type.getDimSize(dim))
        break;
      place[dim] = 0;
    }
  }

  // Equal elements are one, as they are when read back from text.
  auto dense = RankedTensorType::get(type.getShape(), type.getElementType());
  bool isSplat = !bytes.empty() &&
                 StringRef(bytes.data(), bytes.size() - itemSize) ==
                     StringRef(bytes.data(), bytes.size()).drop_front(itemSize);
  ArrayRef<char> content = bytes;
  if (isSplat)
    content = content.take_front(itemSize);
  if (!type.getElementType().isInteger(1))
    return DenseElementsAttr::getFromRawBuffer(dense, content);
  // Truth values: PyTorch has a byte for each.
  SmallVector<bool, 0> truths(
      llvm::map_range(content, [](char c) { return c != 0; }));
  return DenseElementsAttr::get(dense, truths);
}
