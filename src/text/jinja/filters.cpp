// Filters: {{ value | name(arguments) }}.

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/strings.h"

namespace glyd::text::jinja {
namespace {

// A filter that works on text: what it is given is printed first, as Jinja does.
template <Value (*method)(Context&, const Str&, Arguments&)>
Value text_filter(const Value& v, Arguments& a) {
  const StrPtr text = to_str(a.context(), v);
  return method(a.context(), *text, a);
}

Value filter_tojson(const Value& v, Arguments& a) {
  Integer indent = -1;
  if (a.more()) a.context().error("'tojson' takes its arguments by name");
  a.take_integer("indent", indent);
  const Value* ascii = a.take("ensure_ascii");
  a.done();
  if (indent > 64) a.context().error("an indent of {} in 'tojson'; at most 64 is accepted", indent);
  return to_json(a.context(), v, static_cast<int>(std::max<Integer>(indent, -1)), ascii && truthy(*ascii));
}

Value filter_length(const Value& v, Arguments& a) {
  a.done();
  std::size_t n = 0;
  if (const Str* s = v.str()) {
    a.context().spend_bytes(s->text.size());
    n = character_count(s->text);
  } else if (const List* list = v.list()) {
    n = list->items.size();
  } else if (const Dict* dict = v.dict()) {
    n = dict->items.size();
  } else if (!v.is<Undefined>()) {
    a.context().error("{} has no length", type_name(v));
  }
  return static_cast<Integer>(n);
}

Value filter_items(const Value& v, Arguments& a) {
  a.done();
  if (v.is<Undefined>()) return make_list(a.context(), {}, true);
  if (!v.dict()) a.context().error("'items' needs a mapping, not {}", type_name(v));
  return pairs(a.context(), *v.dict(), true);
}

Value filter_string(const Value& v, Arguments& a) {
  a.done();
  return to_str(a.context(), v);
}

template <bool last>
Value filter_end(const Value& v, Arguments& a) {
  a.done();
  if (const Str* s = v.str()) {
    if (s->text.empty()) return Value();
    std::size_t at = last ? s->text.size() - 1 : 0;
    while (at > 0 && is_continuation(s->text[at])) --at;
    return substr(*s, at, at + character_length(s->text, at));
  }
  const ListPtr list = elements(a.context(), v);
  if (list->items.empty()) return Value();
  return last ? list->items.back() : list->items.front();
}

Value filter_default(const Value& v, Arguments& a) {
  const Value* fallback = a.take("default_value");
  const Value* also_falsy = a.take("boolean");
  a.done();
  const bool replace = v.is<Undefined>() || (also_falsy && truthy(*also_falsy) && !truthy(v));
  if (!replace) return v;
  return fallback ? *fallback : Value(make_str(""));
}

Value filter_list(const Value& v, Arguments& a) {
  a.done();
  const ListPtr list = elements(a.context(), v);
  return list->generator ? make_list(a.context(), list->items) : Value(list);
}

// A dotted path of names, as `attribute=` has it.
Value attribute_of(Context& context, const Value& v, std::string_view path) {
  Value at = v;
  while (true) {
    const std::size_t dot = path.find('.');
    at = member(context, at, path.substr(0, dot), "an element");
    if (dot == std::string_view::npos) return at;
    path.remove_prefix(dot + 1);
  }
}

Value filter_join(const Value& v, Arguments& a) {
  const Value* separator = a.take("d");
  const Str* attribute = a.take_str("attribute");
  a.done();
  Context& context = a.context();
  const StrPtr between = separator ? to_str(context, *separator) : make_str("");
  StrBuilder out;
  bool first = true;
  const ListPtr list = elements(context, v);
  for (const Value& item : list->items) {
    context.spend_step();
    if (!first) append_text(context, out, between);
    append_text(context, out, attribute ? attribute_of(context, item, attribute->text) : item);
    first = false;
  }
  return out.take();
}

// The rest of the arguments, for the test or filter that is named among them. Every element gets a copy, whose cost
// is counted beforehand.
Arguments rest_of(Arguments& a, std::string_view callee, std::size_t elements) {
  Arguments rest(a.context(), callee);
  while (a.more()) rest.positional.push_back(a.need(""));
  rest.keywords = a.keywords;
  a.context().spend_bytes(elements * (rest.positional.size() + 2 * rest.keywords.size()) * sizeof(Value));
  return rest;
}

// select, reject, selectattr, rejectattr: keeps the elements (or those with an attribute) that pass a test; without a
// test, the true ones.
template <bool keep, bool by_attribute>
Value filter_select(const Value& v, Arguments& a) {
  Context& context = a.context();
  const Str* attribute = by_attribute ? &a.need_str("attribute") : nullptr;
  const TestDef* test = nullptr;
  if (a.more()) {
    const Str& name = a.need_str("test");
    test = find_test(name.text);
    if (!test) context.error("unknown test {} in '{}'", quote(name.text, 40), a.callee());
  }
  const ListPtr list = elements(context, v);
  const Arguments rest = rest_of(a, test ? test->name : a.callee(), list->items.size());
  std::vector<Value> out;
  for (const Value& item : list->items) {
    context.spend_step();
    const Value subject = attribute ? attribute_of(context, item, attribute->text) : item;
    Arguments arguments = rest;
    bool passes = false;
    if (test) {
      passes = test->apply(subject, arguments);
    } else {
      arguments.done();
      passes = truthy(subject);
    }
    if (passes == keep) out.push_back(item);
  }
  return make_list(context, std::move(out), true);
}

Value filter_map(const Value& v, Arguments& a) {
  Context& context = a.context();
  std::vector<Value> out;
  if (!a.more()) {
    const Str& attribute = a.need_str("attribute");
    a.done();
    const ListPtr list = elements(context, v);
    for (const Value& item : list->items) {
      context.spend_step();
      out.push_back(attribute_of(context, item, attribute.text));
    }
    return make_list(context, std::move(out), true);
  }
  const Str& name = a.need_str("filter");
  const FilterDef* filter = find_filter(name.text);
  // A filter that maps filters would nest without a limit.
  if (!filter || filter->apply == filter_map) context.error("unknown filter {} in 'map'", quote(name.text, 40));
  const ListPtr list = elements(context, v);
  const Arguments rest = rest_of(a, filter->name, list->items.size());
  for (const Value& item : list->items) {
    context.spend_step();
    Arguments arguments = rest;
    out.push_back(filter->apply(item, arguments));
  }
  return make_list(context, std::move(out), true);
}

Value filter_int(const Value& v, Arguments& a) {
  Integer fallback = 0;
  a.take_integer("default", fallback);
  a.done();
  if (v.is<Integer>()) return v;
  if (v.is<Undefined>()) a.context().error("'int' of an undefined value");
  if (const bool* b = v.as<bool>()) return static_cast<Integer>(*b);
  double x = std::nan("");
  if (v.is<double>()) {
    x = *v.as<double>();
  } else if (const Str* s = v.str()) {
    const Range r = stripped(s->text, true, true);
    const char* begin = s->text.data() + r.begin;
    const char* end = s->text.data() + r.end;
    long long n = 0;
    if (const auto [at, error] = std::from_chars(begin, end, n); error == std::errc() && at == end) {
      return static_cast<Integer>(n);
    }
    if (const auto [at, error] = std::from_chars(begin, end, x); error != std::errc() || at != end) x = std::nan("");
  }
  return std::abs(x) < 9e18 ? static_cast<Integer>(x) : fallback;  // false for nan
}

constexpr FilterDef kFilters[] = {
    {"capitalize", text_filter<str_capitalize>},
    {"count", filter_length},
    {"d", filter_default},
    {"default", filter_default},
    {"first", filter_end<false>},
    {"int", filter_int},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_end<true>},
    {"length", filter_length},
    {"list", filter_list},
    {"lower", text_filter<str_lower>},
    {"map", filter_map},
    {"reject", filter_select<false, false>},
    {"rejectattr", filter_select<false, true>},
    {"replace", text_filter<str_replace>},
    {"safe", filter_string},
    {"select", filter_select<true, false>},
    {"selectattr", filter_select<true, true>},
    {"string", filter_string},
    {"tojson", filter_tojson},
    {"trim", text_filter<str_strip>},
    {"upper", text_filter<str_upper>},
};

}  // namespace

const FilterDef* find_filter(std::string_view name) { return look_up<kFilters>(name); }

}  // namespace glyd::text::jinja
