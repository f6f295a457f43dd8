#pragma once
// What a template computes with: text that remembers which of its bytes came from messages, lists, mappings, numbers;
// and the limits that keep a hostile template from using up time, memory or stack.

#include <fmt/format.h>

#include <concepts>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "text/tokenizer.h"

namespace glyd::text::jinja {

// Limits of one parse or one rendering. A template for a conversation of a million tokens stays far below them.
inline constexpr std::size_t kMaxSource = std::size_t{1} << 20;   // bytes of a template
inline constexpr std::size_t kMaxSteps = 10'000'000;              // expressions and statements evaluated
inline constexpr std::size_t kMaxBytes = std::size_t{256} << 20;  // bytes of text and lists that are made or searched
inline constexpr int kMaxNesting = 60;                            // blocks in blocks, brackets in brackets (parser)
inline constexpr int kMaxExpressionDepth = 200;                   // levels of an expression's tree
inline constexpr int kMaxEvaluationDepth = 500;                   // nested evaluations, calls of macros included
inline constexpr int kMaxValueDepth = 100;                        // lists in lists

struct Str;
struct List;
struct Dict;
struct Namespace;
struct Scope;
struct Loop;
struct Stmt;
struct FunctionDef;

struct Undefined {};
struct None {};

// A macro and the variables it sees. Macros and loops cannot be put into lists, mappings or namespaces, so neither
// outlives what it points to.
struct Macro {
  const Stmt* definition = nullptr;
  Scope* scope = nullptr;
};

using Integer = __int128;  // holds every 64-bit number of JSON, signed or not
using StrPtr = std::shared_ptr<const Str>;
using ListPtr = std::shared_ptr<const List>;
using DictPtr = std::shared_ptr<const Dict>;
using NamespacePtr = std::shared_ptr<Namespace>;

template <class T, class... Ts>
concept OneOf = (std::same_as<T, Ts> || ...);

struct Value {
  std::variant<Undefined, None, bool, Integer, double, StrPtr, ListPtr, DictPtr, NamespacePtr, Macro, const Loop*,
               const FunctionDef*>
      v;

  Value() = default;  // undefined
  template <class T>
  requires OneOf<T, None, bool, Integer, double, StrPtr, ListPtr, DictPtr, NamespacePtr, Macro, const Loop*,
                 const FunctionDef*>
  Value(T x) : v(std::move(x)) {}

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(v);
  }
  template <class T>
  const T* as() const {
    return std::get_if<T>(&v);
  }
  const Str* str() const { return is<StrPtr>() ? std::get<StrPtr>(v).get() : nullptr; }
  const List* list() const { return is<ListPtr>() ? std::get<ListPtr>(v).get() : nullptr; }

  // The mapping that this is, or that a string argument of a tool call stands for (Str::also).
  const Dict* dict() const;
};

// Text. `tainted`: the ascending, disjoint byte ranges of it that came from messages, tools and other input.
struct Str {
  std::string text;
  std::vector<Range> tainted;

  // What else this string is to a template that asks for it. Templates disagree about two things of the OpenAI form:
  // tool calls have their arguments as JSON text, which some templates insert as it is and others take as a mapping;
  // and content may be null, which some test for and others join with text. So such arguments are strings that
  // `tojson`, `items` and look-ups see parsed, and null content is an empty string for which `is none` holds as well.
  Value also;
};

struct List {
  std::vector<Value> items;
  int depth = 1;           // of nested lists and mappings, itself included
  bool generator = false;  // what select, map, items... give: always true, not indexed, until `list` is applied
};

struct Dict {
  std::vector<std::pair<StrPtr, Value>> items;  // in their order; keys are unique
  int depth = 1;
  const Value* find(std::string_view key) const;  // linear
};

// The only thing a template can change in place. Holds no other namespace, so there are no cycles.
struct Namespace {
  std::map<std::string, Value, std::less<>> items;
};

// Joins text, keeping the ranges.
class StrBuilder {
 public:
  void append(std::string_view text, bool tainted = false);
  void append(const Str& s) { append(s, 0, s.text.size()); }
  void append(const Str& s, std::size_t begin, std::size_t end);
  std::size_t size() const { return out_.text.size(); }
  StrPtr take() { return std::make_shared<Str>(std::move(out_)); }

 private:
  void taint(std::size_t begin, std::size_t end);
  Str out_;
};

StrPtr make_str(std::string text, bool tainted = false);
StrPtr substr(const Str& s, std::size_t begin, std::size_t end);

// Reports errors at the line being worked on, and counts work.
class Context {
 public:
  explicit Context(std::string what) : what_(std::move(what)) {}

  int line = 1;

  // Throws Error(Model): "WHAT: line N: ...".
  template <class... Args>
  [[noreturn]] void error(fmt::format_string<Args...> format, Args&&... args) const {
    fail(Code::Model, "{}: line {}: {}", printable(what_), line, fmt::format(format, std::forward<Args>(args)...));
  }

  void spend_step() {
    if (++steps_ > kMaxSteps) error("the template does too much work (over {} steps)", kMaxSteps);
  }
  void spend_bytes(std::size_t n) {
    if (n > kMaxBytes - bytes_) error("the template handles too much text (over {} MiB)", kMaxBytes >> 20);
    bytes_ += n;
  }

  const std::string& what() const { return what_; }

 private:
  std::string what_;
  std::size_t steps_ = 0, bytes_ = 0;
};

// Lists and mappings, checked for depth and for values that may not be stored.
Value make_list(Context& context, std::vector<Value> items, bool generator = false);
Value make_dict(Context& context, std::vector<std::pair<StrPtr, Value>> items);
void check_storable(Context& context, const Value& value);

// Mapping look-up with its cost counted; null when there is no such key.
const Value* find(Context& context, const Dict& dict, std::string_view key);

std::string_view type_name(const Value& value);  // "a string", "none", ...: for messages
bool truthy(const Value& value);
bool equal(Context& context, const Value& a, const Value& b);  // Python's ==, lists and tuples being the same
bool less(Context& context, const Value& a, const Value& b);   // Python's <; an error for types without an order
bool contains(Context& context, const Value& item, const Value& container);  // Python's `in`

// What printing writes: Python's str(). Lists and mappings are errors: `tojson` is how templates write them.
void append_text(Context& context, StrBuilder& out, const Value& value);
StrPtr to_str(Context& context, const Value& value);

// The elements that a loop sees: of a list, the keys of a mapping, the characters of a string, none of undefined.
ListPtr elements(Context& context, const Value& value);
// The entries of a mapping, lists of a key and a value.
Value pairs(Context& context, const Dict& dict, bool generator);

// Numbers as Python computes with them: a boolean is 0 or 1.
bool is_number(const Value& value);
bool as_integer(const Value& value, Integer& out);  // false for floats and what is no number
double as_double(const Value& number);

std::string number_text(Integer n);
std::string number_text(double x);  // Python's repr: 1.0, 0.1, 1e-07, 1e+16

// UTF-8 by character, as Python indexes strings.
inline bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }
std::size_t character_count(std::string_view s);
std::size_t character_length(std::string_view s, std::size_t at);  // bytes of the character that begins at `at`
std::size_t find_text(std::string_view text, std::string_view part, std::size_t from = 0);  // find() in linear time

// [begin, end) of `s` without Python's white space, or without the characters in `set`, at the chosen ends.
Range stripped(std::string_view s, bool left, bool right, const std::string* set = nullptr);

}  // namespace glyd::text::jinja
