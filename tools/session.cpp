#include "session.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/timing.h"
#include "common.h"
#include "compare.h"
#include "io/file.h"
#include "model/directory.h"
#include "model/packing.h"
#include "text/stream_decoder.h"

namespace glyd::tools {
namespace {

constexpr std::int64_t kUsualContext = 4096;  // tokens, when -c is not given
constexpr std::uint64_t kWeightSeed = 1;      // of made-up weights: the same model in every run
constexpr std::int64_t kCompared = 8;         // tokens made by --check, when -n is not given

std::string token_text(const text::Tokenizer& tokenizer, std::optional<text::TokenId> id) {
  return id ? std::string(tokenizer.bytes(*id)) : "";
}

void check_utf8(const char* what, const std::optional<std::string>& text) {
  if (!text) return;
  if (const std::string fault = utf8_fault(*text); !fault.empty()) fail(Code::Usage, "{}{}", what, fault);
}

}  // namespace

bool has_tokenizer(const std::filesystem::path& dir) {
  return io::is_regular_file(dir / "tokenizer.json") || io::is_regular_file(dir / "vocab.json");
}

std::optional<model::Checkpoint> open_checkpoint(const std::filesystem::path& dir, bool random_weights) {
  if (!random_weights) return model::Checkpoint::open(dir);
  if (model::has_weights(dir)) {
    log::warning("--random-weights: the weights in {} are not used", printable(dir.native()));
  }
  return std::nullopt;
}

Session::Session(const std::filesystem::path& dir, const RunOptions& options)
    : options_(options),
      checkpoint_(open_checkpoint(dir, options.random_weights)),
      config_(checkpoint_ ? checkpoint_->config() : model::load_config(dir)),
      defaults_(model::load_generation_config(dir)),
      sampling_(sampling_params(options, defaults_)) {
  engine::check(sampling_);
  check_gemm();
  check_utf8("-sys", options.system);
  check_utf8("the prompt", options.prompt);
  if (!options.seed && sampling_.temperature > 0) log::debug("seed {}", sampling_.seed);

  // Ids in, ids out needs no tokenizer; where there is one, it says which rows of the embedding are padding.
  const bool ids_only =
      options.prompt_ids && options.stop.empty() && (options.ids || options.check || options.mode == Mode::TopLogits);
  if (!ids_only || has_tokenizer(dir)) tokenizer_ = text::Tokenizer::load(dir);
  allowed_.assign(static_cast<std::size_t>(config_.vocab_size), true);
  if (tokenizer_) {
    for (std::size_t id = 0; id < allowed_.size(); ++id)
      allowed_[id] = tokenizer_->has_token(static_cast<text::TokenId>(id));
  }
  if (!options.raw && !options.prompt_ids) load_template(dir);

  if (options.ignore_eos) return;
  std::set<text::TokenId> stop(defaults_.eos_ids.begin(), defaults_.eos_ids.end());
  stop.insert(config_.eos_ids.begin(), config_.eos_ids.end());
  if (tokenizer_ && tokenizer_->eos()) stop.insert(*tokenizer_->eos());
  stop_ids_.assign(stop.begin(), stop.end());
}

void Session::load_template(const std::filesystem::path& dir) {
  if (options_.template_file) {
    const std::string what = "--chat-template-file";
    template_ = text::ChatTemplate::parse(
        read_input_file(*options_.template_file, what), what + " " + quote(*options_.template_file),
        token_text(*tokenizer_, tokenizer_->bos()), token_text(*tokenizer_, tokenizer_->eos()));
  } else {
    template_ = text::ChatTemplate::load(dir);
  }
  if (!template_ && options_.system) {
    fail(Code::Usage, "-sys: {} has no chat template; give one with --chat-template-file or leave -sys out",
         printable(dir.native()));
  }
  if (options_.think && !(template_ && template_->mentions("enable_thinking"))) {
    log::warning("--think has no effect: the chat template of {} does not ask for enable_thinking",
                 printable(dir.native()));
  }
}

const text::Tokenizer& Session::tokenizer() const { return *tokenizer_; }

std::vector<text::TokenId> Session::prompt_ids() const {
  if (options_.prompt_ids) return *options_.prompt_ids;
  if (!template_) return tokenizer().encode(*options_.prompt);
  io::OrderedJson messages = io::OrderedJson::array();
  if (options_.system) messages.push_back({{"role", "system"}, {"content", *options_.system}});
  messages.push_back({{"role", "user"}, {"content", *options_.prompt}});
  return conversation_ids(messages);
}

std::vector<text::TokenId> Session::conversation_ids(const io::OrderedJson& messages) const {
  text::ChatInput input;
  input.messages = messages;
  if (options_.think) input.extra["enable_thinking"] = *options_.think;
  const text::Rendered rendered = template_->render(input);
  log::debug("prompt: {}", rendered.text);
  return tokenizer().encode(rendered.text, {.add_special = false, .inert = rendered.content});
}

std::int64_t Session::choose_context(std::int64_t prompt_tokens) const {
  const std::int64_t most = config_.max_positions;
  if (options_.context) {
    if (*options_.context > most) {
      log::warning("-c {}: the model was made for {} tokens; using those", *options_.context, most);
    }
    return *options_.context == 0 ? most : std::min(*options_.context, most);
  }
  return std::min(most, std::max(kUsualContext, prompt_tokens + std::max<std::int64_t>(options_.max_tokens, 0)));
}

// A packed directory runs packed unless it is told otherwise.
void Session::check_gemm() const {
  if (options_.gemm == runner::Gemm::Cublas && options_.weights == runner::WeightFormat::AsStored && checkpoint_ &&
      checkpoint_->manifest()) {
    fail(Code::Usage, "--gemm cublas: {} is packed, and cuBLAS multiplies plain weights alone; add --weights bf16",
         printable(checkpoint_->dir().native()));
  }
}

runner::Options Session::runner_options(std::int64_t prompt_tokens) {
  context_ = choose_context(prompt_tokens);
  runner::Options o = options_.device.runner_options();
  o.weights = options_.weights;
  o.gemm = options_.gemm;
  o.max_sequences = 1;
  o.context = context_;
  o.allowed = allowed_;
  o.max_batch_tokens = chunk_ = runner::make_runner(o)->preferred_chunk();
  return o;
}

void Session::load(runner::Runner& runner) const {
  const std::unique_ptr<Progress> progress =
      options_.quiet ? std::make_unique<Progress>() : std::make_unique<ConsoleProgress>();
  if (checkpoint_) {
    runner.load(*checkpoint_, *progress);
  } else {
    runner.load_random(config_, kWeightSeed, *progress);
  }
}

void Session::verify() const {
  if (!options_.verify) return;
  const std::unique_ptr<Progress> progress =
      options_.quiet ? std::make_unique<Progress>() : std::make_unique<ConsoleProgress>();
  ThreadPool pool(options_.device.threads == 0 ? available_threads() : options_.device.threads);
  model::verify_checksums(*checkpoint_, pool, *progress);
}

void Session::load(std::int64_t prompt_tokens) {
  const auto start = Clock::now();
  runner_ = runner::make_runner(runner_options(prompt_tokens));
  if (!options_.device.device_named) log::info("device: {}", runner_->device_name());
  plan_ = checkpoint_ ? runner_->plan(*checkpoint_) : runner_->plan_random(config_);
  verify();
  load(*runner_);
  load_seconds_ = seconds_since(start);
  engine::EngineOptions e;
  e.scheduler.max_batch_tokens = chunk_;
  e.scheduler.max_sequences = 1;
  e.scheduler.prefill_chunk = chunk_;
  e.context = context_;
  e.too_long = shorter();
  e.allowed = allowed_;
  engine_ = std::make_unique<engine::Engine>(*runner_, std::move(e));
}

bool Session::compare_with_cpu(const std::vector<text::TokenId>& prompt) {
  check_prompt(prompt);
  const runner::Options o = runner_options(static_cast<std::int64_t>(prompt.size()));
  if (std::ssize(prompt) > context_) {
    fail(Code::Usage, "the prompt has {} tokens, more than a context of {}: {}", prompt.size(), context_, shorter());
  }
  runner_ = runner::make_runner(o);
  runner::Options reference = o;
  reference.device = "cpu";
  reference.tensor_parallel = reference.pipeline_parallel = 1;
  reference.activations = runner::Activations::Bf16;
  reference.gemm = runner::Gemm::Auto;
  const std::unique_ptr<runner::Runner> cpu = runner::make_runner(reference);
  log::info("comparing {} with {}, bf16 activations", runner_->device_name(), cpu->device_name());
  verify();
  load(*runner_);
  load(*cpu);
  const std::int64_t steps = options_.max_tokens < 0 ? kCompared : options_.max_tokens;
  const ComparisonReport report =
      compare_runners(*runner_, *cpu, {prompt, steps, chunk_, context_, config_.hidden_size, allowed_});
  print(report.text);
  return report.agrees;
}

void Session::check_prompt(const std::vector<text::TokenId>& prompt) const {
  if (prompt.empty()) fail(Code::Usage, "the prompt is empty; give at least one character or id");
  for (const text::TokenId id : prompt) {
    if (id >= static_cast<text::TokenId>(allowed_.size())) {
      fail(Code::Usage, "{}: id {} is not below the model's vocabulary of {}",
           options_.prompt_ids ? "--prompt-ids" : "prompt", id, allowed_.size());
    }
    if (options_.prompt_ids && !allowed_[static_cast<std::size_t>(id)]) {
      fail(Code::Usage, "--prompt-ids: id {} has no token; it is padding of the embedding", id);
    }
  }
}

std::string Session::shorter() const {
  return context_ < config_.max_positions ? "shorten it or raise -c" : "shorten it, for the model knows no longer one";
}

std::vector<std::pair<text::TokenId, float>> Session::top_logits(const std::vector<text::TokenId>& prompt,
                                                                 std::int64_t count) {
  check_prompt(prompt);
  const std::vector<float> logits = engine_->next_logits(prompt);
  std::vector<std::pair<text::TokenId, float>> rows;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (!allowed_[id]) continue;
    if (!std::isfinite(logits[id])) {
      fail(Code::Runtime, "the logit of id {} is {}: the model's weights or activations overflow", id, logits[id]);
    }
    rows.emplace_back(static_cast<text::TokenId>(id), logits[id]);
  }
  const auto keep = std::min(rows.size(), static_cast<std::size_t>(count));
  const auto larger = [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  };
  std::partial_sort(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(keep), rows.end(), larger);
  rows.resize(keep);
  return rows;
}

