// The one binary: the name it is called by (glyd-run) or the first word (glyd run) picks the command.

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "commands.h"
#include "common.h"

namespace glyd::tools {

namespace {

struct Command {
  const char* name;
  const char* summary;
  int (*run)(const std::vector<std::string>&);
};

constexpr Command kCommands[] = {
    {"run", "generate text, chat, look into a model", run_command},
    {"pack", "pack a model's weights without loss", pack_command},
    {"bench", "measure how fast a model runs", bench_command},
};

const Command* find_command(const std::string& name) {
  const auto found =
      std::find_if(std::begin(kCommands), std::end(kCommands), [&](const Command& c) { return name == c.name; });
  return found == std::end(kCommands) ? nullptr : found;
}

std::string command_list() {
  std::string list;
  for (const Command& c : kCommands)
    list += "  glyd " + std::string(c.name) + std::string(8 - std::string(c.name).size(), ' ') + c.summary + "\n";
  return list;
}

int top_level(const std::vector<std::string>& args) {
  if (args.empty()) {
    fail(Code::Usage, "no command: run, pack or bench; glyd --help says more");
  }
  if (args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
    print("glyd " GLYD_VERSION ": language models of the Qwen family\n\n" + command_list() +
          "\nglyd COMMAND --help lists a command's options. glyd-run is the same as glyd run.\n");
    return 0;
  }
  if (args[0] == "--version") {
    print("glyd " GLYD_VERSION "\n");
    return 0;
  }
  fail(Code::Usage, "unknown command {}: there are run, pack and bench", quote(args[0]));
}

int dispatch(const std::string& called, std::vector<std::string> args) {
  const std::string name = called.substr(called.rfind('/') + 1);
  const Command* command = name.starts_with("glyd-") ? find_command(name.substr(5)) : nullptr;
  if (!command && !args.empty() && (command = find_command(args[0]))) args.erase(args.begin());
  return guarded(command ? "glyd-" + std::string(command->name) : "glyd", [&] {
    install_interrupt_handler();
    return command ? command->run(args) : top_level(args);
  });
}

}  // namespace
}  // namespace glyd::tools

int main(int argc, char** argv) {
  glyd::tools::prepare_process();
  return glyd::tools::dispatch(argc > 0 ? argv[0] : "glyd",
                               std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
}
