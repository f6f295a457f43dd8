#include "text/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

namespace glyd::text::jinja {
namespace {

bool is_space(std::string_view c) {
  if (c.size() == 1) return c[0] == ' ' || (c[0] >= 0x09 && c[0] <= 0x0D) || (c[0] >= 0x1C && c[0] <= 0x1F);
  static constexpr std::string_view kSpaces[] = {
      "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81", "\xE2\x80\x82", "\xE2\x80\x83",
      "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86", "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A",
      "\xE2\x80\xA8", "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};
  return std::find(std::begin(kSpaces), std::end(kSpaces), c) != std::end(kSpaces);
}

int depth_of(const Value& v) {
  if (const List* list = v.list()) return list->depth;
  if (const DictPtr* dict = v.as<DictPtr>()) return (*dict)->depth;
  return 0;
}

void check_depth(Context& context, int depth) {
  if (depth > kMaxValueDepth) context.error("lists or mappings are nested deeper than {} levels", kMaxValueDepth);
}

}  // namespace

const Dict* Value::dict() const {
  if (const DictPtr* d = as<DictPtr>()) return d->get();
  if (const Str* s = str()) return s->also.as<DictPtr>() ? s->also.dict() : nullptr;
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [k, value] : items) {
    if (k->text == key) return &value;
  }
  return nullptr;
}

const Value* find(Context& context, const Dict& dict, std::string_view key) {
  context.spend_bytes(8 * dict.items.size());
  return dict.find(key);
}

// --- text ------------------------------------------------------------------------------------------------------------

void StrBuilder::taint(std::size_t begin, std::size_t end) {
  if (begin == end) return;
  if (!out_.tainted.empty() && out_.tainted.back().end == begin) {
    out_.tainted.back().end = end;
  } else {
    out_.tainted.push_back({begin, end});
  }
}

void StrBuilder::append(std::string_view text, bool tainted) {
  const std::size_t at = size();
  out_.text.append(text);
  if (tainted) taint(at, size());
}

void StrBuilder::append(const Str& s, std::size_t begin, std::size_t end) {
  const std::size_t at = size();
  out_.text.append(s.text, begin, end - begin);
  auto range = std::partition_point(s.tainted.begin(), s.tainted.end(), [&](const Range& r) { return r.end <= begin; });
  for (; range != s.tainted.end() && range->begin < end; ++range) {
    taint(at + std::max(range->begin, begin) - begin, at + std::min(range->end, end) - begin);
  }
}

StrPtr make_str(std::string text, bool tainted) {
  auto s = std::make_shared<Str>();
  s->text = std::move(text);
  if (tainted && !s->text.empty()) s->tainted.push_back({0, s->text.size()});
  return s;
}

StrPtr substr(const Str& s, std::size_t begin, std::size_t end) {
  StrBuilder out;
  out.append(s, begin, end);
  return out.take();
}

std::size_t character_length(std::string_view s, std::size_t at) {
  std::size_t end = at + 1;
  while (end < s.size() && is_continuation(s[end])) ++end;
  return end - at;
}

std::size_t character_count(std::string_view s) {
  return static_cast<std::size_t>(std::count_if(s.begin(), s.end(), [](char c) { return !is_continuation(c); })) +
         (!s.empty() && is_continuation(s[0]) ? 1 : 0);
}

std::size_t find_text(std::string_view text, std::string_view part, std::size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (part.empty()) return from;
  // memmem is linear in the worst case, std::string_view::find is not.
  const void* at = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return at == nullptr ? std::string_view::npos : static_cast<std::size_t>(static_cast<const char*>(at) - text.data());
}

Range stripped(std::string_view s, bool left, bool right, const std::string* set) {
  auto goes = [&](std::string_view c) { return set ? find_text(*set, c) != std::string_view::npos : is_space(c); };
  Range r{0, s.size()};
  while (left && r.begin < r.end) {
    const std::size_t length = character_length(s, r.begin);
    if (!goes(s.substr(r.begin, length))) break;
    r.begin += length;
  }
  while (right && r.begin < r.end) {
    std::size_t start = r.end - 1;
    while (start > r.begin && is_continuation(s[start])) --start;
    if (!goes(s.substr(start, r.end - start))) break;
    r.end = start;
  }
  return r;
}

// --- lists and mappings ----------------------------------------------------------------------------------------------

void check_storable(Context& context, const Value& value) {
  if (value.is<NamespacePtr>() || value.is<Macro>() || value.is<const Loop*>()) {
    context.error("{} cannot be put into a list, a mapping or a namespace", type_name(value));
  }
}

Value make_list(Context& context, std::vector<Value> items, bool generator) {
  context.spend_bytes(items.size() * sizeof(Value));
  auto list = std::make_shared<List>();
  for (const Value& item : items) {
    check_storable(context, item);
    list->depth = std::max(list->depth, 1 + depth_of(item));
  }
  check_depth(context, list->depth);
  list->items = std::move(items);
  list->generator = generator;
  return Value(ListPtr(std::move(list)));
}

Value make_dict(Context& context, std::vector<std::pair<StrPtr, Value>> items) {
  context.spend_bytes(items.size() * sizeof(items[0]));
  auto dict = std::make_shared<Dict>();
  for (const auto& [key, item] : items) {
    check_storable(context, item);
    dict->depth = std::max(dict->depth, 1 + depth_of(item));
  }
  check_depth(context, dict->depth);
  dict->items = std::move(items);
  return Value(DictPtr(std::move(dict)));
}

ListPtr elements(Context& context, const Value& value) {
  if (const ListPtr* list = value.as<ListPtr>()) return *list;
  std::vector<Value> items;
  if (const Dict* dict = value.dict()) {
    for (const auto& [key, item] : dict->items) items.emplace_back(key);
  } else if (const Str* s = value.str()) {
    context.spend_bytes(s->text.size() * 2 * sizeof(Str));
    for (std::size_t at = 0, length = 0; at < s->text.size(); at += length) {
      length = character_length(s->text, at);
      items.emplace_back(substr(*s, at, at + length));
    }
  } else if (!value.is<Undefined>()) {
    context.error("{} has no elements to go through", type_name(value));
  }
  return std::get<ListPtr>(make_list(context, std::move(items)).v);
}

Value pairs(Context& context, const Dict& dict, bool generator) {
  std::vector<Value> out;
  for (const auto& [key, item] : dict.items) out.push_back(make_list(context, {Value(key), item}));
  return make_list(context, std::move(out), generator);
}

// --- Python's idea of values -----------------------------------------------------------------------------------------

std::string_view type_name(const Value& value) {
  static constexpr std::string_view kNames[] = {
      "an undefined value", "none",        "a boolean", "an integer",        "a float",   "a string", "a list",
      "a mapping",          "a namespace", "a macro",   "the loop variable", "a function"};
  static_assert(std::size(kNames) == std::variant_size_v<decltype(value.v)>);
  return kNames[value.v.index()];
}

bool is_number(const Value& value) { return value.is<bool>() || value.is<Integer>() || value.is<double>(); }

bool as_integer(const Value& value, Integer& out) {
  if (const bool* b = value.as<bool>()) return out = *b, true;
  if (const Integer* n = value.as<Integer>()) return out = *n, true;
  return false;
}

double as_double(const Value& number) {
  Integer n = 0;
  return as_integer(number, n) ? static_cast<double>(n) : *number.as<double>();
}

bool truthy(const Value& value) {
  if (value.is<Undefined>() || value.is<None>()) return false;
  if (is_number(value)) return as_double(value) != 0;
  if (const Str* s = value.str()) return !s->text.empty();
  if (const List* list = value.list()) return list->generator || !list->items.empty();
  if (const Dict* dict = value.dict()) return !dict->items.empty();
  return true;
}

bool equal(Context& context, const Value& a, const Value& b) {
  context.spend_step();
  if (is_number(a) && is_number(b)) {
    Integer x = 0, y = 0;
    return as_integer(a, x) && as_integer(b, y) ? x == y : as_double(a) == as_double(b);
  }
  if (a.v.index() != b.v.index()) return false;
  if (const Str* s = a.str()) {
    context.spend_bytes(std::min(s->text.size(), b.str()->text.size()));
    return s->text == b.str()->text;
  }
  if (const List* x = a.list()) {
    const List* y = b.list();
    if (x->items.size() != y->items.size()) return false;
    for (std::size_t i = 0; i < x->items.size(); ++i) {
      if (!equal(context, x->items[i], y->items[i])) return false;
    }
    return true;
  }
  if (const Dict* x = a.dict()) {
    const Dict* y = b.dict();
    if (x->items.size() != y->items.size()) return false;
    for (const auto& [key, item] : x->items) {
      const Value* other = find(context, *y, key->text);
      if (!other || !equal(context, item, *other)) return false;
    }
    return true;
  }
  if (a.is<NamespacePtr>()) return *a.as<NamespacePtr>() == *b.as<NamespacePtr>();
  return a.is<Undefined>() || a.is<None>();
}

bool less(Context& context, const Value& a, const Value& b) {
  if (is_number(a) && is_number(b)) {
    Integer x = 0, y = 0;
    return as_integer(a, x) && as_integer(b, y) ? x < y : as_double(a) < as_double(b);
  }
  if (!a.str() || !b.str()) context.error("{} and {} cannot be compared by size", type_name(a), type_name(b));
  context.spend_bytes(std::min(a.str()->text.size(), b.str()->text.size()));
  return a.str()->text < b.str()->text;  // the order of bytes is that of code points in UTF-8
}

bool contains(Context& context, const Value& item, const Value& container) {
  if (container.is<Undefined>()) return false;
  if (container.is<DictPtr>()) return item.str() && find(context, *container.dict(), item.str()->text) != nullptr;
  if (const List* list = container.list()) {
    return std::any_of(list->items.begin(), list->items.end(), [&](const Value& v) { return equal(context, v, item); });
  }
  const Str* text = container.str();
  if (!text) context.error("`in` cannot look into {}", type_name(container));
  if (!item.str()) context.error("`in` looks for {} in a string", type_name(item));
  context.spend_bytes(text->text.size());
  return find_text(text->text, item.str()->text) != std::string_view::npos;
}

std::string number_text(Integer n) { return fmt::format("{}", n); }

std::string number_text(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x < 0 ? "-inf" : "inf";
  // The shortest digits that read back as x, d.ddde[+-]xx; then laid out by Python's rule: plain for 1e-4 <= |x| <
  // 1e16.
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, x, std::chars_format::scientific);
  std::string_view text(buffer, static_cast<std::size_t>(result.ptr - buffer));
  std::string out;
  if (text[0] == '-') out = "-", text.remove_prefix(1);
  const std::size_t e = text.find('e');
  int exponent = 0;
  const std::size_t sign = text[e + 1] == '+' ? 2 : 1;
  std::from_chars(text.data() + e + sign, text.data() + text.size(), exponent);
  std::string digits(1, text[0]);
  if (e > 1) digits.append(text.substr(2, e - 2));
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (count > 1) out += "." + digits.substr(1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  if (exponent + 1 >= count)
    return out + digits + std::string(static_cast<std::size_t>(exponent + 1 - count), '0') + ".0";
  return out + digits.substr(0, static_cast<std::size_t>(exponent) + 1) + "." +
         digits.substr(static_cast<std::size_t>(exponent) + 1);
}

void append_text(Context& context, StrBuilder& out, const Value& value) {
  const std::size_t before = out.size();
  if (const Str* s = value.str()) {
    context.spend_bytes(s->text.size() + s->tainted.size() * sizeof(Range));
    out.append(*s);
    return;
  }
  if (value.is<None>())
    out.append("None");
  else if (const bool* b = value.as<bool>())
    out.append(*b ? "True" : "False");
  else if (const Integer* n = value.as<Integer>())
    out.append(number_text(*n));
  else if (const double* x = value.as<double>())
    out.append(number_text(*x));
  else if (value.list() || value.dict())
    context.error("{} is printed; only `tojson` writes one", type_name(value));
  else if (!value.is<Undefined>())
    context.error("{} is printed", type_name(value));
  context.spend_bytes(out.size() - before);
}

StrPtr to_str(Context& context, const Value& value) {
  if (const StrPtr* s = value.as<StrPtr>()) return *s;
  StrBuilder out;
  append_text(context, out, value);
  return out.take();
}

}  // namespace glyd::text::jinja
