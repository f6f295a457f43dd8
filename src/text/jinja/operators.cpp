#include "text/jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "text/jinja/builtins.h"

namespace glyd::text::jinja {
namespace {

[[noreturn]] void overflow(Context& context) { context.error("an integer of more than 128 bits"); }

// `times` copies in a row of something of `size` units, each of `unit_bytes`; 0 for negative numbers, as in Python.
std::size_t copies(Context& context, Integer times, std::size_t size, std::size_t unit_bytes) {
  if (times <= 0 || size == 0) return 0;
  const Integer limit = static_cast<Integer>(kMaxBytes / unit_bytes / size);
  context.spend_bytes(static_cast<std::size_t>(std::min(times, limit + 1)) * size * unit_bytes);
  return static_cast<std::size_t>(times);
}

Value repeat(Context& context, const Value& what, Integer times) {
  if (const Str* s = what.str()) {
    StrBuilder out;
    for (auto n = copies(context, times, s->text.size() + s->tainted.size() * sizeof(Range), 1); n > 0; --n)
      out.append(*s);
    return out.take();
  }
  const List* list = what.list();
  std::vector<Value> items;
  for (auto n = copies(context, times, list->items.size(), sizeof(Value)); n > 0; --n) {
    items.insert(items.end(), list->items.begin(), list->items.end());
  }
  return make_list(context, std::move(items));
}

Value integers(Context& context, std::string_view op, Integer a, Integer b) {
  Integer result = 0;
  if (op == "+") {
    if (__builtin_add_overflow(a, b, &result)) overflow(context);
    return result;
  }
  if (op == "-") {
    if (__builtin_sub_overflow(a, b, &result)) overflow(context);
    return result;
  }
  if (op == "*") {
    if (__builtin_mul_overflow(a, b, &result)) overflow(context);
    return result;
  }
  if (b == 0) context.error("division by zero");
  if (op == "/") return static_cast<double>(a) / static_cast<double>(b);
  if (b == -1) return op == "//" ? integers(context, "-", 0, a) : Value(Integer{0});
  const Integer quotient = a / b, remainder = a % b;
  const bool round_down = remainder != 0 && (remainder < 0) != (b < 0);
  if (op == "//") return quotient - (round_down ? 1 : 0);
  return remainder + (round_down ? b : 0);
}

Value floats(Context& context, std::string_view op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (b == 0) context.error("division by zero");
  if (op == "/") return a / b;
  if (op == "//") return std::floor(a / b);
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  return remainder;
}

}  // namespace

Value arithmetic(Context& context, std::string_view op, const Value& left, const Value& right) {
  if (op == "~" || (op == "+" && left.str() && right.str())) {
    StrBuilder out;
    append_text(context, out, left);
    append_text(context, out, right);
    return out.take();
  }
  Integer a = 0, b = 0;
  if (is_number(left) && is_number(right)) {
    if (as_integer(left, a) && as_integer(right, b)) return integers(context, op, a, b);
    return floats(context, op, as_double(left), as_double(right));
  }
  if (op == "+" && left.list() && right.list()) {
    context.spend_bytes((left.list()->items.size() + right.list()->items.size()) * sizeof(Value));
    std::vector<Value> items = left.list()->items;
    items.insert(items.end(), right.list()->items.begin(), right.list()->items.end());
    return make_list(context, std::move(items));
  }
  if (op == "*" && (left.str() || left.list()) && as_integer(right, b)) return repeat(context, left, b);
  if (op == "*" && (right.str() || right.list()) && as_integer(left, a)) return repeat(context, right, a);
  context.error("'{}' does not take {} and {}", op, type_name(left), type_name(right));
}

Value negate(Context& context, const Value& value) {
  Integer n = 0;
  if (as_integer(value, n)) return integers(context, "-", 0, n);
  if (!value.is<double>()) context.error("'-' does not take {}", type_name(value));
  return -*value.as<double>();
}

namespace {

// Byte offset of character `n` of `s`; s.size() when it has no more than n.
std::size_t byte_of(std::string_view s, Integer n) {
  std::size_t at = 0;
  for (; n > 0 && at < s.size(); --n) at += character_length(s, at);
  return at;
}

std::size_t length_of(Context& context, const Value& object) {
  if (const List* list = object.list()) return list->items.size();
  context.spend_bytes(object.str()->text.size());
  return character_count(object.str()->text);
}

}  // namespace

Value item(Context& context, const Value& object, const Value& key, std::string_view from) {
  if (const Str* name = key.str()) return member(context, object, name->text, from);
  if (object.is<Undefined>()) context.error("{} is undefined, so that it has no elements", quote(from, 80));
  Integer n = 0;
  if ((!object.list() && !object.str()) || !as_integer(key, n)) return Value();
  if (object.list() && object.list()->generator) return Value();
  const Integer length = static_cast<Integer>(length_of(context, object));
  if (n < 0) n += length;
  if (n < 0 || n >= length) return Value();
  if (const List* list = object.list()) return list->items[static_cast<std::size_t>(n)];
  const Str& s = *object.str();
  const std::size_t at = byte_of(s.text, n);
  return substr(s, at, at + character_length(s.text, at));
}

Value slice(Context& context, const Value& object, const Value& start, const Value& stop, const Value& step) {
  if (!object.list() && !object.str()) context.error("{} cannot be sliced", type_name(object));
  const Integer length = static_cast<Integer>(length_of(context, object));
  auto bound = [&](const Value& v, Integer otherwise) {
    Integer n = otherwise;
    if (!v.is<None>() && !as_integer(v, n)) context.error("a bound of a slice is {}", type_name(v));
    return n;
  };
  const Integer by = std::clamp(bound(step, 1), -length - 1, length + 1);  // further than that is all the same
  if (by == 0) context.error("a slice with a step of 0");
  // As Python: negative bounds count from the end, all are clamped, and a negative step runs from length-1 down to 0.
  const Integer low = by > 0 ? 0 : -1, high = by > 0 ? length : length - 1;
  auto place = [&](const Value& v, Integer otherwise) {
    if (v.is<None>()) return otherwise;
    const Integer n = bound(v, 0);
    return std::clamp(n < 0 ? n + length : n, low, high);
  };
  const Integer first = place(start, by > 0 ? low : high), last = place(stop, by > 0 ? high : low);
  const Integer distance = by > 0 ? last - first : first - last;
  const std::size_t count = distance <= 0 ? 0 : static_cast<std::size_t>((distance - 1) / (by > 0 ? by : -by) + 1);

  if (const List* list = object.list()) {
    context.spend_bytes(count * sizeof(Value));
    std::vector<Value> items;
    items.reserve(count);
    Integer at = first;
    for (std::size_t i = 0; i < count; ++i, at += by) items.push_back(list->items[static_cast<std::size_t>(at)]);
    return make_list(context, std::move(items));
  }
  const Str& s = *object.str();
  if (by == 1) {
    if (count == 0) return make_str("");
    const std::size_t begin = byte_of(s.text, first);
    return substr(s, begin, begin + byte_of(std::string_view(s.text).substr(begin), static_cast<Integer>(count)));
  }
  context.spend_bytes(s.text.size() * sizeof(std::size_t));
  std::vector<std::size_t> starts;
  for (std::size_t at = 0; at < s.text.size(); at += character_length(s.text, at)) starts.push_back(at);
  StrBuilder out;
  Integer at = first;
  for (std::size_t i = 0; i < count; ++i, at += by) {
    const std::size_t begin = starts[static_cast<std::size_t>(at)];
    context.spend_bytes(sizeof(Range));
    out.append(s, begin, begin + character_length(s.text, begin));
  }
  return out.take();
}

}  // namespace glyd::text::jinja
