#pragma once
// The one exception type of the project, and the exit codes that the tools document.

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace glyd {

// What kind of failure it was; the value is the exit code of the tools.
enum class Code : int {
  Runtime = 1,       // something failed while running (a device, an output that cannot be written, NaN logits)
  Usage = 2,         // the command line is wrong
  Model = 3,         // a model directory or file is damaged, unsupported or not there
  Memory = 4,        // it does not fit
  Interrupted = 130  // Ctrl-C
};

// An error that a person can act on: `message` is one line that names the file, tensor or option, what was found,
// what was expected, and the cure. Names from files go through `quote` (base/text.h) first.
class Error : public std::runtime_error {
 public:
  Error(Code code, const std::string& message) : std::runtime_error(message), code_(code) {}
  Code code() const { return code_; }

 private:
  Code code_;
};

// Throws Error with a message in fmt's syntax: fail(Code::Model, "{}: not JSON", path).
template <class... Args>
[[noreturn]] void fail(Code code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace glyd
