#include "command_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/text.h"
#include "common.h"

namespace glyd::tools {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find(separator, begin)) != std::string::npos; begin = end + 1) {
    parts.push_back(text.substr(begin, end - begin));
  }
  parts.push_back(text.substr(begin));
  return parts;
}

bool is_long(const std::string& spelling) { return spelling.starts_with("--"); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// "-n", "--top-k=5"; not "-", "-5 degrees", "-> x", "- item": a prompt may begin with a dash.
bool looks_like_option(const std::string& arg) {
  const std::string name = arg.substr(0, arg.find('='));
  const auto first = name.find_first_not_of('-');
  return (first == 1 || first == 2) && std::isalpha(static_cast<unsigned char>(name[first])) != 0 &&
         name.find_first_of(" \t\r\n") == std::string::npos;
}

// "--top-k" is GLYD_TOP_K.
std::string environment_name(const std::string& spelling) {
  std::string name = "GLYD_";
  for (const char c : spelling.substr(spelling.find_first_not_of('-'))) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// What a flag's variable says. `option` opens the message.
bool parse_switch(const std::string& text, const std::string& option) {
  const std::string word = lower(text);
  for (const char* on : {"1", "true", "yes", "on"}) {
    if (word == on) return true;
  }
  for (const char* off : {"0", "false", "no", "off"}) {
    if (word == off) return false;
  }
  fail(Code::Usage, "{}: {} is not one of: 1, true, yes, on, 0, false, no, off", option, quote(text));
}

std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t best = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = std::exchange(row[j], best);
    }
  }
  return row.back();
}

// `text` in lines of at most `width`, all but the first indented.
std::string wrapped(const std::string& text, std::size_t indent, std::size_t width) {
  std::string out, line;
  for (const std::string& word : split(text, ' ')) {
    if (!line.empty() && line.size() + 1 + word.size() > width) {
      out += line + "\n" + std::string(indent, ' ');
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return out + line;
}

}  // namespace

std::optional<std::int64_t> parse_count(const std::string& text) {
  std::int64_t n = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, n);
  if (error != std::errc{}) return std::nullopt;
  if (rest == end) return n;
  if (rest + 1 != end) return std::nullopt;
  int shift = 0;
  switch (*rest) {
    case 'k':
    case 'K':
      shift = 10;
      break;
    case 'm':
    case 'M':
      shift = 20;
      break;
    case 'g':
    case 'G':
      shift = 30;
      break;
    default:
      return std::nullopt;
  }
  std::int64_t scaled = 0;
  if (__builtin_mul_overflow(n, std::int64_t{1} << shift, &scaled)) return std::nullopt;
  return scaled;
}

std::optional<std::uint64_t> parse_size(const std::string& text) {
  struct Unit {
    const char* name;
    std::uint64_t bytes;
  };
  constexpr std::uint64_t k = 1000, Ki = 1024;
  constexpr Unit kUnits[] = {{"", 1},
                             {"B", 1},
                             {"KB", k},
                             {"MB", k * k},
                             {"GB", k * k * k},
                             {"TB", k * k * k * k},
                             {"KiB", Ki},
                             {"MiB", Ki * Ki},
                             {"GiB", Ki * Ki * Ki},
                             {"TiB", Ki * Ki * Ki * Ki},
                             {"k", Ki},
                             {"K", Ki},
                             {"M", Ki * Ki},
                             {"G", Ki * Ki * Ki}};
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc{}) return std::nullopt;
  for (const Unit& unit : kUnits) {
    if (std::string(rest, end) != unit.name) continue;
    const double bytes = number * static_cast<double>(unit.bytes);
    if (!(bytes >= 1 && bytes <= 9e18)) return std::nullopt;
    return static_cast<std::uint64_t>(bytes);
  }
  return std::nullopt;
}

CommandLine::CommandLine(std::string usage, std::string summary, std::string examples)
    : usage_(std::move(usage)), summary_(std::move(summary)), examples_(std::move(examples)) {
  app_.set_help_flag();  // --help takes a word here
  app_.allow_extras();   // reported by parse()
}

CommandLine::Spec& CommandLine::declare(const std::string& names, const std::string& value, const std::string& help) {
  auto spec = std::make_unique<Spec>();
  spec->names = names;
  spec->value = value;
  spec->help = help;
  spec->heading = heading_;
  for (const std::string& spelling : split(names, ',')) {
    if (spec->key.empty() && is_long(spelling)) spec->key = spelling;
    by_spelling_[spelling] = spec.get();
  }
  specs_.push_back(std::move(spec));
  return *specs_.back();
}

