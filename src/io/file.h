#pragma once
// Regular files, read with pread: a file that shrinks under us is an error and not a SIGBUS.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace glyd::io {

// A regular file open for reading. Symbolic links are followed. Errors are Error(Model) naming the path.
class File {
 public:
  // Refuses directories, FIFOs and devices without blocking on them.
  static File open(const std::filesystem::path& path);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  std::uint64_t size() const { return size_; }  // bytes, when it was opened
  const std::filesystem::path& path() const { return path_; }

  // Fills `out` from byte `offset`; a short read is an error. Safe from several threads.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  File(int fd, std::uint64_t size, std::filesystem::path path);
  int fd_ = -1;
  std::uint64_t size_ = 0;
  std::filesystem::path path_;
};

// A whole file as a string; Error(Model) when it is larger than `max_bytes`.
std::string read_text(const std::filesystem::path& path, std::uint64_t max_bytes);

bool is_regular_file(const std::filesystem::path& path);  // after links; false when it cannot be looked at

// True for a plain file name that stays inside its folder: not empty, not "." or "..", no '/' or '\\' or NUL or ':'.
bool is_plain_name(std::string_view name);

}  // namespace glyd::io
