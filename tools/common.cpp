#include "common.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "io/output.h"

namespace glyd::tools {
namespace {

constexpr std::size_t kLongestError = 600;  // bytes of an error line
constexpr std::size_t kLargestInput = std::size_t{256} << 20;

std::atomic<int> interrupt_count{0};
std::atomic<int> interrupts_allowed{0};
static_assert(std::atomic<int>::is_always_lock_free);

int wake_read = -1, wake_write = -1;  // a pipe that holds a byte for each Ctrl-C: read_line() waits on it too

// Like all that a handler calls: no memory is asked for, and a write that fails is of no interest.
void write_quietly(int fd, const char* text) {
  const ssize_t written = ::write(fd, text, std::strlen(text));
  static_cast<void>(written);
}

[[noreturn]] void end_at_once() {
  if (::isatty(STDERR_FILENO)) write_quietly(STDERR_FILENO, "\n");  // the shell's prompt begins on a line of its own
  if (const char* left = io::unfinished_directory()) {
    write_quietly(STDERR_FILENO, "error: interrupted before cleaning up; remove ");
    write_quietly(STDERR_FILENO, left);
    write_quietly(STDERR_FILENO, "\n");
  }
  ::_exit(static_cast<int>(Code::Interrupted));
}

void on_interrupt(int signal) {
  // A terminal that goes away may say so twice: that is no second wish.
  if (signal == SIGHUP && interrupt_count > 0) return;
  const int saved = errno;
  if (++interrupt_count > interrupts_allowed) end_at_once();
  write_quietly(wake_write, "\n");
  errno = saved;
}

void print_error(std::string message) {
  if (message.size() > kLongestError) {
    message.resize(kLongestError);
    message.resize(valid_utf8_prefix(message));
    message += "...";
  }
  log::write(log::Level::Error, message);
}

std::string read_all(int fd, const std::string& what) {
  std::string all;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(Code::Model, "{}: cannot be read: {}", what, std::strerror(errno));
    if (got == 0) return all;
    all.append(buffer, static_cast<std::size_t>(got));
    if (all.size() > kLargestInput) fail(Code::Model, "{}: more than {} bytes", what, with_commas(kLargestInput));
  }
}

}  // namespace

void prepare_process() {
  for (int fd = 0; fd <= 2; ++fd) {
    // A missing stdin or stdout is replaced by the end that fails, so that no file opened later takes its number.
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", fd == 1 ? O_RDONLY : O_RDWR);
  }
  ::signal(SIGPIPE, SIG_IGN);
  ::mallopt(M_ARENA_MAX, 2);
}

int guarded(const std::string& program, const std::function<int()>& body) {
  try {
    return body();
  } catch (const OutputClosed&) {
    return static_cast<int>(Code::Runtime);
  } catch (const Error& e) {
    print_error(e.what());
    if (e.code() == Code::Usage) std::fprintf(stderr, "run %s --help for the options\n", program.c_str());
    return static_cast<int>(e.code());
  } catch (const std::bad_alloc&) {
    print_error("not enough memory");
    return static_cast<int>(Code::Memory);
  } catch (const std::exception& e) {
    print_error(fmt::format("unexpected: {}", e.what()));
    return static_cast<int>(Code::Runtime);
  }
}

void print(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EPIPE) throw OutputClosed{};
    if (n < 0) fail(Code::Runtime, "stdout cannot be written: {}", std::strerror(errno));
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

bool stdout_is_terminal() { return ::isatty(STDOUT_FILENO) == 1; }
bool stderr_shows_stdout() {
  struct stat out {
  }, err{};
  return ::isatty(STDERR_FILENO) == 1 || (::fstat(STDOUT_FILENO, &out) == 0 && ::fstat(STDERR_FILENO, &err) == 0 &&
                                          out.st_dev == err.st_dev && out.st_ino == err.st_ino);
}
bool stdin_is_terminal() { return ::isatty(STDIN_FILENO) == 1; }

InterruptScope::InterruptScope() {
  interrupt_count = 0;
  interrupts_allowed = 1;
}
InterruptScope::~InterruptScope() { interrupts_allowed = 0; }

void install_interrupt_handler() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) fail(Code::Runtime, "no pipe: {}", std::strerror(errno));
  wake_read = ends[0];
  wake_write = ends[1];
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
}

bool interrupted() { return interrupt_count > 0; }
void clear_interrupts() { interrupt_count = 0; }

void acknowledge_interrupts() {
  char bytes[64];
  while (::read(wake_read, bytes, sizeof bytes) > 0) continue;
}

std::string read_stdin() { return read_all(STDIN_FILENO, "stdin"); }

std::string read_input_file(const std::string& path, const std::string& what) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(Code::Model, "{} {}: cannot be opened: {}", what, quote(path), std::strerror(errno));
  struct Closer {
    int fd;
    ~Closer() { ::close(fd); }
  } closer{fd};
  return read_all(fd, what + " " + quote(path));
}

Line read_line(std::string& line) {
  static std::string pending;  // read beyond the line's end
  for (;;) {
    if (const auto end = pending.find('\n'); end != std::string::npos) {
      line = pending.substr(0, end);
      pending.erase(0, end + 1);
      if (line.ends_with('\r')) line.pop_back();
      return Line::Text;
    }
    if (pending.size() > kLargestInput)
      fail(Code::Usage, "stdin: a line of more than {} bytes", with_commas(kLargestInput));
    pollfd ready[2] = {{STDIN_FILENO, POLLIN, 0}, {wake_read, POLLIN, 0}};
    if (::poll(ready, 2, -1) < 0) continue;  // EINTR: the pipe has the byte
    if (ready[1].revents != 0) return Line::Interrupted;
    char buffer[4096];
    const ssize_t got = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (got <= 0) {
      line = std::exchange(pending, {});
      return line.empty() ? Line::End : Line::Text;
    }
    pending.append(buffer, static_cast<std::size_t>(got));
  }
}

std::string with_commas(std::uint64_t n) {
  std::string text = std::to_string(n);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

std::string in_bytes(std::uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (value >= 1e9) return fmt::format("{:.2f} GB", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.1f} MB", value / 1e6);
  if (value >= 1e3) return fmt::format("{:.1f} kB", value / 1e3);
  return fmt::format("{} bytes", bytes);
}

std::uint64_t peak_memory() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace glyd::tools
