// glyd-run: text, ids or logits from a model; what it is; a chat.

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "chat.h"
#include "commands.h"
#include "common.h"
#include "info.h"
#include "io/hub_cache.h"
#include "run_options.h"
#include "runner/runner.h"
#include "session.h"
#include "text/tokenizer.h"

namespace glyd::tools {
namespace {

void set_up_log(const RunOptions& o) {
  if (o.verbose) log::set_level(log::Level::Debug);
  if (o.quiet) log::set_level(log::Level::Warning);
  if (o.log_file) log::set_file(*o.log_file);
}

// Text that ends in the middle of a terminal's line gets a line end; a file or pipe gets exactly the text. Where stderr
// goes to the same place, what follows there begins on a line of its own.
void end_line(const std::string& text) {
  if (text.empty() || text.ends_with('\n')) return;
  if (stdout_is_terminal())
    print("\n");
  else if (stderr_shows_stdout())
    log::info("");
}

// The ids that --detokenize was given. Throws Error(Usage) for one that stands for nothing.
std::vector<text::TokenId> ids_to_decode(const text::Tokenizer& tokenizer, const std::string& prompt) {
  const std::vector<text::TokenId> ids = parse_ids(prompt, "--detokenize");
  for (const text::TokenId id : ids) {
    if (!tokenizer.has_token(id)) {
      fail(Code::Usage, "--detokenize: id {} has no token; the tokenizer's largest is {}", id, tokenizer.size() - 1);
    }
  }
  return ids;
}

void print_ids(const std::vector<text::TokenId>& ids) {
  if (!ids.empty()) print(fmt::format("{}\n", fmt::join(ids, " ")));
}

int tokenize(const std::filesystem::path& dir, const RunOptions& o) {
  const text::Tokenizer tokenizer = text::Tokenizer::load(dir);
  if (o.mode == Mode::Tokenize) {
    print_ids(tokenizer.encode(*o.prompt));
  } else {
    const std::string text = tokenizer.decode(ids_to_decode(tokenizer, *o.prompt), false);
    print(text);
    end_line(text);
  }
  return 0;
}

int print_top_logits(Session& session, const std::vector<text::TokenId>& prompt, std::int64_t count) {
  std::string lines;
  for (const auto& [id, logit] : session.top_logits(prompt, count)) lines += fmt::format("{} {:.9g}\n", id, logit);
  print(lines);
  return 0;
}

int generate(Session& session, const std::vector<text::TokenId>& prompt, const RunOptions& o) {
  const InterruptScope scope;
  const auto on_text = [&](std::string_view text) {
    if (!o.ids) print(text);
  };
  const Answer answer = session.generate(prompt, on_text);
  if (o.ids) {
    print_ids(answer.ids);
  } else {
    end_line(answer.text);
  }
  if (answer.context_full && o.max_tokens >= 0) log::warning("ended early: the context is full (-c)");
  return answer.interrupted ? static_cast<int>(Code::Interrupted) : 0;
}

}  // namespace

int run_command(const std::vector<std::string>& args) {
  const auto options = parse_run_options(args);
  if (!options) return 0;  // --help or --version
  const RunOptions& o = *options;
  set_up_log(o);
  if (o.mode == Mode::ListDevices) {
    for (const std::string& device : runner::list_devices()) print(device + "\n");
    return 0;
  }
  const std::filesystem::path dir = io::resolve_model(*o.model);
  if (o.mode == Mode::Info) {
    print_info(dir, o.json);
    return 0;
  }
  if (o.mode == Mode::Tokenize || o.mode == Mode::Detokenize) return tokenize(dir, o);

  Session session(dir, o);
  int code = 0;
  if (o.mode == Mode::Chat) {
    if (!session.has_template())
      fail(Code::Usage, "-cnv: the model has no chat template; give one with --chat-template-file");
    session.load(0);
    code = chat(session, o);
  } else {
    const std::vector<text::TokenId> prompt = session.prompt_ids();
    log::debug("prompt ids: {}", fmt::join(prompt, " "));
    if (o.check) return session.compare_with_cpu(prompt) ? 0 : static_cast<int>(Code::Runtime);
    session.load(static_cast<std::int64_t>(prompt.size()));
    code = o.mode == Mode::TopLogits ? print_top_logits(session, prompt, o.top_logits) : generate(session, prompt, o);
  }
  session.log_statistics();
  return code;
}

}  // namespace glyd::tools
