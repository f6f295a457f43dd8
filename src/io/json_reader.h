#pragma once
// A pull parser for JSON that may be large and hostile: the caller asks for one value after the other and nothing is
// built, so memory stays near that of the text, whatever stands in it. For small files parse_json (io/json.h) is
// simpler.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace glyd::io {

// Reads one JSON value strictly. Errors are Error(Model) naming `what` and the byte's place. Keys given twice are for
// the caller to notice: this class keeps none.
//
//   reader.begin_object();
//   while (reader.next_key(key)) { ...exactly one of string(), number(), skip(), begin_object()... }
//   reader.end();
class JsonReader {
 public:
  enum class Kind { Object, Array, String, Number, Bool, Null };

  // `text` must outlive the reader. `cure` ends every message. Throws when it is not UTF-8.
  JsonReader(std::string_view text, std::string what, int max_depth = 16, std::string cure = "fetch it again");

  Kind kind();  // of the value that comes next

  void begin_object();
  bool next_key(std::string& key);  // false after the last one: the object is closed then
  void begin_array();
  bool next_element();  // false after the last one: the array is closed then

  void string(std::string& out);
  std::string_view number();  // as it is written: "12", "-1.5e3"
  void skip();                // one value of any kind
  void end();                 // throws unless only white space is left

  // The next `max_bytes` or so as they stand, for messages.
  std::string_view preview(std::size_t max_bytes = 40);

 private:
  [[noreturn]] void wrong(std::string_view expected);
  char peek();  // the next byte after white space; NUL at the end
  void expect(char c, std::string_view name);
  void literal(std::string_view word);
  bool next_item(char close);
  char32_t hex4();
  char32_t escape();

  std::string_view text_;
  std::string what_, cure_;
  std::size_t at_ = 0;
  std::size_t max_depth_;
  std::vector<bool> first_;  // of the open objects and arrays: nothing has been read from it yet
};

// What text that is no JSON is likely to be, for messages: "it is a web page, ...".
std::string what_broke_json(std::string_view text);

const char* kind_name(JsonReader::Kind kind);  // "an object"

// A number as JsonReader::number() gives it, when it is written as digits alone and fits: not "-1", "1.0", "1e3".
std::optional<std::uint64_t> parse_unsigned(std::string_view number);

}  // namespace glyd::io
