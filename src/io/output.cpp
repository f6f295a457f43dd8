#include "io/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

namespace glyd::io {
namespace {

namespace fs = std::filesystem;

constexpr char kPartial[] = ".partial-";  // then six characters that mkdtemp() chooses

std::string shown(const fs::path& path) { return printable(path.native()); }

[[noreturn]] void cannot_write(const fs::path& path, int error) {
  fail(Code::Runtime, "{}: cannot be written: {}{}", shown(path), std::strerror(error),
       error == ENOSPC   ? "; make room or choose another place"
       : error == EMFILE ? "; raise the limit of open files: ulimit -n 4096"
                         : "");
}

void sync_directory(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) cannot_write(path, errno);
  // Some file systems have no such thing; that is no reason to give up what is written.
  if (::fsync(fd) != 0 && errno != EINVAL && errno != EROFS) {
    const int error = errno;
    ::close(fd);
    cannot_write(path, error);
  }
  ::close(fd);
}

// Where the name of the unfinished folder lies for a signal handler: memory that is never given back.
std::array<char, 16384> unfinished_name;
std::atomic<bool> is_unfinished{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void set_unfinished(const fs::path& path) {
  is_unfinished = false;
  const std::string name = shown(path);
  unfinished_name[name.copy(unfinished_name.data(), unfinished_name.size() - 1)] = '\0';
  is_unfinished = true;
}

// Another run may be writing such a folder, so it is only named.
void warn_of_leftovers(const fs::path& path) {
  const std::string start = path.filename().native() + kPartial;
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(path.parent_path(), error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().native();
    if (name.starts_with(start)) names.push_back(name);
  }
  if (names.empty()) return;
  const std::string others = names.size() > 1 ? fmt::format(" and {} more like it", names.size() - 1) : "";
  log::warning("{}{}: left by a run that was ended; unless one is still writing there, it can be removed",
               shown(path.parent_path() / *std::min_element(names.begin(), names.end())), others);
}

// What the entries of a directory show of it.
struct Content {
  bool empty = true, config = false, weights = false;
  std::string strange;  // the first name, in order, of a folder or of a file that may not be lost
};

Content look_into(const fs::path& path, const MayReplace& replace) {
  Content content;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().native();
    content.empty = false;
    content.config |= name == "config.json";
    content.weights |= name == "glyd.json" || name.ends_with(".safetensors");
    const bool folder = entry->symlink_status(error).type() == fs::file_type::directory;
    const bool strange = error || folder || !replace(name);
    if (strange && (content.strange.empty() || name < content.strange)) content.strange = name;
  }
  if (error) fail(Code::Usage, "{}: cannot be listed: {}; choose another name", shown(path), error.message());
  return content;
}

// Replacing a directory is to lose nothing but a model: it is empty, or holds a packed or a plain model and nothing
// else. A config.json alone is no model: many programs have one.
void check_replaceable(const fs::path& path, const MayReplace& replace) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (status.type() == fs::file_type::not_found) return;
  if (!replace) fail(Code::Usage, "{}: exists already; --force replaces it", shown(path));
  if (status.type() != fs::file_type::directory) {
    fail(Code::Usage, "{}: exists and is not a directory; remove it or choose another name", shown(path));
  }
  const Content content = look_into(path, replace);
  if (content.empty || (content.config && content.weights && content.strange.empty())) return;
  fail(Code::Usage, "{}: --force replaces only empty and model directories, and this one {}; {} or choose another name",
       shown(path),
       content.strange.empty() ? "has no config.json with weights"
                               : "holds " + quote(content.strange) + ", which is no file of a model",
       content.strange.empty() ? "remove it" : "move that away");
}

}  // namespace

OutputFile::OutputFile(const fs::path& path)
    : fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)), path_(path) {
  if (fd_ < 0) cannot_write(path, errno);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void OutputFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t want = std::min<std::size_t>(bytes.size(), std::size_t{1} << 30);
    const ssize_t got = ::pwrite(fd_, bytes.data(), want, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) cannot_write(path_, errno);
    offset += static_cast<std::uint64_t>(got);
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
}

void OutputFile::resize(std::uint64_t bytes) {
  if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) cannot_write(path_, errno);
}

void OutputFile::close() {
  if (::fsync(fd_) != 0 && errno != EINVAL) cannot_write(path_, errno);
  if (::close(std::exchange(fd_, -1)) != 0) cannot_write(path_, errno);
}

void write_text(const fs::path& path, std::string_view text) {
  OutputFile file(path);
  file.write_at(0, std::as_bytes(std::span(text)));
  file.close();
}

OutputDirectory::OutputDirectory(const fs::path& path, MayReplace replace) : replace_(std::move(replace)) {
  path_ = fs::absolute(path).lexically_normal();
  if (!path_.has_filename()) path_ = path_.parent_path();  // "out/"
  check_replaceable(path_, replace_);
  warn_of_leftovers(path_);
  std::string pattern = path_.native() + kPartial + "XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) {
    const int error = errno;
    fail(Code::Runtime, "{}: cannot be made: {}; {}", shown(path_), std::strerror(error),
         error == ENOENT ? "make the directory " + shown(path_.parent_path()) + " first" : "choose another place");
  }
  temporary_ = pattern;
  set_unfinished(temporary_);
  const mode_t mask = ::umask(0);
  ::umask(mask);
  ::chmod(temporary_.c_str(), 0777 & ~mask);
}

OutputDirectory::~OutputDirectory() {
  if (temporary_.empty()) return;
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
  is_unfinished = false;
}

void OutputDirectory::commit() {
  sync_directory(temporary_);
  check_replaceable(path_, replace_);  // as it may have come into being meanwhile
  std::error_code error;
  // An empty directory is replaced by rename() itself; a full one changes places with the new one and is removed.
  if (::rename(temporary_.c_str(), path_.c_str()) == 0) {
    temporary_.clear();
    is_unfinished = false;
  } else if (!replace_ || (errno != ENOTEMPTY && errno != EEXIST)) {
    cannot_write(path_, errno);
  } else if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) != 0) {
    // A file system that cannot exchange: there is a moment without either.
    const fs::path old = temporary_.native() + ".old";
    fs::rename(path_, old, error);
    if (error) cannot_write(path_, error.value());
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
      const int reason = errno;
      fs::rename(old, path_, error);
      cannot_write(path_, reason);
    }
    temporary_ = old;
    set_unfinished(temporary_);
  }
  sync_directory(path_.parent_path());
  if (!temporary_.empty()) fs::remove_all(std::exchange(temporary_, {}), error);  // the one that was replaced
  is_unfinished = false;
}

const char* unfinished_directory() { return is_unfinished ? unfinished_name.data() : nullptr; }

}  // namespace glyd::io
