//===- Caught.h - What has been thrown, in words ----------------*- C++ -*-===//
#ifndef FSDP_LIB_RUNTIME_SUPPORT_CAUGHT_H
#define FSDP_LIB_RUNTIME_SUPPORT_CAUGHT_H

#include <c10/util/Exception.h>

#include <new>
#include <string>

namespace fsdp {

/// The exception that is being handled, whatever its type: a library of
/// operators may throw anything. Only inside of a `catch`.
inline std::string describeCaught() {
  try {
    throw;
  } catch (const c10::Error &error) {
    return error.what_without_backtrace();
  } catch (const std::bad_alloc &) {
    return "no memory is left";
  } catch (const std::exception &error) {
    return error.what();
  } catch (...) {
    return "an exception of an unknown type";
  }
}

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_SUPPORT_CAUGHT_H
