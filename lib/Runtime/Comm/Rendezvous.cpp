//===- Rendezvous.cpp - The sessions of one run ---------------------------===//
#include "Rendezvous.h"

#include "../Support/Text.h"
#include "fsdp/Runtime/Processes/Agreement.h"

#include <utility>

using namespace fsdp;
using namespace std::chrono_literals;

/// How long a wait goes on before it looks at what else has happened.
static constexpr auto slice = 100ms;

Rendezvous::Rendezvous(std::shared_ptr<Store> given, RankRange here,
                       unsigned worldSize, std::chrono::milliseconds timeout)
    : store(std::move(given)), here(here), worldSize(worldSize),
      timeout(timeout) {
  if (!isAlone() && !store)
    throw Error("a session with some of the plan's ranks needs a store, where "
                "it meets the others");
}

void Rendezvous::watch(std::shared_ptr<Lifeline> shared,
                       std::function<void(const Error &)> onFailure) {
  if (isAlone())
    return;
  lifeline = shared ? std::move(shared)
                    : std::make_shared<Lifeline>(Lifeline::Options{store});
  subscription = lifeline->subscribe(std::move(onFailure));
}

Error Rendezvous::fail(const Error &error) {
  if (isAlone())
    return error;
  try {
    return tellFailure(*store, error);
  } catch (const std::exception &lost) {
    // Nobody can be told, and nobody can tell whether the rank that this one
    // blames had not only left because of another one.
    if (error.kind() != Failure::RankFailed)
      return error;
    return Error(std::string(error.what()) +
                     "; who failed first is not known: " + lost.what(),
                 error.kind());
  }
}

std::string Rendezvous::await(const std::string &key,
                              const std::function<std::string()> &describe) {
  auto end = std::chrono::steady_clock::now() + timeout;
  do {
    if (auto value = store->get(
            key, std::min<std::chrono::milliseconds>(slice, timeout)))
      return *value;
    if (auto failure = findFailure(*store, 0ms))
      throw Error(*failure);
  } while (std::chrono::steady_clock::now() < end);
  throw Error("waited " + spellSeconds(timeout) + " for " + describe());
}

void Rendezvous::meet(const std::string &deed) {
  if (isAlone())
    return;
  if (store->add(deed, here.count) == worldSize)
    store->set(deed + ": all", "");
  await(deed + ": all", [&] {
    return "all " + std::to_string(worldSize) + " ranks to " + deed + "; " +
           std::to_string(store->add(deed, 0)) + " have";
  });
}

std::string Rendezvous::share(const std::string &key,
                              const std::string &value) {
  if (isAlone())
    return value;
  if (here.first == 0) {
    store->set(key, value);
    return value;
  }
  return await(key, [&] { return "the " + key + " of rank 0"; });
}
