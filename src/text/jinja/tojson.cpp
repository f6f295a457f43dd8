// json.dumps as chat templates know it: `{"a": [1, 2.0]}`, non-ASCII text as it is, keys in their order.

#include <cmath>

#include "text/jinja/builtins.h"

namespace glyd::text::jinja {
namespace {

class Writer {
 public:
  Writer(Context& context, int indent, bool ascii) : context_(context), indent_(indent), ascii_(ascii) {}

  void write(const Value& value) {
    context_.spend_step();
    if (const Dict* dict = value.dict())
      object(*dict);
    else if (const Str* s = value.str())
      string(*s);
    else if (const List* list = value.list())
      array(*list);
    else if (value.is<None>())
      put("null");
    else if (const bool* b = value.as<bool>())
      put(*b ? "true" : "false");
    else if (const Integer* n = value.as<Integer>())
      put(number_text(*n));
    else if (const double* x = value.as<double>())
      number(*x);
    else
      context_.error("'tojson' cannot write {}", type_name(value));
  }

  // Content if any string in it is: no quote or comma in between then needs to be told apart.
  StrPtr take() { return make_str(std::move(out_), tainted_); }

 private:
  void put(std::string_view text) {
    context_.spend_bytes(text.size());
    out_.append(text);
  }

  void number(double x) {
    if (std::isfinite(x)) return put(number_text(x));
    put(std::isnan(x) ? "NaN" : x < 0 ? "-Infinity" : "Infinity");
  }

  void object(const Dict& dict) {
    if (dict.items.empty()) return put("{}");
    put("{");
    ++depth_;
    bool first = true;
    for (const auto& [key, item] : dict.items) {
      separate(first);
      string(*key);
      put(": ");
      write(item);
    }
    --depth_;
    new_line();
    put("}");
  }

  void array(const List& list) {
    if (list.items.empty()) return put("[]");
    put("[");
    ++depth_;
    bool first = true;
    for (const Value& item : list.items) {
      separate(first);
      write(item);
    }
    --depth_;
    new_line();
    put("]");
  }

  void separate(bool& first) {
    if (!first) put(indent_ < 0 ? ", " : ",");
    first = false;
    new_line();
  }

  void new_line() {
    if (indent_ < 0) return;
    put("\n");
    put(std::string(static_cast<std::size_t>(indent_) * depth_, ' '));
  }

  void string(const Str& s) {
    tainted_ |= !s.tainted.empty();
    context_.spend_bytes(s.text.size());
    put("\"");
    for (std::size_t at = 0; at < s.text.size(); ++at) {
      const char c = s.text[at];
      static constexpr std::string_view kSpecial = "\"\\\n\r\t\b\f", kLetter = "\"\\nrtbf";
      if (const auto k = kSpecial.find(c); k != std::string_view::npos) {
        out_.push_back('\\');
        out_.push_back(kLetter[k]);
      } else if (static_cast<unsigned char>(c) < 0x20) {
        escape(static_cast<unsigned char>(c));
      } else if (ascii_ && static_cast<unsigned char>(c) >= 0x80) {
        at += non_ascii(s.text, at) - 1;
      } else {
        out_.push_back(c);
      }
    }
    put("\"");
  }

  void escape(unsigned code) {
    context_.spend_bytes(6);
    out_ += fmt::format("\\u{:04x}", code);
  }

  // Writes the character at `at` as one or two \u escapes; returns its length.
  std::size_t non_ascii(const std::string& text, std::size_t at) {
    const std::size_t length = character_length(text, at);
    if (!is_valid_utf8(std::string_view(text).substr(at, length))) return escape(0xFFFD), length;
    unsigned cp = static_cast<unsigned char>(text[at]) & (0x7Fu >> length);
    for (std::size_t i = 1; i < length; ++i) cp = cp << 6 | (static_cast<unsigned char>(text[at + i]) & 0x3Fu);
    if (cp < 0x10000) return escape(cp), length;
    escape(0xD800 + ((cp - 0x10000) >> 10));
    escape(0xDC00 + ((cp - 0x10000) & 0x3FF));
    return length;
  }

  Context& context_;
  const int indent_;
  const bool ascii_;
  std::size_t depth_ = 0;
  std::string out_;
  bool tainted_ = false;
};

}  // namespace

StrPtr to_json(Context& context, const Value& value, int indent, bool ascii) {
  Writer writer(context, indent, ascii);
  writer.write(value);
  return writer.take();
}

}  // namespace glyd::text::jinja
