// The interactive chat through a pseudo-terminal: what a person types and sees.

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>

#include "process.h"
#include "support/fixtures.h"

namespace glyd::test {
namespace {

using Clock = std::chrono::steady_clock;

// glyd-run with the shipped model on a terminal of its own.
class Terminal {
 public:
  explicit Terminal(const std::vector<std::string>& options) {
    Invocation invocation;
    invocation.argv = {"glyd-run", shipped_model("tiny-austen").string(), "--temp", "0"};
    invocation.argv.insert(invocation.argv.end(), options.begin(), options.end());
    child_ = ::forkpty(&master_, nullptr, nullptr, nullptr);
    if (child_ == 0) become(invocation);
    if (child_ < 0) throw std::runtime_error("no pseudo-terminal");
  }
  ~Terminal() {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
    ::close(master_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& text) { REQUIRE(::write(master_, text.data(), text.size()) == std::ssize(text)); }

  // Waits until the screen shows `text` after what earlier calls waited for.
  void expect(const std::string& text) {
    const auto deadline = Clock::now() + kPatience;
    std::size_t found;
    while ((found = screen_.find(text, seen_)) == std::string::npos) {
      INFO("waiting for '" << text << "' on the screen:\n" << screen_.substr(seen_));
      REQUIRE(Clock::now() < deadline);
      REQUIRE(read_some());
    }
    seen_ = found + text.size();
  }

  // Waits for the end and returns the exit code, -1 for a signal.
  int end() {
    const auto deadline = Clock::now() + kPatience;
    int status = 0;
    while (::waitpid(child_, &status, WNOHANG) == 0) {
      INFO("the screen:\n" << screen_);
      REQUIRE(Clock::now() < deadline);
      read_some();
    }
    while (Clock::now() < deadline && read_some()) continue;  // what it wrote last
    child_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  const std::string& screen() const { return screen_; }

 private:
  static constexpr std::chrono::seconds kPatience{60};

  // False when the other side is closed.
  bool read_some() {
    pollfd ready{master_, POLLIN, 0};
    if (::poll(&ready, 1, 50) <= 0) return true;
    char buffer[4096];
    const ssize_t got = ::read(master_, buffer, sizeof buffer);
    if (got > 0) screen_.append(buffer, static_cast<std::size_t>(got));
    return got > 0;
  }

  pid_t child_ = -1;
  int master_ = -1;
  std::string screen_;
  std::size_t seen_ = 0;
};

constexpr const char* kCtrlC = "\x03";
constexpr const char* kCtrlD = "\x04";
constexpr const char* kPrompt = "\r\n> ";

}  // namespace

TEST_CASE("chat: commands", "[tools][chat]") {
  Terminal terminal({"-cnv", "-n", "8"});
  terminal.expect("/help");
  terminal.expect(kPrompt);
  terminal.type("/help\n");
  terminal.expect("/regen");
  terminal.expect(kPrompt);
  terminal.type("Good morning\n");
  terminal.expect(kPrompt);
  terminal.type("/regen\n");
  terminal.expect(kPrompt);
  terminal.type("/clear\n");
  terminal.expect("forgotten");
  terminal.expect(kPrompt);
  terminal.type("/regen\n");
  terminal.expect("nothing to answer");
  terminal.expect(kPrompt);
  terminal.type("/exit\n");
  CHECK(terminal.end() == 0);
  CHECK(terminal.screen().find("tokens/s") != std::string::npos);
}

TEST_CASE("chat: end of input leaves", "[tools][chat]") {
  Terminal terminal({"-cnv", "-n", "4"});
  terminal.expect(kPrompt);
  terminal.type(kCtrlD);
  CHECK(terminal.end() == 0);
}

TEST_CASE("chat: Ctrl-C stops an answer and the conversation goes on", "[tools][chat]") {
  Terminal terminal({"-cnv", "--ignore-eos"});  // it answers until it is stopped, or the context of 1024 tokens is full
  terminal.expect(kPrompt);
  terminal.type("Tell me a story\n");
  terminal.expect("story\r\n");  // the echo
  terminal.expect(" ");          // of the answer
  terminal.type(kCtrlC);
  terminal.expect("Ctrl-C again leaves");
  terminal.expect("> ");
  CHECK(terminal.screen().find("the context is full") == std::string::npos);
  terminal.type("/clear\n");
  terminal.expect("forgotten");
  terminal.type("/exit\n");
  CHECK(terminal.end() == 0);
}

TEST_CASE("chat: Ctrl-C twice leaves", "[tools][chat]") {
  Terminal terminal({"-cnv", "-n", "4"});
  terminal.expect(kPrompt);
  SECTION("at the prompt") {
    terminal.type(kCtrlC);
    terminal.expect("Ctrl-C again leaves");
    terminal.type(kCtrlC);
    CHECK(terminal.end() == 130);
  }
  SECTION("a line between them begins anew") {
    terminal.type(kCtrlC);
    terminal.expect("Ctrl-C again leaves");
    terminal.type("/clear\n");
    terminal.expect("forgotten");
    terminal.type(kCtrlC);
    terminal.expect("Ctrl-C again leaves");
    terminal.type(kCtrlC);
    CHECK(terminal.end() == 130);
  }
}

TEST_CASE("one shot: Ctrl-C keeps what was printed and exits with 130", "[tools][chat]") {
  Terminal terminal({"the king of Israel", "--raw", "--ignore-eos"});
  terminal.expect(", and the king");
  terminal.type(kCtrlC);
  CHECK(terminal.end() == 130);
  CHECK(terminal.screen().find("tokens/s") != std::string::npos);
}

TEST_CASE("one shot on a terminal ends with a line end", "[tools][chat]") {
  Terminal terminal({"the king of Israel", "--raw", "-n", "3"});
  terminal.expect(", and the\r\n");
  CHECK(terminal.end() == 0);
}

}  // namespace glyd::test
