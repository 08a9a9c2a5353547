//===- WhatIf.h - Another machine than that of the file ---------*- C++ -*-===//

#ifndef FSDP_LIB_PLANNER_WHATIF_H
#define FSDP_LIB_PLANNER_WHATIF_H

#include "Toml.h"

namespace fsdp::planner {

/// A hardware file in which numbers are multiplied: "KEY=FACTORx,...", where
/// KEY is a path such as `link.network.gbytes` and means all numbers of that
/// name in the table and below it. Errors are a sentence; `path` is the file.
archive::Expected<toml::table> applyFactors(toml::table root,
                                            const std::string &factors,
                                            const std::string &path);

} // namespace fsdp::planner

#endif // FSDP_LIB_PLANNER_WHATIF_H
