#pragma once
// Options of a command: declared once with their type and range, read from the command line and the environment, shown
// and searched by --help. CLI11 does the parsing; this adds what it lacks: spellings such as -cnv, values that may be
// empty or begin with '-', one kind of message.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace glyd::tools {

class CommandLine {
 public:
  // `usage` is the line after "usage: ", `summary` says what the command does, `examples` ends --help.
  CommandLine(std::string usage, std::string summary, std::string examples);

  // Options declared from here on are shown under this heading.
  void group(const std::string& heading) { heading_ = heading; }

  // `names` as people type them, "-n,--n-predict"; the first long one names the option in the environment:
  // GLYD_N_PREDICT (every other spelling works there too). `value` is the placeholder in --help. Given twice, the last
  // one counts.
  void flag(const std::string& names, bool& target, const std::string& help);
  // --version, which like --help does not come from the environment: GLYD_VERSION may mean anything there.
  void version();
  void text(const std::string& names, const std::string& value, std::optional<std::string>& target,
            const std::string& help);
  void list(const std::string& names, const std::string& value, std::vector<std::string>& target,
            const std::string& help);
  void choice(const std::string& names, const std::vector<std::string>& values, std::string& target,
              const std::string& help);
  // Whole numbers with an optional k, M or G (times 1024, its square, its cube), in [low, high].
  void count(const std::string& names, const std::string& value, std::int64_t low, std::int64_t high,
             std::optional<std::int64_t>& target, const std::string& help);
  // Finite numbers in [low, high].
  void real(const std::string& names, const std::string& value, double low, double high, std::optional<double>& target,
            const std::string& help);
  // An argument without a name, taken in the order of declaration.
  void argument(const std::string& name, std::optional<std::string>& target);

  // Reads `args` (without the program's name), then the environment for options that `args` does not give. Returns
  // false when --help or --version was asked for and has been printed. Throws Error(Usage) naming option and value.
  bool parse(const std::vector<std::string>& args);

  // Whether the option (by its first long name) stood on the command line itself.
  bool on_command_line(const std::string& long_name) const { return on_command_line_.contains(long_name); }

  // The option (by its first long name) as messages are to name it: as it was typed, or with its variable:
  // "--raw (from GLYD_RAW)".
  std::string name(const std::string& long_name) const;
  // Takes back an option that came from the environment: it counts as not given.
  void forget(const std::string& long_name) { given_.erase(long_name); }
  // Throws Error(Usage) when both options are given, flags as yes; `why` ends the message.
  void exclude(const std::string& long_name, const std::string& other, const std::string& why = "") const;

 private:
  struct Spec {
    std::string names, key, value, help, heading;  // key: the first long name
    CLI::Option* option = nullptr;
    bool* flag = nullptr;  // where a flag goes
  };
  // Receives a value and the option's name for messages, with the variable it came from if it did.
  using Take = std::function<void(const std::string& given, const std::string& option)>;

  Spec& declare(const std::string& names, const std::string& value, const std::string& help);
  void add_value(const std::string& names, const std::string& value, const std::string& help, Take take);
  std::vector<std::string> normalise(const std::vector<std::string>& args);
  std::vector<std::string> flags_in_one_word(const std::string& arg);
  void use_environment();
  std::string suggestion(const std::string& unknown) const;
  void print_help(const std::string& word) const;

  std::string usage_, summary_, examples_, heading_ = "Options";
  CLI::App app_;
  std::vector<std::unique_ptr<Spec>> specs_;
  std::map<std::string, Spec*> by_spelling_;
  std::map<std::string, std::string> given_;  // key -> how the command line or the environment spells it
  std::set<std::string> on_command_line_;     // keys
  std::optional<std::string> help_word_;      // --help was there, and what it is to search for
  bool version_ = false;
};

// A whole number with an optional suffix, as `count` options take it; empty when it is none or does not fit.
std::optional<std::int64_t> parse_count(const std::string& text);

// "5GB": a whole number of bytes, or a number with KB, MB, GB or TB (powers of 1000), KiB, MiB, GiB, TiB or k, M, G (of
// 1024). Empty when it is none of these, 0, or does not fit.
std::optional<std::uint64_t> parse_size(const std::string& text);

}  // namespace glyd::tools
