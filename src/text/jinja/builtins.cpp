#include "text/jinja/builtins.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>

#include "text/jinja/strings.h"

namespace glyd::text::jinja {

// --- arguments -------------------------------------------------------------------------------------------------------

const Value* Arguments::take(std::string_view name) {
  if (next_ < positional.size()) return &positional[next_++];
  used_.resize(keywords.size());
  for (std::size_t i = 0; i < keywords.size(); ++i) {
    if (keywords[i].first == name) return used_[i] = true, &keywords[i].second;
  }
  return nullptr;
}

const Value& Arguments::need(std::string_view name) {
  const Value* value = take(name);
  if (!value) context_.error("'{}' needs the argument '{}'", callee_, name);
  return *value;
}

const Str& Arguments::need_str(std::string_view name) {
  const Value& value = need(name);
  if (!value.str()) context_.error("'{}' needs a string as '{}', not {}", callee_, name, type_name(value));
  return *value.str();
}

const Str* Arguments::take_str(std::string_view name) {
  const Value* value = take(name);
  if (!value || value->is<None>()) return nullptr;
  if (!value->str()) context_.error("'{}' needs a string as '{}', not {}", callee_, name, type_name(*value));
  return value->str();
}

bool Arguments::take_integer(std::string_view name, Integer& out) {
  const Value* value = take(name);
  if (!value || value->is<None>()) return false;
  if (!value->is<Integer>()) context_.error("'{}' needs an integer as '{}', not {}", callee_, name, type_name(*value));
  out = *value->as<Integer>();
  return true;
}

void Arguments::done() const {
  if (next_ < positional.size()) context_.error("'{}' is given too many arguments", callee_);
  for (std::size_t i = 0; i < keywords.size(); ++i) {
    if (i >= used_.size() || !used_[i])
      context_.error("'{}' has no argument {}", callee_, quote(keywords[i].first, 40));
  }
}

namespace {

// --- tests -----------------------------------------------------------------------------------------------------------

template <class... Types>
bool is_one_of(const Value& v, Arguments& a) {
  a.done();
  return (v.is<Types>() || ...);
}

bool test_none(const Value& v, Arguments& a) {
  a.done();
  return v.is<None>() || (v.str() && v.str()->also.is<None>());
}

template <bool expected>
bool test_bool(const Value& v, Arguments& a) {
  a.done();
  return v.is<bool>() && *v.as<bool>() == expected;
}

bool test_sequence(const Value& v, Arguments& a) {
  return is_one_of<Undefined, StrPtr, ListPtr, DictPtr>(v, a) && !(v.list() && v.list()->generator);
}

bool test_defined(const Value& v, Arguments& a) { return !is_one_of<Undefined>(v, a); }

// One argument, taken before the operation.
template <bool (*operation)(Context&, const Value&, const Value&), bool swapped, bool negated>
bool test_compare(const Value& v, Arguments& a) {
  const Value& other = a.need("other");
  a.done();
  return operation(a.context(), swapped ? other : v, swapped ? v : other) != negated;
}

template <int remainder>
bool test_parity(const Value& v, Arguments& a) {
  a.done();
  if (!v.is<Integer>()) a.context().error("'{}' is asked of {}", a.callee(), type_name(v));
  return (*v.as<Integer>() & 1) == remainder;
}

constexpr TestDef kTests[] = {
    {"boolean", is_one_of<bool>},
    {"defined", test_defined},
    {"eq", test_compare<equal, false, false>},
    {"equalto", test_compare<equal, false, false>},
    {"even", test_parity<0>},
    {"false", test_bool<false>},
    {"float", is_one_of<double>},
    {"ge", test_compare<less, false, true>},
    {"gt", test_compare<less, true, false>},
    {"in", test_compare<contains, false, false>},
    {"integer", is_one_of<Integer>},
    {"iterable", is_one_of<Undefined, StrPtr, ListPtr, DictPtr>},
    {"le", test_compare<less, true, true>},
    {"lt", test_compare<less, false, false>},
    {"mapping", is_one_of<DictPtr>},
    {"ne", test_compare<equal, false, true>},
    {"none", test_none},
    {"number", is_one_of<bool, Integer, double>},
    {"odd", test_parity<1>},
    {"sequence", test_sequence},
    {"string", is_one_of<StrPtr>},
    {"true", test_bool<true>},
    {"undefined", is_one_of<Undefined>},
};

// --- filters ---------------------------------------------------------------------------------------------------------

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

Value pairs(Context& context, const Dict& dict, bool generator) {
  std::vector<Value> out;
  for (const auto& [key, item] : dict.items) out.push_back(make_list(context, {Value(key), item}));
  return make_list(context, std::move(out), generator);
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

// --- functions -------------------------------------------------------------------------------------------------------

Value function_range(Arguments& a) {
  Context& context = a.context();
  if (!a.keywords.empty()) context.error("'range' takes no arguments by name");
  Integer bounds[3] = {0, 0, 1};
  const std::size_t count = a.positional.size();
  if (count < 1 || count > 3) context.error("'range' takes one to three integers, not {}", count);
  for (std::size_t i = 0; i < count; ++i) {
    if (!a.take_integer("bound", bounds[i])) context.error("'range' takes integers, not none");
  }
  if (count == 1) std::swap(bounds[0], bounds[1]);
  const auto [start, stop, step] = bounds;
  if (step == 0) context.error("'range' with a step of 0");
  constexpr std::size_t kMaxRange = 100'000;  // as in Jinja's sandbox
  std::vector<Value> out;
  Integer i = start;
  while (step > 0 ? i < stop : i > stop) {
    if (out.size() == kMaxRange) context.error("'range' of more than {} numbers", kMaxRange);
    out.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return make_list(context, std::move(out));
}

Value function_namespace(Arguments& a) {
  auto ns = std::make_shared<Namespace>();
  while (a.more()) {
    const Value& from = a.need("mapping");
    if (!from.dict()) a.context().error("'namespace' takes a mapping or names, not {}", type_name(from));
    for (const auto& [key, item] : from.dict()->items) ns->items[key->text] = item;
  }
  for (const auto& [name, item] : a.keywords) {
    check_storable(a.context(), item);
    ns->items[std::string(name)] = item;
  }
  return ns;
}

Value function_raise_exception(Arguments& a) {
  const StrPtr words = to_str(a.context(), a.need("message"));
  a.done();
  const std::string shown = quote(words->text, 500);
  a.context().error("the template refuses the conversation: {}", shown);
}

Value function_strftime_now(Arguments& a) {
  const Str& format = a.need_str("format");
  a.done();
  Context& context = a.context();
  for (std::size_t i = 0; i < format.text.size(); ++i) {
    if (format.text[i] != '%') continue;
    const char c = ++i < format.text.size() ? format.text[i] : '\0';
    if (c == '\0' || std::string_view("aAbBcdHIjmMpSuUwWxXyYzZ%").find(c) == std::string_view::npos) {
      context.error("'strftime_now' does not know the conversion {}", quote(format.text.substr(i - 1, 2)));
    }
  }
  if (format.text.empty()) return make_str("");
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char buffer[512];
  const std::size_t n = std::strftime(buffer, sizeof buffer, format.text.c_str(), &local);
  if (n == 0) context.error("'strftime_now' writes more than {} bytes", sizeof buffer);
  return make_str(std::string(buffer, n));
}

constexpr FunctionDef kFunctions[] = {{"namespace", function_namespace},
                                      {"raise_exception", function_raise_exception},
                                      {"range", function_range},
                                      {"strftime_now", function_strftime_now}};

// --- methods of mappings ---------------------------------------------------------------------------------------------

constexpr std::string_view kDictMethods[] = {"get", "items", "keys", "values"};

Value dict_method(const Dict& dict, std::string_view name, Arguments& a) {
  Context& context = a.context();
  if (name == "get") {
    const Value& key = a.need("key");
    const Value* fallback = a.take("default");
    a.done();
    const Value* item = key.str() ? find(context, dict, key.str()->text) : nullptr;
    return item ? *item : fallback ? *fallback : Value(None{});
  }
  a.done();
  if (name == "items") return pairs(context, dict, false);
  std::vector<Value> out;
  for (const auto& [key, item] : dict.items) out.push_back(name == "keys" ? Value(key) : item);
  return make_list(context, std::move(out));
}

bool is_dict_method(std::string_view name) {
  return std::find(std::begin(kDictMethods), std::end(kDictMethods), name) != std::end(kDictMethods);
}

template <class Table>
auto look_up(const Table& table, std::string_view name) -> decltype(&table[0]) {
  const auto at = std::lower_bound(std::begin(table), std::end(table), name,
                                   [](const auto& entry, std::string_view n) { return entry.name < n; });
  return at != std::end(table) && at->name == name ? at : nullptr;
}

}  // namespace

const FilterDef* find_filter(std::string_view name) { return look_up(kFilters, name); }
const TestDef* find_test(std::string_view name) { return look_up(kTests, name); }
const FunctionDef* find_function(std::string_view name) { return look_up(kFunctions, name); }

bool is_method(const Value& object, std::string_view name) {
  return object.is<DictPtr>() ? is_dict_method(name) : object.str() && find_str_method(name) != nullptr;
}

Value call_method(const Value& object, std::string_view name, Arguments& a) {
  if (const Str* s = object.str()) {
    if (const StrMethod* method = find_str_method(name)) return method->apply(a.context(), *s, a);
  }
  if (const Dict* dict = object.dict(); dict && is_dict_method(name)) return dict_method(*dict, name, a);
  a.context().error("{} has no method {} that is known here", type_name(object), quote(name, 40));
}

Value member(Context& context, const Value& object, std::string_view name, std::string_view from) {
  if (object.is<Undefined>()) {
    context.error("{} is undefined, so that it has no {}", quote(from, 80), quote(name, 40));
  }
  if (const NamespacePtr* ns = object.as<NamespacePtr>()) {
    const auto at = (*ns)->items.find(name);
    return at == (*ns)->items.end() ? Value() : at->second;
  }
  if (const Dict* dict = object.dict()) {
    const Value* item = find(context, *dict, name);
    return item ? *item : Value();
  }
  return Value();
}

}  // namespace glyd::text::jinja