void CommandLine::add_value(const std::string& names, const std::string& value, const std::string& help, Take take) {
  Spec& spec = declare(names, value, help);
  spec.option = app_.add_option_function<std::string>(spec.key, [this, key = spec.key, take](const std::string& given) {
    take(given, given_.contains(key) ? given_.at(key) : key);
  });
  spec.option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void CommandLine::flag(const std::string& names, bool& target, const std::string& help) {
  Spec& spec = declare(names, "", help);
  spec.flag = &target;
  spec.option = app_.add_flag_function(spec.key, [&target](std::int64_t n) { target = n > 0; });
}

void CommandLine::version() { flag("--version", version_, "print the version and stop"); }

void CommandLine::text(const std::string& names, const std::string& value, std::optional<std::string>& target,
                       const std::string& help) {
  add_value(names, value, help, [&target](const std::string& given, const std::string&) { target = given; });
}

void CommandLine::list(const std::string& names, const std::string& value, std::vector<std::string>& target,
                       const std::string& help) {
  Spec& spec = declare(names, value, help);
  spec.option = app_.add_option(spec.key, target)->allow_extra_args(false);
}

void CommandLine::choice(const std::string& names, const std::vector<std::string>& values, std::string& target,
                         const std::string& help) {
  add_value(names, fmt::format("{}", fmt::join(values, "|")), help,
            [values, &target](const std::string& given, const std::string& option) {
              if (std::find(values.begin(), values.end(), given) == values.end()) {
                fail(Code::Usage, "{}: {} is not one of: {}", option, quote(given), fmt::join(values, ", "));
              }
              target = given;
            });
}

void CommandLine::count(const std::string& names, const std::string& value, std::int64_t low, std::int64_t high,
                        std::optional<std::int64_t>& target, const std::string& help) {
  add_value(names, value, help, [low, high, &target](const std::string& given, const std::string& option) {
    target = parse_count(given);
    if (!target || *target < low || *target > high) {
      fail(Code::Usage, "{}: {} is not a whole number from {} to {}", option, quote(given), low, high);
    }
  });
}

void CommandLine::real(const std::string& names, const std::string& value, double low, double high,
                       std::optional<double>& target, const std::string& help) {
  add_value(names, value, help, [low, high, &target](const std::string& given, const std::string& option) {
    double x = 0;
    const char* const end = given.data() + given.size();
    const auto [rest, error] = std::from_chars(given.data(), end, x);
    if (error != std::errc{} || rest != end || !(x >= low && x <= high)) {
      fail(Code::Usage, "{}: {} is not a number from {} to {}", option, quote(given), low, high);
    }
    target = x;
  });
}

void CommandLine::argument(const std::string& name, std::optional<std::string>& target) {
  app_.add_option_function<std::string>(name, [&target](const std::string& given) { target = given; });
}

// Rewrites what CLI11 cannot read: every known spelling becomes the option's first long name, its value the next
// element, flags in one word (-vq) two words, and all arguments stand at the end. Unknown options stay as they are.
std::vector<std::string> CommandLine::normalise(const std::vector<std::string>& args) {
  std::vector<std::string> options, arguments = {"--"};
  for (std::size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "--") {
      arguments.insert(arguments.end(), args.begin() + static_cast<std::ptrdiff_t>(i) + 1, args.end());
      break;
    }
    if (!looks_like_option(arg)) {
      arguments.push_back(arg);
      continue;
    }
    if (arg == "-h" || arg == "--help") {
      help_word_ = i + 1 < args.size() ? args[i + 1] : "";
      return {};
    }
    std::optional<std::string> value;
    std::string name = arg;
    if (const auto equals = arg.find('='); is_long(arg) && equals != std::string::npos) {
      name = arg.substr(0, equals);
      value = arg.substr(equals + 1);
    } else if (!is_long(arg) && arg.size() > 2 && is_digit(arg[2])) {  // -n5
      name = arg.substr(0, 2);
      value = arg.substr(2);
    } else if (const auto flags = flags_in_one_word(arg); !flags.empty()) {
      options.insert(options.end(), flags.begin(), flags.end());
      continue;
    }
    const auto found = by_spelling_.find(name);
    if (found == by_spelling_.end()) {
      options.push_back(arg);
      continue;
    }
    const Spec& spec = *found->second;
    given_[spec.key] = name;
    on_command_line_.insert(spec.key);
    options.push_back(spec.key);
    if (spec.value.empty()) {
      if (value) fail(Code::Usage, "{}: takes no value, {} was given", name, quote(*value));
      continue;
    }
    if (!value) {
      if (++i == args.size()) fail(Code::Usage, "{}: needs a value ({})", name, spec.value);
      value = args[i];
    }
    options.push_back(*value);
  }
  options.insert(options.end(), arguments.begin(), arguments.end());
  return options;
}

