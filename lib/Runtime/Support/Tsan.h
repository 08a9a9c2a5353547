//===- Tsan.h - Whether ThreadSanitizer is on -------------------*- C++ -*-===//
#ifndef FSDP_LIB_RUNTIME_SUPPORT_TSAN_H
#define FSDP_LIB_RUNTIME_SUPPORT_TSAN_H

#if defined(__SANITIZE_THREAD__)
#define FSDP_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FSDP_TSAN 1
#endif
#endif

#ifdef FSDP_TSAN
extern "C" void __tsan_read_range(void *address, unsigned long size);
extern "C" void __tsan_write_range(void *address, unsigned long size);
#endif

#endif // FSDP_LIB_RUNTIME_SUPPORT_TSAN_H
