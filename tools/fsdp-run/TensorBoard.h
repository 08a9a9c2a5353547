//===- TensorBoard.h - Event files, by a process of Python ------*- C++ -*-===//

#ifndef FSDP_TOOLS_FSDP_RUN_TENSORBOARD_H
#define FSDP_TOOLS_FSDP_RUN_TENSORBOARD_H

#include <cstdint>
#include <string>
#include <sys/types.h>

namespace fsdp {

/// A process that writes event files of what it is told (TensorBoard's library
/// does; it is Python). A training neither waits for it nor ends with it.
class TensorBoard {
public:
  /// Starts the process, and waits until it can write to `folder`, which it
  /// makes. Throws where it cannot.
  explicit TensorBoard(const std::string &folder);
  /// Ends the process, which first writes what it was told.
  ~TensorBoard();
  TensorBoard(const TensorBoard &) = delete;
  TensorBoard &operator=(const TensorBoard &) = delete;

  /// Tells it a line of --json, which ends with a newline. Never waits: what
  /// the process does not take yet is kept, up to 16 MiB.
  void tell(const std::string &line);

  /// Waits some seconds until all has been written.
  void finish();

  /// Why something was not written, once; empty if there is nothing to say.
  std::string takeWarning();

private:
  void send();
  void giveUp();
  void listen(int milliseconds, std::string_view awaited = {});
  std::string lastLine() const;

  std::string folder;
  pid_t process = -1;
  int lines = -1, replies = -1; ///< Pipes to it, and from it.
  std::string said;             ///< By the process, once it was ready.
  std::string pending;
  std::uint64_t lost = 0; ///< Lines.
  std::string warning;
};

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_RUN_TENSORBOARD_H
