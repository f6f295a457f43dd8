#include "text/jinja/builtins.h"

#include <algorithm>
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

}  // namespace

const TestDef* find_test(std::string_view name) { return look_up<kTests>(name); }
const FunctionDef* find_function(std::string_view name) { return look_up<kFunctions>(name); }

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
