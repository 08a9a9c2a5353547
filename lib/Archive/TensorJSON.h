//===- TensorJSON.h - Tensors in headers and manifests ----------*- C++ -*-===//
#ifndef FSDP_LIB_ARCHIVE_TENSORJSON_H
#define FSDP_LIB_ARCHIVE_TENSORJSON_H

#include "JSONCursor.h"
#include "fsdp/Archive/Safetensors.h"

namespace fsdp::archive {

/// The members "dtype" and "shape" of a tensor, of less than 2^63 bytes.
Expected<TensorSpec> readTensorSpec(const JSONCursor::Member &member);

} // namespace fsdp::archive

#endif // FSDP_LIB_ARCHIVE_TENSORJSON_H
