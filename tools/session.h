#pragma once
// A model ready to answer: its files read and checked, a runner loaded, prompts made of text, answers made of tokens.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "model/checkpoint.h"
#include "run_options.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace glyd::tools {

// Whether `dir` holds the files of a tokenizer at all.
bool has_tokenizer(const std::filesystem::path& dir);

// The weights of `dir`. None when they are to be made up; those that lie there all the same are warned about.
std::optional<model::Checkpoint> open_checkpoint(const std::filesystem::path& dir, bool random_weights);

// What one request brought forth.
struct Answer {
  std::vector<text::TokenId> ids;
  std::string text;          // empty without a tokenizer
  bool interrupted = false;  // by Ctrl-C
  bool context_full = false;
};

class Session {
 public:
  // Reads and checks everything but the weights. Throws Error(Model).
  Session(const std::filesystem::path& dir, const RunOptions& options);

  bool has_template() const { return template_.has_value(); }

  // The ids of the options' prompt: as given, continued as it is, or rendered as a user's message.
  std::vector<text::TokenId> prompt_ids() const;
  // The ids of a conversation ([{"role", "content"}, ...]) with the turn of the model opened.
  std::vector<text::TokenId> conversation_ids(const io::OrderedJson& messages) const;

  // Loads the weights for sequences that begin with a prompt of this many tokens. Throws Error(Model) or Error(Memory).
  void load(std::int64_t prompt_tokens);

  // The next token's logits: the K largest of ids that have a token, largest first, the lowest id first on ties.
  std::vector<std::pair<text::TokenId, float>> top_logits(const std::vector<text::TokenId>& prompt, std::int64_t count);

  // Generates after `prompt`; `on_text` receives text as it becomes certain. A Ctrl-C ends it early (InterruptScope).
  // Throws Error(Usage) for a prompt that does not fit, Error(Runtime) when the model fails.
  Answer generate(const std::vector<text::TokenId>& prompt, const std::function<void(std::string_view)>& on_text);

  // Runs `prompt`, and the device's own choices after it, on the device and on the CPU, and prints how far apart they
  // are, layer by layer. Returns whether they agree (compare.h). Needs no load().
  bool compare_with_cpu(const std::vector<text::TokenId>& prompt);

  // Two or three lines of statistics, by log::info.
  void log_statistics() const;

 private:
  void check_prompt(const std::vector<text::TokenId>& prompt) const;
  std::string shorter() const;  // the cure for a prompt that is too long for context_
  void check_gemm() const;
  runner::Options runner_options(std::int64_t prompt_tokens);  // sets context_ and chunk_ too
  void load(runner::Runner& runner) const;
  void verify() const;
  std::string memory_text() const;
  void load_template(const std::filesystem::path& dir);
  std::int64_t choose_context(std::int64_t prompt_tokens) const;
  const text::Tokenizer& tokenizer() const;

  const RunOptions& options_;
  std::optional<model::Checkpoint> checkpoint_;  // none: the weights are made up
  model::Config config_;
  model::GenerationDefaults defaults_;
  engine::SamplingParams sampling_;
  std::optional<text::Tokenizer> tokenizer_;
  std::optional<text::ChatTemplate> template_;
  std::vector<bool> allowed_;  // [vocab_size] ids that may be made
  std::vector<text::TokenId> stop_ids_;
  std::int64_t context_ = 0;
  std::int64_t chunk_ = 0;  // tokens of a prompt run in one step
  std::unique_ptr<runner::Runner> runner_;
  std::unique_ptr<engine::Engine> engine_;
  runner::MemoryPlan plan_;
  double load_seconds_ = 0;
  std::int64_t answers_ = 0;
};

}  // namespace glyd::tools
