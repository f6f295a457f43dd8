#include "io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "io/hub_cache.h"

namespace glyd::io {

namespace {

// What helps when open() fails.
std::string cure_for(const std::filesystem::path& path, int error) {
  if (error == EMFILE) return "; raise the limit of open files: ulimit -n 4096";
  std::error_code ignored;
  if (error != ENOENT || !std::filesystem::is_symlink(path, ignored)) return "";
  const std::string name = hub_name(path);
  return fmt::format("; it is a link to {}, which is not there; fetch {}",
                     printable(std::filesystem::read_symlink(path, ignored).native()),
                     name.empty() ? "the file again" : "the model again: hf download " + printable(name));
}

}  // namespace

File::File(int fd, std::uint64_t size, std::filesystem::path path) : fd_(fd), size_(size), path_(std::move(path)) {}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

File::File(File&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), size_(other.size_), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

File File::open(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const int error = errno;
    fail(Code::Model, "{}: cannot be opened: {}{}", printable(path.native()), std::strerror(error),
         cure_for(path, error));
  }
  struct stat st {};
  const bool ok = ::fstat(fd, &st) == 0;
  if (!ok || !S_ISREG(st.st_mode)) {
    ::close(fd);
    fail(Code::Model, "{}: not a regular file{}", printable(path.native()),
         ok && S_ISDIR(st.st_mode) ? " but a directory" : "");
  }
  return File(fd, static_cast<std::uint64_t>(st.st_size), path);
}

void File::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  std::size_t done = 0;
  while (done < out.size()) {
    const std::size_t want = std::min<std::size_t>(out.size() - done, std::size_t{1} << 30);
    const ssize_t got = ::pread(fd_, out.data() + done, want, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(Code::Model, "{}: cannot be read: {}", printable(path_.native()), std::strerror(errno));
    if (got == 0) {
      fail(Code::Model,
           "{}: ends at byte {}, {} bytes were expected from byte {}: the file was cut short; fetch it again",
           printable(path_.native()), offset + done, out.size(), offset);
    }
    done += static_cast<std::size_t>(got);
  }
}

std::string read_text(const std::filesystem::path& path, std::uint64_t max_bytes) {
  const File file = File::open(path);
  if (file.size() > max_bytes) {
    fail(Code::Model, "{}: {} bytes, more than the {} such a file may have", printable(path.native()), file.size(),
         max_bytes);
  }
  std::string text(file.size(), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text.data(), text.size())));
  return text;
}

bool is_regular_file(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

bool is_plain_name(std::string_view name) {
  using namespace std::string_view_literals;
  return !name.empty() && name != "." && name != ".." && name.find_first_of("/\\:\0"sv) == std::string_view::npos;
}

}  // namespace glyd::io
