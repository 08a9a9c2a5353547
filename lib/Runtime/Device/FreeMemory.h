//===- FreeMemory.h - How much memory can be taken --------------*- C++ -*-===//
#ifndef FSDP_LIB_RUNTIME_DEVICE_FREEMEMORY_H
#define FSDP_LIB_RUNTIME_DEVICE_FREEMEMORY_H

#include <cstdint>
#include <string>

namespace fsdp {

/// Bytes that this process can take without swapping: what the machine has
/// free or can drop, and what the limits of the process's control groups leave.
/// `root`: where /proc and /sys are, ending in a slash.
std::uint64_t freeMemory(const std::string &root = "/");

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_DEVICE_FREEMEMORY_H
