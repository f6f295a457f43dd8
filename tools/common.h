#pragma once
// What every command needs around its work: the process prepared, errors printed, stdout that notices when it is gone,
// Ctrl-C, input read whole.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace glyd::tools {

// Puts the process in order before anything is opened: descriptors 0-2 exist, a closed pipe is an error of write() and
// not a signal, threads do not each reserve address space for their own heap.
void prepare_process();

// Runs `body` and turns what it throws into one line on stderr and an exit code. `program` is named in the hint that
// follows a usage error.
int guarded(const std::string& program, const std::function<int()>& body);

// Thrown when stdout's reader has gone away (`| head`): ends the program without a word, exit code 1.
struct OutputClosed {};

// Writes all of `text` to stdout, unbuffered, so that a reader sees each token as it is made. Throws OutputClosed, or
// Error(Runtime) for a full disk and the like.
void print(std::string_view text);

bool stdout_is_terminal();
bool stderr_shows_stdout();  // a terminal, or the same file or pipe
bool stdin_is_terminal();

// Ctrl-C. Outside any InterruptScope the first one ends the process with 130. Inside one it is only counted, and the
// second one ends the process and names a folder that it leaves half written: what runs has one chance to stop in good
// order.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
};
void install_interrupt_handler();
bool interrupted();  // since the scope began or interrupts were cleared
void clear_interrupts();
void acknowledge_interrupts();  // those so far no longer end a read_line()

// All of a descriptor (stdin) or of the file at `path` (a pipe is fine), at most 256 MiB; `what` names it in errors.
std::string read_stdin();
std::string read_input_file(const std::string& path, const std::string& what);

// One line of stdin without its end. Interrupted: a Ctrl-C came that is not acknowledged.
enum class Line { Text, End, Interrupted };
Line read_line(std::string& line);

// Numbers for people: "1,503,264,768", "1.50 GB" (decimal units).
std::string with_commas(std::uint64_t n);
std::string in_bytes(std::uint64_t bytes);

// Largest memory this process has had resident, bytes.
std::uint64_t peak_memory();

}  // namespace glyd::tools