// The long names of "-vq" when every letter is a flag, and marks them as given; empty for anything else.
std::vector<std::string> CommandLine::flags_in_one_word(const std::string& arg) {
  std::vector<std::string> keys;
  if (is_long(arg) || by_spelling_.contains(arg)) return keys;
  for (const char letter : arg.substr(1)) {
    const auto found = by_spelling_.find(std::string("-") + letter);
    if (found == by_spelling_.end() || !found->second->value.empty()) return {};
    keys.push_back(found->second->key);
  }
  for (std::size_t i = 0; i < keys.size(); ++i) given_[keys[i]] = std::string("-") + arg[i + 1];
  on_command_line_.insert(keys.begin(), keys.end());
  return keys;
}

void CommandLine::use_environment() {
  for (const auto& [spelling, spec] : by_spelling_) {
    if (on_command_line_.contains(spec->key) || spec->flag == &version_) continue;
    const std::string name = environment_name(spelling);
    const char* const value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') continue;
    given_[spec->key] = spec->key + " (from " + name + ")";
    if (spec->flag == nullptr) {
      spec->option->envname(name);
    } else if (*spec->flag = parse_switch(value, given_[spec->key]); !*spec->flag) {
      given_.erase(spec->key);
    }
  }
}

bool CommandLine::parse(const std::vector<std::string>& args) {
  std::vector<std::string> rest = normalise(args);
  if (help_word_) {
    print_help(*help_word_);
    return false;
  }
  if (!on_command_line("--version")) use_environment();
  std::reverse(rest.begin(), rest.end());  // as CLI11 wants it
  try {
    app_.parse(std::move(rest));
  } catch (const CLI::ParseError& e) {
    fail(Code::Usage, "{}", printable(e.what()));
  }
  std::vector<std::string> extras = app_.remaining();
  std::erase(extras, "--");  // CLI11 hands the mark back too
  for (const std::string& extra : extras) {
    if (extra.size() > 1 && extra[0] == '-') fail(Code::Usage, "unknown option {}{}", quote(extra), suggestion(extra));
  }
  if (!extras.empty()) {
    fail(Code::Usage, "unexpected argument {}: a text of several words goes in quotes", quote(extras[0]));
  }
  if (version_) print("glyd " GLYD_VERSION "\n");
  return !version_;
}

std::string CommandLine::name(const std::string& long_name) const {
  const auto given = given_.find(long_name);
  return given == given_.end() ? long_name : given->second;
}

void CommandLine::exclude(const std::string& long_name, const std::string& other, const std::string& why) const {
  if (!given_.contains(long_name) || !given_.contains(other)) return;
  fail(Code::Usage, "{} and {} do not go together{}{}", name(long_name), name(other), why.empty() ? "" : ": ", why);
}

std::string CommandLine::suggestion(const std::string& unknown) const {
  if (unknown.size() > 40) return "";
  const std::string wanted = unknown.substr(0, unknown.find('='));
  std::string best;
  std::size_t least = 3;  // more changes than this would be guessing
  for (const auto& [spelling, spec] : by_spelling_) {
    const std::size_t distance = edit_distance(wanted, spelling);
    if (distance < least && distance < spelling.size() - 2) least = distance, best = spelling;
  }
  return best.empty() ? "" : ": did you mean " + best + "?";
}

void CommandLine::print_help(const std::string& word) const {
  constexpr std::size_t kIndent = 34, kWidth = 84;
  std::string options, heading;
  for (const auto& spec : specs_) {
    std::string left = fmt::format("  {}", fmt::join(split(spec->names, ','), ", "));
    if (!spec->value.empty()) left += " " + spec->value;
    if (!word.empty() && lower(left + " " + spec->help + " " + spec->heading).find(lower(word)) == std::string::npos)
      continue;
    if (heading != spec->heading) options += "\n" + (heading = spec->heading) + ":\n";
    options += left;
    options += left.size() + 2 > kIndent ? "\n" + std::string(kIndent, ' ') : std::string(kIndent - left.size(), ' ');
    options += wrapped(spec->help, kIndent, kWidth) + "\n";
  }
  if (!word.empty()) {
    if (options.empty()) fail(Code::Usage, "--help: no option mentions {}", quote(word));
    return print(options.substr(1));
  }
  print(
      "usage: " + usage_ + "\n\n" + summary_ + "\n" + options +
      "\nCounts take k, M and G (1024, its square, its cube). Every option but --help and --version can come from the\n"
      "environment under its long name in capitals: --threads from GLYD_THREADS; the command line wins. One without a\n"
      "value is given by 1, true, yes or on there, and not by 0, false, no or off. --help WORD shows the options that\n"
      "mention WORD.\n\n" +
      examples_);
}

}  // namespace glyd::tools
