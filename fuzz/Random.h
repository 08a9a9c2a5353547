//===- Random.h - What a mutator decides by ---------------------*- C++ -*-===//
//
// libFuzzer gives a seed with each mutation; all that follows from it is drawn
// from here, so that a run with a seed can be repeated.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_FUZZ_RANDOM_H
#define FSDP_FUZZ_RANDOM_H

#include <cstddef>
#include <random>

namespace fsdp::fuzz {

class Random {
public:
  explicit Random(unsigned seed) : engine(seed) {}

  /// A number below `count`, which is not 0.
  size_t below(size_t count) { return engine() % count; }

  /// True once in `count` times.
  bool once(size_t count) { return below(count) == 0; }

  template <typename List> auto &pick(List &list) {
    return list[below(list.size())];
  }

private:
  std::minstd_rand engine;
};

} // namespace fsdp::fuzz

#endif // FSDP_FUZZ_RANDOM_H
