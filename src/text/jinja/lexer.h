#pragma once
// A template's text as tokens, white space control already applied.

#include <string>
#include <string_view>
#include <vector>

namespace glyd::text::jinja {

struct Token {
  enum class Kind {
    Text,        // output as it is
    PrintBegin,  // {{
    PrintEnd,    // }}
    TagBegin,    // {%
    TagEnd,      // %}
    Name,
    String,   // `text` is the value, escapes resolved
    Integer,  // `text` as written, decimal
    Float,
    Operator,
    End
  };
  Kind kind;
  std::string text;
  int line;  // 1 is the first
};

// As Jinja does with trim_blocks and lstrip_blocks on: a newline after a tag or comment and blanks before one at the
// start of a line vanish, `-` takes all white space on its side, `+` keeps it; line ends become \n, and one at the end
// is dropped. Throws Error(Model) naming `what` and the line: something left open, a character or escape that is not
// known.
std::vector<Token> tokenize(std::string_view source, const std::string& what);

}  // namespace glyd::text::jinja
