#include "bench_options.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/text.h"
#include "command_line.h"

namespace glyd::tools {
namespace {

constexpr std::int64_t kMaxTokens = 1 << 24;
constexpr std::int64_t kMaxSequences = 4096;

const char kExamples[] =
    "Examples:\n"
    "  glyd-bench Qwen/Qwen3-0.6B                                       one sequence, 512 + 128 tokens\n"
    "  glyd-bench MODEL -npl 1,8,32 --weights packed,bf16               packed and plain weights by turns\n"
    "  glyd-bench models/qwen3-32b --random-weights --weights packed,bf16 --gemm auto,cublas\n"
    "                                                                   a shape without weights, cuBLAS beside it\n"
    "  glyd-bench MODEL -d 16k -p 256 -o json > deep.json               behind 16384 tokens of context\n"
    "\n"
    "Every series runs the same prompts. The ids made and the logits are shown as hashes: equal hashes mean equal "
    "bits.\n"
    "Exit codes: 0 done, 1 failed while running, 2 wrong usage, 3 bad model or file, 4 not enough memory for any\n"
    "series, 130 Ctrl-C.\n";

struct Written {
  std::optional<std::string> first, model, parallel, weights, gemm;
  std::optional<std::int64_t> prompt, generated, depth, repeats, seed;
  std::string format = "md";
  DeviceArguments device;
};

void declare(CommandLine& line, Written& w, BenchOptions& o) {
  line.argument("MODEL", w.first);

  line.group("What is measured");
  line.text("-m,--model", "MODEL", w.model,
            "a model directory, or ORG/NAME in the local Hugging Face cache (the first argument)");
  line.flag("--random-weights", o.random_weights, "make weights up: MODEL needs a config.json alone");
  line.text("-npl,--n-parallel", "LIST", w.parallel, "sequences at a time, 1,8,32; default: 1");
  line.count("-p,--n-prompt", "N", 1, kMaxTokens, w.prompt, "tokens of each prompt; default: 512");
  line.count("-n,--n-gen", "N", 1, kMaxTokens, w.generated, "tokens made by each sequence; default: 128");
  line.count("-d,--n-depth", "N", 0, kMaxTokens, w.depth,
             "tokens already in each sequence's context, not measured; default: 0");
  line.count("-r,--repetitions", "N", 1, 1000, w.repeats, "measured runs of each kind; default: 5");
  line.count("-s,--seed", "N", 0, std::numeric_limits<std::int64_t>::max(), w.seed,
             "seed of the prompts and of made-up weights; default: 1");

  line.group("Series: all of --weights with all of --gemm, measured by turns");
  line.text("--weights", "LIST", w.weights,
            "how the weights are held in memory: packed, bf16 or packed,bf16; default: as the directory stores them");
  line.text("--gemm", "LIST", w.gemm,
            "what multiplies on a GPU: auto, the default, cublas (plain weights alone) or auto,cublas");

  line.group("Output");
  line.choice("-o,--output", {"md", "json", "jsonl", "csv"}, w.format,
              "tables, one JSON object, or a line for each series and number of sequences; default: md");
  line.flag("-v,--verbose", o.verbose, "say more on stderr");
  line.flag("-q,--quiet", o.quiet, "only warnings and errors on stderr, no progress");
  line.text("--log-file", "FILE", o.log_file, "write messages to FILE too");
  line.version();

  line.group("Device");
  w.device.declare(line);
}

BenchFormat parse_format(const std::string& word) {
  if (word == "json") return BenchFormat::Json;
  if (word == "jsonl") return BenchFormat::JsonLines;
  return word == "csv" ? BenchFormat::Csv : BenchFormat::Markdown;
}

std::int64_t parse_parallel(const std::string& word, const std::string& option) {
  const auto n = parse_count(word);
  if (!n || *n < 1 || *n > kMaxSequences)
    fail(Code::Usage, "{}: {} is not a whole number from 1 to {}", option, quote(word), kMaxSequences);
  return *n;
}

}  // namespace

std::optional<BenchOptions> parse_bench_options(const std::vector<std::string>& args) {
  BenchOptions o;
  Written w;
  CommandLine line("glyd-bench MODEL [options]",
                   "Measures how fast a model runs: prompts, generation, loading and memory, for several numbers of\n"
                   "sequences and ways to hold the weights in one process.",
                   kExamples);
  declare(line, w, o);
  if (!line.parse(args)) return std::nullopt;
  if (w.first && line.on_command_line("--model"))
    fail(Code::Usage, "unexpected argument {}: the model is given by -m", quote(*w.first));
  o.model = w.first ? *w.first : w.model.value_or("");
  if (o.model.empty()) fail(Code::Usage, "no MODEL: give a model directory or ORG/NAME as the first argument");
  line.exclude("--verbose", "--quiet");

  const std::string npl = line.name("--n-parallel"), weights = line.name("--weights"), gemm = line.name("--gemm");
  for (const std::string& word : split_list(w.parallel.value_or("1"), npl))
    o.parallel.push_back(parse_parallel(word, npl));
  o.prompt = w.prompt.value_or(512);
  o.generated = w.generated.value_or(128);
  o.depth = w.depth.value_or(0);
  o.repeats = w.repeats.value_or(5);
  o.seed = static_cast<std::uint64_t>(w.seed.value_or(1));
  if (w.weights) {
    for (const std::string& word : split_list(*w.weights, weights)) o.weights.push_back(parse_weights(word, weights));
  }
  for (const std::string& word : split_list(w.gemm.value_or("auto"), gemm)) o.gemms.push_back(parse_gemm(word, gemm));
  o.format = parse_format(w.format);
  o.device = w.device.resolve(line);
  const bool cublas = std::find(o.gemms.begin(), o.gemms.end(), runner::Gemm::Cublas) != o.gemms.end();
  if (cublas && !o.device.on_gpu()) fail(Code::Usage, "{} cublas: needs a GPU", gemm);
  return o;
}

}  // namespace glyd::tools
