//===- Resident.cpp - The memory of this process --------------------------===//

#include "fsdp/Runtime/Training/Resident.h"

#include <fstream>
#include <malloc.h>
#include <sstream>
#include <string>

using namespace fsdp;

Resident fsdp::measureResident() {
  malloc_trim(0); // What is free is not resident then.
  Resident resident;
  // Exact; the figures in status lag by some pages of each thread.
  std::ifstream rollup("/proc/self/smaps_rollup");
  std::string key, rest;
  while (std::getline(rollup, rest)) {
    std::istringstream line(rest);
    std::int64_t kib = 0;
    if (!(line >> key >> kib))
      continue;
    if (key == "Rss:")
      resident.total = resident.files = 1024 * kib;
    else if (key == "Anonymous:")
      resident.files -= 1024 * kib;
  }
  struct mallinfo2 info = mallinfo2();
  resident.heap = static_cast<std::int64_t>(info.uordblks + info.hblkhd);
  return resident;
}
