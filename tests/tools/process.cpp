#include "process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <thread>

namespace glyd::test {
namespace {

constexpr rlim_t kAddressSpace = rlim_t{1} << 30;

// An anonymous file that holds `content`, read from its start.
int memory_file(const std::string& content) {
  const int fd = ::memfd_create("glyd-test", 0);
  if (fd < 0 || ::write(fd, content.data(), content.size()) != static_cast<ssize_t>(content.size()) ||
      ::lseek(fd, 0, SEEK_SET) != 0) {
    throw std::runtime_error("no memory file");
  }
  return fd;
}

std::string content_of(int fd) {
  std::string content(static_cast<std::size_t>(::lseek(fd, 0, SEEK_END)), '\0');
  if (::pread(fd, content.data(), content.size(), 0) != static_cast<ssize_t>(content.size())) {
    throw std::runtime_error("cannot read what the child wrote");
  }
  return content;
}

// In the child: where stdout is to go.
void redirect_output(const Invocation& invocation, int collected) {
  if (invocation.output_to.empty()) {
    ::dup2(collected, STDOUT_FILENO);
  } else if (invocation.output_to == "closed") {
    ::close(STDOUT_FILENO);
  } else if (invocation.output_to == "broken-pipe") {
    int ends[2];
    if (::pipe(ends) != 0) ::_exit(99);
    ::dup2(ends[1], STDOUT_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
  } else {
    ::dup2(::open(invocation.output_to.c_str(), O_WRONLY), STDOUT_FILENO);
  }
}

}  // namespace

void become(const Invocation& invocation) {
  const rlimit none{0, 0}, space{kAddressSpace, kAddressSpace};
  ::setrlimit(RLIMIT_CORE, &none);
  if (!kSanitized) ::setrlimit(RLIMIT_AS, &space);
  if (!invocation.directory.empty() && ::chdir(invocation.directory.c_str()) != 0) ::_exit(98);

  std::map<std::string, std::string> environment = {
      {"LC_ALL", "C.UTF-8"}, {"GLYD_THREADS", "2"}, {"GLYD_DEVICE", "cpu"}, {"HOME", "/nonexistent"}};
  if (const char* path = std::getenv("PATH")) environment["PATH"] = path;
  for (const auto& [name, value] : invocation.environment) environment[name] = value;
  std::vector<std::string> settings;
  for (const auto& [name, value] : environment) settings.push_back(name + "=" + value);
  std::vector<char*> argv, envp;
  for (const std::string& argument : invocation.argv) argv.push_back(const_cast<char*>(argument.c_str()));
  for (const std::string& setting : settings) envp.push_back(const_cast<char*>(setting.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  ::execve(GLYD_BINARY, argv.data(), envp.data());
  ::_exit(97);
}

Outcome run(const Invocation& invocation) {
  const int in = memory_file(invocation.input), out = memory_file(""), err = memory_file("");
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    ::dup2(in, STDIN_FILENO);
    ::dup2(err, STDERR_FILENO);
    redirect_output(invocation, out);
    ::close(in), ::close(out), ::close(err);
    become(invocation);
  }
  Outcome outcome;
  const auto deadline = std::chrono::steady_clock::now() + invocation.limit * (kSanitized ? 10 : 1);
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (!outcome.timed_out && std::chrono::steady_clock::now() > deadline) {
      outcome.timed_out = true;
      ::kill(child, SIGKILL);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  outcome.out = content_of(out);
  outcome.err = content_of(err);
  ::close(in), ::close(out), ::close(err);
  return outcome;
}

}  // namespace glyd::test
