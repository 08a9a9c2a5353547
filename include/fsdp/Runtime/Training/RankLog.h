//===- RankLog.h - What each process notes for itself -----------*- C++ -*-===//
//
// Rank 0 alone reports. With --log FOLDER, every process also appends lines to
// FOLDER/rank-R.log: one JSON object when it begins, one for each step, and, if
// the run fails, one with the reason and its latest collectives.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_RUNTIME_TRAINING_RANKLOG_H
#define FSDP_RUNTIME_TRAINING_RANKLOG_H

#include <string>
#include <string_view>

namespace fsdp {

class RankLog {
public:
  /// Makes the folder if there is none. Throws if the file cannot be opened.
  /// No folder: what is written is lost.
  RankLog(const std::string &folder, unsigned rank);
  ~RankLog();
  RankLog(const RankLog &) = delete;
  RankLog &operator=(const RankLog &) = delete;

  bool isOpen() const { return file >= 0; }

  /// A line; from any thread. Throws if it is lost.
  void write(std::string_view line) const;

private:
  std::string path;
  int file = -1;
};

} // namespace fsdp

#endif // FSDP_RUNTIME_TRAINING_RANKLOG_H
