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

// A prompt and the byte ranges of it (ascending, disjoint, not touching) that came out of messages, tools and extra
// variables, role names and keys included: EncodeOptions::inert. A range follows its text through slices, strip, split,
// replace and joins; what `tojson` writes is one range when any string in it is content.
struct Rendered {
  std::string text;
  std::vector<Range> content;
};

// What a template sees. `messages` and `tools` are JSON arrays in the OpenAI form. Before rendering,
// - content that is a list of text parts is joined;
// - content that is null or missing becomes "", for which `is none` still holds: some templates join it with text,
// others
//   test for it;
// - arguments of tool calls that are the JSON text of an object stay this string, which `tojson`, `items` and look-ups
// see
//   as the object: Qwen2.5 and Llama write it by `tojson`, Qwen3 and DeepSeek insert strings as they are.
struct ChatInput {
  io::OrderedJson messages = io::OrderedJson::array();  // [{"role": "user", "content": "Hi"}, ...]
  io::OrderedJson tools;                                // null or empty: none
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
  // output; Error(Usage): no messages, a message without a role, a content part that is not text.
  Rendered render(const ChatInput& input) const;

  // Whether the template text mentions a variable (does `enable_thinking` do anything?).
  bool mentions(const std::string& name) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace glyd::text
