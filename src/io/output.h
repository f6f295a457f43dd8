#pragma once
// Files and folders that are written whole or not at all.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace glyd::io {

// A new file. Errors are Error(Runtime) naming the path.
class OutputFile {
 public:
  explicit OutputFile(const std::filesystem::path& path);  // must not exist yet
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);  // safe from several threads
  void resize(std::uint64_t bytes);                                       // what was not written yet reads as zeros
  void close();  // flushes to the disk first; nothing may be written afterwards

 private:
  int fd_ = -1;
  std::filesystem::path path_;
};

// A new file with this content.
void write_text(const std::filesystem::path& path, std::string_view text);

// Whether a file of that name may be lost together with the model directory that it lies in.
using MayReplace = std::function<bool(const std::string& name)>;

// A folder that comes into being complete: files go into a temporary one beside it, which commit() gives its name.
// Without commit() nothing is left.
class OutputDirectory {
 public:
  // Throws Error(Usage) when `path` exists and `replace` is empty, or when it is something that must not be replaced
  // (no folder, one that is neither empty nor a model's, or one with a folder or a file in it that `replace` denies);
  // Error(Runtime) when its parent folder cannot be written.
  // A temporary folder that an earlier run left beside `path` is named in a warning.
  explicit OutputDirectory(const std::filesystem::path& path, MayReplace replace = nullptr);
  ~OutputDirectory();
  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;

  const std::filesystem::path& temporary() const { return temporary_; }  // where files are to be written
  void commit();                                                         // what it replaces goes away only now

 private:
  std::filesystem::path path_, temporary_;
  MayReplace replace_;
};

// The temporary folder that would stay behind if the process ended now, printable; null when there is none. May be
// called by a signal handler. Of several, the one that was begun last.
const char* unfinished_directory();

}  // namespace glyd::io
