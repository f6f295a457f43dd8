#pragma once
// What glyd-run was asked to do, read from its command line and checked as far as that goes without the model.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device_options.h"
#include "engine/sampler.h"
#include "model/config.h"
#include "runner/runner.h"
#include "text/tokenizer.h"

namespace glyd::tools {

enum class Mode { Generate, Chat, TopLogits, Tokenize, Detokenize, Info, ListDevices };

struct RunOptions {
  Mode mode = Mode::Generate;
  std::optional<std::string> model;

  // The prompt, from exactly one of these; `prompt` holds the text of -f and stdin too.
  std::optional<std::string> prompt;
  std::optional<std::vector<text::TokenId>> prompt_ids;
  std::optional<std::string> system;
  std::optional<std::string> template_file;
  std::optional<bool> think;
  bool raw = false;          // continue the prompt as it is
  bool single_turn = false;  // a chat ends after its first answer

  std::int64_t max_tokens = -1;         // -1: until the text ends or the context is full
  std::optional<std::int64_t> context;  // 0: all the model allows
  std::vector<std::string> stop;
  bool ignore_eos = false;

  std::optional<double> temperature, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty;
  std::optional<std::int64_t> top_k;
  std::optional<std::uint64_t> seed;
  bool ignore_generation_config = false;

  bool ids = false;  // print ids instead of text
  std::int64_t top_logits = 0;
  bool json = false;

  DeviceOptions device;
  runner::WeightFormat weights = runner::WeightFormat::AsStored;
  runner::Gemm gemm = runner::Gemm::Auto;
  bool random_weights = false;  // made up, for a config.json without weights
  bool check = false;           // compare the device with the CPU, layer by layer
  bool verify = false;          // check a packed directory's checksums first
  bool verbose = false, quiet = false;
  std::optional<std::string> log_file;
};

// Empty when --help or --version was printed. Throws Error(Usage).
std::optional<RunOptions> parse_run_options(const std::vector<std::string>& args);

// The sampling that the options ask for, over the model's generation_config.json: with do_sample false or absent there
// the default is greedy unless top-k, top-p or min-p is given, and a value the file lacks is the neutral one
// (temperature 1, no top-k, top-p 1, no penalties).
engine::SamplingParams sampling_params(const RunOptions& options, const model::GenerationDefaults& defaults);

// "9707 1879" as ids; `what` (an option) opens the messages. Throws Error(Usage) naming the first word that is no id.
std::vector<text::TokenId> parse_ids(const std::string& text, const std::string& what);

}  // namespace glyd::tools
