// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/transport/call_check.hpp>

#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// Host memory that processes of one host share, and where a process is.

namespace headwise::inline v0 {

/// Where a rank runs. Two ranks are in one process where all three are equal.
struct process_identity {
  std::uint64_t host = 0;   ///< differs from host to host, and from boot to boot
  std::uint64_t space = 0;  ///< containers may count their processes on their own
  index_t process = 0;

  friend constexpr bool operator==(const process_identity&, const process_identity&) = default;
};

namespace detail {

/// Errors: system_failed.
inline status system_status(int error, const char* call,
                            source_line where = source_line::current()) noexcept {
  if (error == 0) return {};
  return failure(errc::system_failed, call, "of the operating system; got is its errno", error, 0,
                 "", where);
}

/// How a process finds a segment, and knows it again: another name space may have another one of
/// the same name.
struct segment_name {
  char text[40] = {};  ///< empty: none that is to be unlinked
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
};

/// Errors: system_failed.
inline status map_segment(int file, std::size_t bytes, std::byte*& data) noexcept {
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) return system_status(errno, "mmap");
  data = static_cast<std::byte*>(at);
  return {};
}

/// The name is there until unlink_segment(). What a process has mapped stays, and is gone when the
/// last one has unmapped it or is gone itself.
inline void unlink_segment(segment_name& name) noexcept {
  if (name.text[0] != '\0') ::shm_unlink(name.text);
  name = {};
}

/// Zero, and all of it there: a page that the system could not give later would end the process.
/// Errors: system_failed.
inline status create_segment(std::size_t bytes, segment_name& name, std::byte*& data) noexcept {
  static std::atomic<unsigned> count{0};
  int file = -1;
  // One of that name was left by a process that was killed, or is of another name space.
  for (int tries = 0; tries < 1000 && file < 0; ++tries) {
    text_sink text{name.text, sizeof name.text};
    text.put("/headwise-");
    text.put(index_t{::getpid()});
    text.put('-');
    text.put(index_t{count.fetch_add(1, std::memory_order_relaxed)});
    text.finish();
    file = ::shm_open(name.text, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (file < 0 && errno != EEXIST) break;
  }
  if (file < 0) {
    name = {};
    return system_status(errno, "shm_open");
  }
  int error = 0;
  do {
    error = ::posix_fallocate(file, 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  status made = system_status(error, "posix_fallocate");
  struct stat about {};
  if (made.ok()) made = system_status(::fstat(file, &about) == 0 ? 0 : errno, "fstat");
  name.device = about.st_dev;
  name.inode = about.st_ino;
  if (made.ok()) made = map_segment(file, bytes, data);
  ::close(file);
  if (!made.ok()) unlink_segment(name);
  return made;
}

/// The segment of another process. Errors: system_failed, unsupported (another one of that name).
inline status open_segment(const segment_name& name, std::size_t bytes, std::byte*& data) noexcept {
  const int file = ::shm_open(name.text, O_RDWR | O_CLOEXEC, 0);
  if (file < 0) return system_status(errno, "shm_open");
  struct stat about {};
  status opened = system_status(::fstat(file, &about) == 0 ? 0 : errno, "fstat");
  if (opened.ok() && (about.st_dev != name.device || about.st_ino != name.inode)) {
    opened = failure(errc::unsupported, "shm_open",
                     "ranks do not see the same shared memory (/dev/shm)");
  }
  if (opened.ok()) opened = map_segment(file, bytes, data);
  ::close(file);
  return opened;
}

/// Errors: system_failed.
inline status unmap_segment(std::byte*& data, std::size_t bytes) noexcept {
  if (data == nullptr) return {};
  const int said = ::munmap(data, bytes);
  data = nullptr;
  return system_status(said == 0 ? 0 : errno, "munmap");
}

/// What the operating system says about the calling process.
struct system_calls {
  static process_identity process() noexcept {
    process_identity here;
    here.process = ::getpid();
    struct stat about {};
    if (::stat("/proc/self/ns/pid", &about) == 0) here.space = about.st_ino;
    char boot[64] = {};
    const int file = ::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
      if (::read(file, boot, sizeof boot - 1) < 0) boot[0] = '\0';
      ::close(file);
    }
    if (boot[0] == '\0' && ::gethostname(boot, sizeof boot - 1) != 0) boot[0] = '\0';
    here.host = hash_of(boot);
    return here;
  }
};

}  // namespace detail

}  // namespace headwise::inline v0
