#pragma once
// The filters, tests, methods and functions that templates may use.

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace glyd::text::jinja {

// The arguments of a call. A callee takes what it knows and then says done(): anything left is an error.
class Arguments {
 public:
  Arguments(Context& context, std::string_view callee) : context_(context), callee_(callee) {}

  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> keywords;

  // The next positional argument, or the keyword `name`; null when absent.
  const Value* take(std::string_view name);
  const Value& need(std::string_view name);
  const Str& need_str(std::string_view name);
  const Str* take_str(std::string_view name);              // null when absent or none
  bool take_integer(std::string_view name, Integer& out);  // false when absent or none
  void done() const;
  bool more() const { return next_ < positional.size(); }

  Context& context() const { return context_; }
  std::string_view callee() const { return callee_; }

 private:
  Context& context_;
  std::string_view callee_;
  std::size_t next_ = 0;
  std::vector<bool> used_;
};

struct FilterDef {
  std::string_view name;
  Value (*apply)(const Value& input, Arguments& arguments);
};
struct TestDef {
  std::string_view name;
  bool (*apply)(const Value& input, Arguments& arguments);
};
struct FunctionDef {
  std::string_view name;
  Value (*apply)(Arguments& arguments);
};

// The entry of that name in a table; null when there is none.
template <const auto& table>
auto look_up(std::string_view name) -> decltype(&table[0]) {
  constexpr auto name_of = [](const auto& entry) { return entry.name; };
  static_assert(std::ranges::is_sorted(table, {}, name_of), "a table is in the order of names");
  const auto* at = std::ranges::lower_bound(table, name, {}, name_of);
  return at != std::end(table) && at->name == name ? at : nullptr;
}

// Null when there is none of that name.
const FilterDef* find_filter(std::string_view name);
const TestDef* find_test(std::string_view name);
const FunctionDef* find_function(std::string_view name);  // range, namespace, raise_exception, strftime_now

// object.name(arguments): methods of strings and mappings. Throws for others.
Value call_method(const Value& object, std::string_view name, Arguments& arguments);
bool is_method(const Value& object, std::string_view name);

// object.name and object[key] as Jinja has them: what is not there is undefined. `from` names the object in messages.
Value member(Context& context, const Value& object, std::string_view name, std::string_view from);

// json.dumps(value, ensure_ascii=ascii, indent=indent): Python's separators and numbers, keys in their order. The text
// is content as a whole when any string in it is. A negative indent writes one line.
StrPtr to_json(Context& context, const Value& value, int indent, bool ascii);

}  // namespace glyd::text::jinja
