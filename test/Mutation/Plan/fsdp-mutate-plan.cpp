//===- fsdp-mutate-plan.cpp - Which damaged plans are accepted? -----------===//
//
// Makes random mutants of a plan file and asks the file check and the proof
// about each: thousands a second in one process. Those that are accepted go
// into a folder, with a line each: `field, file, what`. At the end, for each
// field, `field, tried, not a plan, not proved, accepted`.
//
//===----------------------------------------------------------------------===//

#include "Mutator.h"

#include "fsdp/PlanFile/PlanFile.h"
#include "fsdp/Symbolic/VerifyPlan.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>

using namespace fsdp;
using test::Mutator;

static std::string read(const char *path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw std::runtime_error(std::string(path) + ": cannot read the file");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The plan of a mutant, with the digests that belong to it.
static planfile::Expected<planfile::PlanFile>
seal(std::vector<uint8_t> &bytes) {
  while (true) {
    auto plan = planfile::PlanFile::seal("mutant", bytes.data(), bytes.size());
    constexpr std::string_view start = "mutant: digest[",
                               expected = "]: expected ";
    if (plan || plan.error().message.substr(0, start.size()) != start)
      return plan;
    std::string_view text = plan.error().message;
    auto index = std::strtoul(text.data() + start.size(), nullptr, 10);
    size_t at = text.find(expected);
    const auto *digests = planfile::GetPlan(bytes.data())->digest();
    if (at == text.npos || !digests || index >= digests->size() ||
        digests->Get(unsigned(index))->size() != 16)
      return plan;
    std::string_view digest = text.substr(at + expected.size(), 16);
    std::copy(digest.begin(), digest.end(),
              const_cast<char *>(digests->Get(unsigned(index))->c_str()));
  }
}

int main(int argc, char **argv) {
  if (argc != 6) {
    std::cerr << "usage: fsdp-mutate-plan SCHEMA PLAN COUNT SEED FOLDER\n";
    return 1;
  }
  try {
    auto plan = planfile::PlanFile::open(argv[2]);
    if (!plan)
      throw std::runtime_error(plan.error().message);
    Mutator mutator(read(argv[1]), plan->bytes().data());
    auto write = [&](const planfile::PlanFile &file, const std::string &name) {
      if (auto written = file.write(std::string(argv[5]) + "/" + name);
          !written)
        throw std::runtime_error(written.error().message);
    };
    std::vector<uint8_t> original = mutator.original();
    auto same = seal(original);
    if (!same)
      throw std::runtime_error(same.error().message);
    if (symbolic::Proof proof = symbolic::verifyPlan(same->plan()); !proof)
      throw std::runtime_error("the plan itself is rejected: " + proof.message);
    write(*same, "original.plan");

    std::mt19937_64 random(std::strtoull(argv[4], nullptr, 10));
    std::map<std::string, std::array<unsigned, 4>> counts;
    for (unsigned i = 0, end = unsigned(std::atoi(argv[3])); i != end; ++i) {
      Mutator::Mutant mutant = mutator.make(random, 1 + random() % 2);
      if (mutant.bytes == mutator.original())
        continue;
      auto &count = counts[mutant.field];
      ++count[0];
      auto file = seal(mutant.bytes);
      if (!file) {
        ++count[1];
      } else if (!symbolic::verifyPlan(file->plan())) {
        ++count[2];
      } else {
        ++count[3];
        std::string name = std::to_string(i) + ".plan";
        write(*file, name);
        std::cout << mutant.field << "\t" << name << "\t" << mutant.what
                  << "\n";
      }
    }
    for (const auto &[field, count] : counts) {
      std::cout << field;
      for (unsigned number : count)
        std::cout << "\t" << number;
      std::cout << "\n";
    }
  } catch (const std::exception &error) {
    std::cerr << "fsdp-mutate-plan: error: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
