//===- PlanMutator.h - Damages the fields of a plan -------------*- C++ -*-===//
//
// Changes fields where they lie and vectors as a whole, so that most of what
// comes out is a well-formed FlatBuffer; checksum and digests are made to fit.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_FUZZ_PLANMUTATOR_H
#define FSDP_FUZZ_PLANMUTATOR_H

#include "Random.h"

#include <cstdint>
#include <vector>

namespace fsdp::fuzz {

/// `file`: a whole plan file, of any content.
std::vector<uint8_t> mutatePlan(std::vector<uint8_t> file, Random &random,
                                size_t maxSize);

} // namespace fsdp::fuzz

#endif // FSDP_FUZZ_PLANMUTATOR_H