Answer Session::generate(const std::vector<text::TokenId>& prompt,
                         const std::function<void(std::string_view)>& on_text) {
  check_prompt(prompt);
  Answer answer;
  if (options_.max_tokens == 0) return answer;
  engine::Request request;
  request.prompt = prompt;
  request.max_tokens = options_.max_tokens < 0 ? context_ : options_.max_tokens;
  request.sampling = sampling_;
  request.sampling.seed += static_cast<std::uint64_t>(answers_++);  // a second answer to the same prompt may differ
  request.stop_ids = stop_ids_;
  const engine::SequenceId id = engine_->add(std::move(request));

  std::optional<text::StreamDecoder> decoder;
  if (tokenizer_) decoder.emplace(*tokenizer_, true, options_.stop);
  const auto emit = [&](const std::string& text) {
    if (text.empty()) return;
    answer.text += text;
    on_text(text);
  };
  while (!engine_->idle()) {
    if (interrupted()) answer.interrupted = true;
    if (answer.interrupted || (decoder && decoder->stopped())) {
      engine_->cancel(id);
      break;
    }
    for (const engine::Output& output : engine_->step()) {
      if (output.finish == engine::FinishReason::Error) fail(Code::Runtime, "{}", output.error);
      answer.context_full = output.finish == engine::FinishReason::Context;
      if (!output.token) continue;
      answer.ids.push_back(*output.token);
      if (decoder) emit(decoder->push(*output.token));
    }
  }
  if (decoder) emit(decoder->finish());
  return answer;
}

