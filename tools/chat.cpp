#include "chat.h"

#include <cstdio>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "common.h"

namespace glyd::tools {
namespace {

const char kHelp[] =
    "/clear  forget the conversation (the system message stays)\n"
    "/regen  answer the last message again\n"
    "/exit   leave (so does Ctrl-D)\n"
    "/help   this list\n"
    "Ctrl-C stops an answer; twice leaves.\n";

class Conversation {
 public:
  Conversation(Session& session, const RunOptions& options) : session_(session), options_(options) { clear(); }

  void clear() {
    messages_ = io::OrderedJson::array();
    if (options_.system) add("system", *options_.system);
  }

  // Whether there was an answer; if not, why not was said.
  bool ask(const std::string& text) {
    if (const std::string fault = utf8_fault(text); !fault.empty()) {
      log::write(log::Level::Error, "the message" + fault);
      return false;
    }
    add("user", text);
    return answer();
  }

  bool regenerate() {
    if (!messages_.empty() && messages_.back()["role"] == "assistant") messages_.erase(messages_.size() - 1);
    if (messages_.empty() || messages_.back()["role"] != "user") {
      log::write(log::Level::Error, "there is nothing to answer yet");
      return false;
    }
    return answer();
  }

 private:
  void add(const char* role, const std::string& content) {
    messages_.push_back({{"role", role}, {"content", content}});
  }

  // Answers the last message. One that does not fit the context is taken back, so that the conversation can go on.
  bool answer() {
    Answer answer;
    try {
      answer = session_.generate(session_.conversation_ids(messages_), print);
    } catch (const Error& e) {
      if (e.code() != Code::Usage) throw;
      log::write(log::Level::Error, std::string(e.what()) + "; /clear begins a new conversation");
      messages_.erase(messages_.size() - 1);
      return false;
    }
    if (!answer.text.ends_with('\n')) print("\n");
    if (answer.context_full) log::warning("the context is full (-c); /clear begins a new conversation");
    add("assistant", answer.text);
    return true;
  }

  Session& session_;
  const RunOptions& options_;
  io::OrderedJson messages_;
};

// The next message or command; empty at the end of input. The second Ctrl-C in a row ends the process.
std::optional<std::string> next_line(bool terminal) {
  for (;;) {
    acknowledge_interrupts();
    if (terminal) std::fputs(interrupted() ? "\n(Ctrl-C again leaves)\n> " : "\n> ", stderr);
    std::string line;
    switch (read_line(line)) {
      case Line::Text:
        clear_interrupts();
        return line;
      case Line::End:
        return std::nullopt;
      case Line::Interrupted:
        break;
    }
  }
}

}  // namespace

int chat(Session& session, const RunOptions& options) {
  const InterruptScope scope;
  Conversation conversation(session, options);
  const bool terminal = stdin_is_terminal();
  constexpr int kFailed = static_cast<int>(Code::Usage);
  // Who pipes messages learns from the exit code that one had no answer; at a terminal that was seen.
  bool failed = false;
  if (options.prompt) {
    failed = !conversation.ask(*options.prompt);
    if (options.single_turn) return failed ? kFailed : 0;
  }
  if (terminal && !options.quiet) std::fputs("/help lists the commands, /exit leaves\n", stderr);
  while (const std::optional<std::string> line = next_line(terminal)) {
    if (*line == "/exit") return failed && !terminal ? kFailed : 0;
    if (*line == "/help") {
      std::fputs(kHelp, stderr);
    } else if (*line == "/clear") {
      conversation.clear();
      std::fputs("the conversation is forgotten\n", stderr);
    } else if (*line == "/regen") {
      failed = !conversation.regenerate() || failed;
    } else if (line->starts_with('/') && line->find(' ') == std::string::npos) {
      log::write(log::Level::Error, "unknown command " + quote(*line) + "; /help lists them");
      failed = true;
    } else if (!line->empty()) {
      failed = !conversation.ask(*line) || failed;
      if (options.single_turn) return failed ? kFailed : 0;
    }
  }
  if (terminal) std::fputs("\n", stderr);
  return failed && !terminal ? kFailed : 0;
}

}  // namespace glyd::tools
