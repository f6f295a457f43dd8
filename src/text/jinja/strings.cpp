#include "text/jinja/strings.h"

#include <utf8proc.h>

#include <algorithm>

namespace glyd::text::jinja {
namespace {

// Whether [begin, end) begins inside of a tainted range; ranges never split a character in practice, so the first byte
// decides for all of it.
bool is_tainted(const Str& s, std::size_t begin) {
  const auto range =
      std::partition_point(s.tainted.begin(), s.tainted.end(), [&](const Range& r) { return r.end <= begin; });
  return range != s.tainted.end() && range->begin <= begin;
}

// Every character through `change`, by Unicode's one-to-one mappings (Python makes SS of ß).
template <class Change>
Value each_character(Context& context, const Str& s, Arguments& arguments, Change change) {
  arguments.done();
  context.spend_bytes(4 * s.text.size());
  StrBuilder out;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(s.text.data());
  bool first = true;
  for (std::size_t at = 0; at < s.text.size();) {
    utf8proc_int32_t cp = 0;
    const auto n = utf8proc_iterate(bytes + at, static_cast<utf8proc_ssize_t>(s.text.size() - at), &cp);
    std::string changed;
    if (n > 0)
      append_utf8(changed, static_cast<char32_t>(change(cp, first)));
    else
      changed.push_back(s.text[at]);  // not UTF-8: as it is
    out.append(changed, is_tainted(s, at));
    at += n > 0 ? static_cast<std::size_t>(n) : 1;
    first = false;
  }
  return out.take();
}

Value strip(Context& context, const Str& s, Arguments& arguments, bool left, bool right) {
  const Str* set = arguments.take_str("chars");
  arguments.done();
  if (set && set->text.size() > 256)
    context.error("a set of {} bytes to strip; at most 256 are accepted", set->text.size());
  context.spend_bytes(s.text.size());
  const Range r = stripped(s.text, left, right, set ? &set->text : nullptr);
  return substr(s, r.begin, r.end);
}

Value str_lstrip(Context& context, const Str& s, Arguments& a) { return strip(context, s, a, true, false); }
Value str_rstrip(Context& context, const Str& s, Arguments& a) { return strip(context, s, a, false, true); }

// startswith and endswith: one string or a list of them.
template <bool at_end>
Value affix(Context& context, const Str& s, Arguments& arguments) {
  const Value& wanted = arguments.need(at_end ? "suffix" : "prefix");
  arguments.done();
  auto matches = [&](const Value& v) {
    const Str* part = v.str();
    if (!part) context.error("'{}' looks for {}", arguments.callee(), type_name(v));
    context.spend_bytes(part->text.size());
    return at_end ? s.text.ends_with(part->text) : s.text.starts_with(part->text);
  };
  if (const List* list = wanted.list()) return std::any_of(list->items.begin(), list->items.end(), matches);
  return matches(wanted);
}

void add_piece(Context& context, std::vector<Value>& pieces, const Str& s, std::size_t begin, std::size_t end) {
  context.spend_bytes(sizeof(Str) + end - begin);
  pieces.emplace_back(substr(s, begin, end));
}

// split(): at a separator, or without one at runs of white space.
Value str_split(Context& context, const Str& s, Arguments& arguments) {
  const Str* separator = arguments.take_str("sep");
  Integer limit = -1;
  arguments.take_integer("maxsplit", limit);
  arguments.done();
  context.spend_bytes(s.text.size());
  std::vector<Value> pieces;
  std::size_t at = 0;
  if (separator) {
    if (separator->text.empty()) context.error("'split' at an empty string");
    for (; limit != 0; --limit) {
      const std::size_t found = find_text(s.text, separator->text, at);
      if (found == std::string_view::npos) break;
      add_piece(context, pieces, s, at, found);
      at = found + separator->text.size();
    }
    add_piece(context, pieces, s, at, s.text.size());
    return make_list(context, std::move(pieces));
  }
  const std::string_view text = s.text;
  while (true) {
    at += stripped(text.substr(at), true, false).begin;
    if (at == text.size()) break;
    if (limit-- == 0) {
      add_piece(context, pieces, s, at, text.size());
      break;
    }
    std::size_t end = at;
    do {
      end += character_length(text, end);
    } while (end < text.size() && stripped(text.substr(end, character_length(text, end)), true, false).begin == 0);
    add_piece(context, pieces, s, at, end);
    at = end;
  }
  return make_list(context, std::move(pieces));
}

Value str_join(Context& context, const Str& s, Arguments& arguments) {
  const Value& list = arguments.need("iterable");
  arguments.done();
  StrBuilder out;
  bool first = true;
  const ListPtr items = elements(context, list);
  for (const Value& item : items->items) {
    context.spend_step();
    if (!item.str()) context.error("'join' of a string takes strings, not {}", type_name(item));
    context.spend_bytes(s.text.size() + item.str()->text.size() + (s.tainted.size() + 1) * sizeof(Range));
    if (!first) out.append(s);
    out.append(*item.str());
    first = false;
  }
  return out.take();
}

constexpr StrMethod kMethods[] = {
    {"capitalize", str_capitalize}, {"endswith", affix<true>}, {"join", str_join},     {"lower", str_lower},
    {"lstrip", str_lstrip},         {"replace", str_replace},  {"rstrip", str_rstrip}, {"split", str_split},
    {"startswith", affix<false>},   {"strip", str_strip},      {"upper", str_upper}};

}  // namespace

Value str_capitalize(Context& context, const Str& s, Arguments& a) {
  return each_character(context, s, a,
                        [](auto cp, bool first) { return first ? utf8proc_totitle(cp) : utf8proc_tolower(cp); });
}

Value str_lower(Context& context, const Str& s, Arguments& a) {
  return each_character(context, s, a, [](auto cp, bool) { return utf8proc_tolower(cp); });
}

Value str_upper(Context& context, const Str& s, Arguments& a) {
  return each_character(context, s, a, [](auto cp, bool) { return utf8proc_toupper(cp); });
}

Value str_strip(Context& context, const Str& s, Arguments& a) { return strip(context, s, a, true, true); }

Value str_replace(Context& context, const Str& s, Arguments& arguments) {
  const Str& from = arguments.need_str("old");
  const Str& to = arguments.need_str("new");
  Integer limit = -1;
  arguments.take_integer("count", limit);
  arguments.done();
  context.spend_bytes(s.text.size());
  StrBuilder out;
  std::size_t at = 0;
  for (; limit != 0; --limit) {
    const std::size_t found = find_text(s.text, from.text, at);
    if (found == std::string_view::npos) break;
    // An empty `from` is found before every character and at the end; the character goes along.
    const bool is_empty = from.text.empty();
    const bool at_end = is_empty && found == s.text.size();
    const std::size_t next = is_empty && !at_end ? found + character_length(s.text, found) : found + from.text.size();
    context.spend_bytes(to.text.size() + next - at + (to.tainted.size() + 1) * sizeof(Range));
    out.append(s, at, found);
    out.append(to);
    if (is_empty) out.append(s, found, next);
    at = next;
    if (at_end) break;
  }
  out.append(s, at, s.text.size());
  return out.take();
}

const StrMethod* find_str_method(std::string_view name) { return look_up<kMethods>(name); }

}  // namespace glyd::text::jinja