// What it took: of the process, or planned and taken of a GPU.
std::string Session::memory_text() const {
  if (!options_.device.on_gpu()) return in_bytes(peak_memory()) + " at most";
  const std::uint64_t used = runner_->memory_used();
  return fmt::format("{} planned of {}{}", in_bytes(plan_.total()), in_bytes(plan_.available),
                     used > 0 ? ", " + in_bytes(used) + " used" : "");
}

void Session::log_statistics() const {
  if (!log::enabled(log::Level::Info)) return;
  const engine::EngineStats& s = engine_->stats();
  std::vector<std::string> stages;
  for (const auto& [name, seconds] : runner_->load_stages()) stages.push_back(fmt::format("{} {:.2f}", name, seconds));
  log::info("{}: loaded {} in {:.2f} s{}, memory {} weights + {} KV cache, {}", runner_->device_name(),
            in_bytes(checkpoint_ ? checkpoint_->stored_bytes() : runner_->weight_bytes()), load_seconds_,
            stages.size() > 1 ? fmt::format(" ({})", fmt::join(stages, ", ")) : "", in_bytes(runner_->weight_bytes()),
            in_bytes(plan_.kv_cache), memory_text());
  if (s.prompt_tokens > 0 && s.prompt_seconds > 0) {
    log::info("prompt: {} tokens in {:.2f} s, {:.1f} tokens/s", s.prompt_tokens, s.prompt_seconds,
              static_cast<double>(s.prompt_tokens) / s.prompt_seconds);
  }
  if (s.decode_tokens > 0 && s.decode_seconds > 0) {
    const double rate = static_cast<double>(s.decode_tokens) / s.decode_seconds;
    const double bytes = rate * static_cast<double>(runner_->bytes_per_step());
    // Measuring a processor's memory takes seconds; a GPU's a moment.
    const double bandwidth = options_.device.on_gpu() ? runner_->read_bandwidth() : 0;
    log::info("generation: {} tokens, {:.1f} tokens/s, {:.2f} GB/s of weights{}", s.generated_tokens, rate, bytes / 1e9,
              bandwidth > 0 ? fmt::format(", {:.0f} % of the {:.0f} GB/s that the device reads",
                                          100 * bytes / bandwidth, bandwidth / 1e9)
                            : "");
  }
}

}  // namespace glyd::tools
