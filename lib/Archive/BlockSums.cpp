//===- BlockSums.cpp - What the blocks of a file add up to ----------------===//

#include "fsdp/Archive/BlockSums.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <xxhash.h>

using namespace fsdp::archive;

uint64_t fsdp::archive::checksum(std::string_view bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string fsdp::archive::spellChecksum(uint64_t sum) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx",
                static_cast<unsigned long long>(sum));
  return digits;
}

BlockSums BlockSums::of(const std::vector<std::string_view> &pieces) {
  BlockSums result;
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t *)> state(
      XXH3_createState(), XXH3_freeState);
  XXH3_64bits_reset(state.get());
  auto endBlock = [&] {
    result.sums.push_back(XXH3_64bits_digest(state.get()));
    XXH3_64bits_reset(state.get());
  };
  for (std::string_view piece : pieces)
    while (!piece.empty()) {
      uint64_t room = blockBytes - result.bytes % blockBytes;
      std::string_view part =
          piece.substr(0, std::min<uint64_t>(room, piece.size()));
      XXH3_64bits_update(state.get(), part.data(), part.size());
      result.bytes += part.size();
      piece.remove_prefix(part.size());
      if (result.bytes % blockBytes == 0)
        endBlock();
    }
  if (result.bytes % blockBytes != 0)
    endBlock();
  return result;
}
