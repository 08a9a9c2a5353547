//===- CheckpointJSON.h - Parts of manifests and lists ----------*- C++ -*-===//
#ifndef FSDP_LIB_ARCHIVE_CHECKPOINTJSON_H
#define FSDP_LIB_ARCHIVE_CHECKPOINTJSON_H

#include "JSONCursor.h"

namespace fsdp::archive {

/// A manifest or a list: at most 1 GiB.
Expected<std::string> readText(const std::string &path);

/// "0123456789abcdef"
Expected<uint64_t> readChecksum(const JSONCursor &value);

/// A member that is a number from `least` to `most`.
Expected<int64_t> readCount(const JSONCursor &object, const char *name,
                            int64_t least, int64_t most);

} // namespace fsdp::archive

#endif // FSDP_LIB_ARCHIVE_CHECKPOINTJSON_H
