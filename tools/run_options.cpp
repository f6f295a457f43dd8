#include "run_options.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <random>

#include "base/error.h"
#include "base/text.h"
#include "command_line.h"
#include "common.h"

namespace glyd::tools {
namespace {

constexpr std::int64_t kMaxCount = std::numeric_limits<std::int32_t>::max();

const char kExamples[] =
    "Examples:\n"
    "  glyd-run models/tiny-austen \"It is a truth universally acknowledged\" --raw -n 100\n"
    "  glyd-run Qwen/Qwen3-0.6B \"Why is the sky blue?\" --think off     a model in the Hugging Face cache\n"
    "  glyd-run Qwen/Qwen3-0.6B -cnv -sys \"Be brief.\"                 a conversation; /help lists its commands\n"
    "  git diff | glyd-run Qwen/Qwen3-0.6B - --temp 0 > review.txt     the prompt from stdin\n"
    "  glyd-run MODEL --info                                           what the model is\n"
    "  glyd-run --tokenize MODEL \"Hello world\"                         ids of a text\n"
    "  glyd-run MODEL --prompt-ids \"9707 1879\" --top-logits 5          the five likeliest next tokens\n"
    "\n"
    "Exit codes: 0 done, 1 failed while running, 2 wrong usage, 3 bad model or file, 4 not enough memory, 130 "
    "Ctrl-C.\n";

// The options as written, before they are put together.
struct Written {
  std::optional<std::string> first, second;  // arguments without a name
  std::optional<std::string> model, prompt, file, prompt_ids, seed;
  std::optional<std::int64_t> n, context, top_logits;
  std::string think, weights, gemm = "auto", check;
  DeviceArguments device;
  bool prompt_argument = false;  // `prompt` is the argument, not -p
  bool chat = false, no_chat = false, tokenize = false, detokenize = false, info = false, list_devices = false;
};

void declare(CommandLine& line, Written& w, RunOptions& o) {
  line.argument("MODEL", w.first);
  line.argument("PROMPT", w.second);

  line.group("Model and prompt");
  line.text("-m,--model", "MODEL", w.model,
            "a model directory, or ORG/NAME in the local Hugging Face cache (the first argument)");
  line.text("-p,--prompt", "TEXT", w.prompt, "the prompt (the second argument); - reads it from stdin");
  line.text("-f,--file", "FILE", w.file, "read the prompt from FILE; one newline at its end is dropped, as with stdin");
  line.text("--prompt-ids", "IDS", w.prompt_ids, "the prompt as token ids, \"1 2 3\"; nothing is added to them");
  line.text("-sys,--system-prompt", "TEXT", o.system, "the system message of a chat");
  line.flag("-cnv,--conversation", w.chat,
            "talk with the model: a chat on the terminal, or a turn for each line of stdin");
  line.flag("-no-cnv,--no-conversation", w.no_chat, "no conversation: the same as --raw");
  line.flag("-st,--single-turn", o.single_turn, "end a conversation after its first answer");
  line.flag("--raw", o.raw,
            "continue the prompt as it is; without this, a model with a chat template gets it as a user's message");
  line.text("--chat-template-file", "FILE", o.template_file, "use this Jinja template instead of the model's");
  line.choice("--think", {"on", "off"}, w.think, "thinking of models that can (the template's enable_thinking)");

  line.group("Generation");
  line.count("-n,--n-predict", "N", -1, kMaxCount, w.n,
             "tokens to make at most; -1, the default: until the text ends or the context is full");
  line.count(
      "-c,--ctx-size,--max-model-len", "N", 0, kMaxCount, w.context,
      "context, tokens; 0: all the model allows, which is the most; default: 4096, more where prompt and -n need it");
  line.list("--stop", "TEXT", o.stop, "end before this text; may be given more than once");
  line.flag("--ignore-eos", o.ignore_eos, "go on past the model's end-of-text tokens");

  line.group("Sampling (defaults come from the model's generation_config.json; without do_sample true there: greedy)");
  line.real("--temp,--temperature", "X", 0, 1000, o.temperature,
            "temperature; 0 is greedy: the likeliest token, the lowest id on ties");
  line.count("--top-k", "K", 0, kMaxCount, o.top_k, "sample from the K likeliest; 0: all");
  line.real("--top-p", "P", 0, 1, o.top_p, "sample from the fewest tokens of probability P together; 1: all");
  line.real("--min-p", "P", 0, 1, o.min_p, "leave out tokens less likely than P times the likeliest; 0: none");
  line.real("--repeat-penalty,--repetition-penalty", "X", 0.001, 1000, o.repetition_penalty,
            "weaken tokens of prompt and output; 1: do not");
  line.real("--presence-penalty", "X", -1000, 1000, o.presence_penalty,
            "lower logits of tokens in the output; 0: do not");
  line.real("--frequency-penalty", "X", -1000, 1000, o.frequency_penalty,
            "lower logits by how often the token is in the output; 0: do not");
  line.text("-s,--seed", "N", w.seed, "seed of the sampling; -1, the default: a random one (-v shows it)");
  line.flag("--ignore-generation-config", o.ignore_generation_config,
            "neutral defaults instead of the model's; its end-of-text tokens still count");

  line.group("Output");
  line.flag("--ids", o.ids, "print the ids of the tokens made, on one line, instead of their text");
  line.count("--top-logits", "K", 1, kMaxCount, w.top_logits,
             "print the K largest logits of the next token, a line 'id logit' each, and stop");
  line.flag("--tokenize", w.tokenize, "print the ids of PROMPT on one line (no template) and stop");
  line.flag("--detokenize", w.detokenize, "PROMPT is ids: print their text and stop");
  line.flag("--info", w.info, "print what the model is and stop; config.json alone is enough");
  line.flag("--json", o.json, "--info as JSON");
  line.flag("-v,--verbose", o.verbose, "say more on stderr");
  line.flag("-q,--quiet", o.quiet, "only warnings and errors on stderr, no statistics");
  line.text("--log-file", "FILE", o.log_file, "write messages to FILE too");

  line.group("Device");
  w.device.declare(line);
  line.flag("--list-devices", w.list_devices, "print the devices of this machine and stop");
  line.choice("--weights", {"bf16", "packed"}, w.weights,
              "how the weights are held in memory; default: as the model directory stores them");
  line.choice(
      "--gemm", {"auto", "cublas"}, w.gemm,
      "what multiplies on a GPU; cublas takes it for everything, with bf16 weights: a baseline to compare with");
  line.flag("--random-weights", o.random_weights,
            "make weights up where MODEL is a config.json alone: for trying shapes, with --prompt-ids and --ids");
  line.flag("--verify", o.verify, "compare a packed model with the checksums of its original before it runs");
  line.choice("--check", {"cpu"}, w.check,
              "run the prompt and -n tokens on the CPU too, show how far each layer is apart, and stop");
  line.version();
}

// An option of the environment gives way to one of the command line that it contradicts.
template <class T>
void give_way(CommandLine& line, std::optional<T>& value, const std::string& name, bool others) {
  if (!others || line.on_command_line(name)) return;
  value.reset();
  line.forget(name);
}

void take_arguments(Written& w) {
  if (w.model) {
    if (w.second) fail(Code::Usage, "unexpected argument {}: the model is given by -m", quote(*w.second));
    w.second = std::exchange(w.first, std::nullopt);
  } else {
    w.model = w.first;
  }
  if (w.second && w.prompt) fail(Code::Usage, "the prompt is given twice, by -p and as argument {}", quote(*w.second));
  w.prompt_argument = w.second.has_value();
  if (w.second) w.prompt = w.second;
}

Mode mode_of(const CommandLine& line, const Written& w) {
  std::vector<std::pair<const char*, Mode>> asked;
  if (w.list_devices) asked.emplace_back("--list-devices", Mode::ListDevices);
  if (w.info) asked.emplace_back("--info", Mode::Info);
  if (w.tokenize) asked.emplace_back("--tokenize", Mode::Tokenize);
  if (w.detokenize) asked.emplace_back("--detokenize", Mode::Detokenize);
  if (w.top_logits) asked.emplace_back("--top-logits", Mode::TopLogits);
  if (w.chat) asked.emplace_back("--conversation", Mode::Chat);
  if (asked.size() > 1) line.exclude(asked[0].first, asked[1].first);
  return asked.empty() ? Mode::Generate : asked[0].second;
}

std::uint64_t parse_seed(const std::string& text, const std::string& option) {
  std::uint64_t seed = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, seed);
  if (error != std::errc{} || rest != end) {
    fail(Code::Usage, "{}: {} is not a whole number from -1 to 18446744073709551615", option, quote(text));
  }
  return seed;
}

std::string drop_last_newline(std::string text) {
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

// Everything that may be the prompt, as messages name it.
std::vector<std::string> prompt_sources(const CommandLine& line, const Written& w) {
  std::vector<std::string> sources;
  if (w.prompt) sources.push_back(w.prompt_argument ? "PROMPT" : line.name("--prompt"));
  if (w.file) sources.push_back(line.name("--file"));
  if (w.prompt_ids) sources.push_back(line.name("--prompt-ids"));
  return sources;
}

void read_prompt(const CommandLine& line, const Written& w, RunOptions& o) {
  const std::vector<std::string> sources = prompt_sources(line, w);
  if (sources.size() > 1) fail(Code::Usage, "more than one prompt: choose one of {}", fmt::join(sources, ", "));
  if (o.mode == Mode::Info || o.mode == Mode::ListDevices) return;
  if (sources.empty() && o.mode != Mode::Chat) {
    fail(Code::Usage,
         "no prompt: give one after the model, with -f FILE or --prompt-ids, - for stdin, or talk with -cnv");
  }
  for (const char* mode : {"--conversation", "--tokenize", "--detokenize"}) {
    line.exclude("--prompt-ids", mode, "that takes PROMPT");
  }
  if (w.prompt_ids) o.prompt_ids = parse_ids(*w.prompt_ids, line.name("--prompt-ids"));
  if (o.prompt_ids && o.prompt_ids->empty())
    fail(Code::Usage, "{}: the prompt is empty; give at least one id", line.name("--prompt-ids"));
  if (w.file) o.prompt = drop_last_newline(read_input_file(*w.file, "-f"));
  if (w.prompt) o.prompt = *w.prompt == "-" ? drop_last_newline(read_stdin()) : *w.prompt;
  if (!o.prompt) return;
  if (const std::size_t good = valid_utf8_prefix(*o.prompt); good != o.prompt->size()) {
    fail(Code::Usage, "{}: the prompt is not UTF-8 text: byte {} is 0x{:02x}",
         w.file             ? "-f " + quote(*w.file)
         : *w.prompt == "-" ? "stdin"
                            : "PROMPT",
         good, static_cast<unsigned char>((*o.prompt)[good]));
  }
}

void check_device(const CommandLine& line, const Written& w, RunOptions& o) {
  const bool runs = o.mode == Mode::Generate || o.mode == Mode::Chat || o.mode == Mode::TopLogits;
  o.device = w.device.resolve(line, runs);
  if (!w.weights.empty()) o.weights = parse_weights(w.weights, line.name("--weights"));
  o.gemm = parse_gemm(w.gemm, line.name("--gemm"));
  if (o.gemm == runner::Gemm::Cublas && runs) {
    if (!o.device.on_gpu()) fail(Code::Usage, "{} cublas: needs a GPU", line.name("--gemm"));
    if (o.weights == runner::WeightFormat::Packed)
      fail(Code::Usage, "{} cublas: multiplies plain weights alone, and {} is packed; take --weights bf16",
           line.name("--gemm"), line.name("--weights"));
  }
  o.check = !w.check.empty();
  for (const char* mode : {"--info", "--tokenize", "--detokenize", "--top-logits", "--conversation"}) {
    line.exclude("--check", mode, "it compares while it generates");
  }
  line.exclude("--check", "--random-weights", "two devices make up different weights");
  line.exclude("--verify", "--random-weights", "there are no checksums of those");
}

}  // namespace

std::optional<RunOptions> parse_run_options(const std::vector<std::string>& args) {
  RunOptions o;
  Written w;
  CommandLine line("glyd-run MODEL [PROMPT] [options]",
                   "Generates text with a model of the Qwen2, Qwen2.5, Qwen3 or Llama family.", kExamples);
  declare(line, w, o);
  if (!line.parse(args)) return std::nullopt;
  line.exclude("--verbose", "--quiet");

  const bool arguments = w.first && (w.second || line.on_command_line("--model"));
  const bool prompt_here = arguments || line.on_command_line("--prompt") || line.on_command_line("--file") ||
                           line.on_command_line("--prompt-ids");
  give_way(line, w.prompt, "--prompt", prompt_here);
  give_way(line, w.file, "--file", prompt_here);
  give_way(line, w.prompt_ids, "--prompt-ids", prompt_here);
  give_way(line, w.model, "--model", w.first.has_value());

  take_arguments(w);
  o.mode = mode_of(line, w);
  if (o.json && o.mode != Mode::Info) fail(Code::Usage, "{}: only --info knows it", line.name("--json"));
  if (o.mode == Mode::ListDevices) return o;
  if (!w.model || w.model->empty())
    fail(Code::Usage, "no MODEL: give a model directory or ORG/NAME as the first argument");
  o.model = w.model;

  check_device(line, w, o);
  line.exclude("--conversation", "--no-conversation");
  line.exclude("--conversation", "--raw", "a conversation needs the chat template");
  o.raw = o.raw || w.no_chat;
  for (const char* option : {"--raw", "--no-conversation", "--prompt-ids"}) {
    line.exclude("--system-prompt", option, "a system message needs the chat template");
  }
  line.exclude("--ids", "--conversation");
  if (o.top_p && *o.top_p == 0)
    fail(Code::Usage, "{}: '0' leaves nothing to sample from; 1 turns it off", line.name("--top-p"));
  for (const std::string& stop : o.stop) {
    if (stop.empty()) fail(Code::Usage, "{}: '' is everywhere; give the text to stop at", line.name("--stop"));
  }
  if (!w.think.empty()) o.think = w.think == "on";
  if (w.seed && *w.seed != "-1") o.seed = parse_seed(*w.seed, line.name("--seed"));
  o.max_tokens = w.n.value_or(-1);
  o.context = w.context;
  o.top_logits = w.top_logits.value_or(0);
  read_prompt(line, w, o);
  return o;
}

engine::SamplingParams sampling_params(const RunOptions& o, const model::GenerationDefaults& file) {
  const model::GenerationDefaults d = o.ignore_generation_config ? model::GenerationDefaults{} : file;
  engine::SamplingParams p;
  const bool samples = d.do_sample.value_or(false) || o.top_k || o.top_p || o.min_p;
  const double usual = samples ? d.temperature.value_or(1.0) : 0.0;
  p.temperature = o.temperature.value_or(usual);
  p.top_k = static_cast<int>(o.top_k.value_or(d.top_k.value_or(0)));
  p.top_p = o.top_p.value_or(d.top_p.value_or(1.0));
  p.min_p = o.min_p.value_or(d.min_p.value_or(0.0));
  p.repetition_penalty = o.repetition_penalty.value_or(d.repetition_penalty.value_or(1.0));
  p.frequency_penalty = o.frequency_penalty.value_or(0.0);
  p.presence_penalty = o.presence_penalty.value_or(0.0);
  p.seed = o.seed ? *o.seed : (std::uint64_t{std::random_device{}()} << 32 | std::random_device{}());
  return p;
}

std::vector<text::TokenId> parse_ids(const std::string& text, const std::string& what) {
  std::vector<text::TokenId> ids;
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == ','; };
  for (std::size_t at = 0; at < text.size();) {
    if (is_space(text[at])) {
      ++at;
      continue;
    }
    std::size_t end = at;
    while (end < text.size() && !is_space(text[end])) ++end;
    text::TokenId id = 0;
    const auto [rest, error] = std::from_chars(text.data() + at, text.data() + end, id);
    if (error != std::errc{} || rest != text.data() + end || id < 0) {
      fail(Code::Usage, "{}: {} is not a token id", what, quote(text.substr(at, end - at)));
    }
    ids.push_back(id);
    at = end;
  }
  return ids;
}

}  // namespace glyd::tools
