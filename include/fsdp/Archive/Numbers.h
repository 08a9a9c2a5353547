//===- Numbers.h - Numbers as text ------------------------------*- C++ -*-===//

#ifndef FSDP_ARCHIVE_NUMBERS_H
#define FSDP_ARCHIVE_NUMBERS_H

#include <string>

namespace fsdp::archive {

/// The shortest text that reads back as `number`, in any locale: 0.1, 1e-05,
/// 2, inf.
std::string spellNumber(double number);

} // namespace fsdp::archive

#endif // FSDP_ARCHIVE_NUMBERS_H
