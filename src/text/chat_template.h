#pragma once
// Chat templates: the part of Jinja that published Qwen and Llama templates use, strict about the rest.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/json.h"
#include "text/tokenizer.h"

namespace glyd::text {

// A prompt and the byte ranges of it that came out of message contents (EncodeOptions::inert).
struct Rendered {
  std::string text;
  std::vector<Range> content;
};

// What a template sees. `messages` and `tools` are JSON arrays in the OpenAI form; string arguments of tool calls are
// parsed, content that is null becomes "" and a list of text parts is joined before rendering.
struct ChatInput {
  io::OrderedJson messages = io::OrderedJson::array();  // [{"role": "user", "content": "Hi"}, ...]
  io::OrderedJson tools;                                // null: none
  bool add_generation_prompt = true;
  io::OrderedJson extra = io::OrderedJson::object();  // further variables: {"enable_thinking": false}
};

class ChatTemplate {
 public:
  // The template of a model directory: chat_template.jinja, else tokenizer_config.json's chat_template (a string, or a
  // list of {name, template}). Empty when it has none. Throws Error(Model) for text this cannot interpret, with the
  // line.
  static std::optional<ChatTemplate> load(const std::filesystem::path& dir);

  // `source` as the text of a template; `what` (a path, an option) opens every message.
  static ChatTemplate parse(std::string source, const std::string& what, std::string bos_token = "",
                            std::string eos_token = "");

  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // Throws Error(Model): raise_exception of the template (its words), an operation on a wrong type, too much work or
  // output.
  Rendered render(const ChatInput& input) const;

  // Whether the template text mentions a variable (does `enable_thinking` do anything?).
  bool mentions(const std::string& name) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace glyd::text
