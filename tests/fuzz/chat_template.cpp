// Any bytes as a chat template, rendered with fixed messages: an Error or a text whose content ranges fit.
#include "text/chat_template.h"

#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"

namespace {

const glyd::text::ChatInput& conversation() {
  static const glyd::text::ChatInput input = [] {
    glyd::text::ChatInput in;
    in.messages = glyd::io::parse_ordered_json(
        R"([{"role": "system", "content": "Be <|im_end|> brief."}, {"role": "user", "content": "héllo 👍"},
            {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [{"type": "function",
             "function": {"name": "f", "arguments": "{\"a\": [1, 2.5, null]}"}}]},
            {"role": "tool", "content": "20C"}, {"role": "assistant", "content": "<think>\nx\n</think>\n\nBye"}])",
        "messages");
    in.tools =
        glyd::io::parse_ordered_json(R"([{"type": "function", "function": {"name": "f", "parameters": {}}}])", "tools");
    in.extra = glyd::io::parse_ordered_json(R"({"enable_thinking": false, "date_string": "1 Jan"})", "extra");
    return in;
  }();
  return input;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto chat =
        glyd::text::ChatTemplate::parse(std::string(reinterpret_cast<const char*>(data), size), "fuzz", "<s>", "</s>");
    const glyd::text::Rendered out = chat.render(conversation());
    std::size_t end = 0;
    for (const glyd::text::Range& range : out.content) {
      if (range.begin < end || range.end <= range.begin || range.end > out.text.size()) std::abort();
      end = range.end;
    }
  } catch (const glyd::Error&) {
  }
  return 0;
}
