#include "text/chat_template.h"

#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "io/file.h"
#include "text/jinja/eval.h"
#include "text/jinja/parse.h"

namespace glyd::text {
namespace {

using io::OrderedJson;
using jinja::Context;
using jinja::Dict;
using jinja::DictPtr;
using jinja::Integer;
using jinja::None;
using jinja::Str;
using jinja::StrPtr;
using jinja::Value;

constexpr int kMaxInputDepth = 80;                             // of messages and tools; below jinja::kMaxValueDepth
constexpr std::uint64_t kMaxConfig = std::uint64_t{64} << 20;  // bytes of tokenizer_config.json

// --- messages as template values -------------------------------------------------------------------------------------

// JSON that came from outside: every string in it, keys too, is content.
Value to_value(Context& context, const OrderedJson& json, int depth = 0) {
  if (depth > kMaxInputDepth) fail(Code::Usage, "messages or tools are nested deeper than {} levels", kMaxInputDepth);
  switch (json.type()) {
    case OrderedJson::value_t::null:
      return None{};
    case OrderedJson::value_t::boolean:
      return json.get<bool>();
    case OrderedJson::value_t::number_integer:
      return static_cast<Integer>(json.get<std::int64_t>());
    case OrderedJson::value_t::number_unsigned:
      return static_cast<Integer>(json.get<std::uint64_t>());
    case OrderedJson::value_t::number_float:
      return json.get<double>();
    case OrderedJson::value_t::string:
      return jinja::make_str(json.get_ref<const std::string&>(), true);
    case OrderedJson::value_t::array: {
      std::vector<Value> items;
      for (const OrderedJson& item : json) items.push_back(to_value(context, item, depth + 1));
      return make_list(context, std::move(items));
    }
    case OrderedJson::value_t::object: {
      std::vector<std::pair<StrPtr, Value>> items;
      for (const auto& [key, item] : json.items()) {
        items.emplace_back(jinja::make_str(key, true), to_value(context, item, depth + 1));
      }
      return make_dict(context, std::move(items));
    }
    default:
      fail(Code::Usage, "messages or tools hold a value of type {}, which is not JSON", json.type_name());
  }
}

// A string that is something else as well (jinja::Str::also).
Value string_that_is(std::string text, Value also) {
  auto s = std::make_shared<Str>(*jinja::make_str(std::move(text), true));
  s->also = std::move(also);
  return StrPtr(std::move(s));
}

using Fields = std::vector<std::pair<StrPtr, Value>>;

Value* field(Fields& fields, std::string_view name) {
  for (auto& [key, value] : fields) {
    if (key->text == name) return &value;
  }
  return nullptr;
}

// Arguments as JSON text of an object become a string that is this object as well.
void parse_arguments(Context& context, Fields& call) {
  Value* arguments = field(call, "arguments");
  const Str* text = arguments ? arguments->str() : nullptr;
  if (!text) return;
  OrderedJson parsed;
  try {
    parsed = io::parse_ordered_json(text->text, "arguments");
  } catch (const Error&) {
    return;  // what a model wrote need not be JSON; then it is just a string
  }
  if (parsed.is_object()) *arguments = string_that_is(text->text, to_value(context, parsed));
}

// A tool call, {"type": "function", "function": {"name", "arguments"}} or the inner mapping alone.
Value tool_call(Context& context, const Value& value) {
  const Dict* dict = value.dict();
  if (!dict) return value;
  Fields fields = dict->items;
  parse_arguments(context, fields);
  if (Value* function = field(fields, "function"); function && function->dict()) {
    Fields inner = function->dict()->items;
    parse_arguments(context, inner);
    *function = make_dict(context, std::move(inner));
  }
  return make_dict(context, std::move(fields));
}

// The text of content that is a list of parts: strings, or {"type": "text", "text": ...}.
std::string joined_parts(const OrderedJson& parts, std::size_t message) {
  std::string text;
  for (const OrderedJson& part : parts) {
    if (part.is_string()) {
      text += part.get_ref<const std::string&>();
      continue;
    }
    const auto type = part.is_object() ? part.find("type") : part.end();
    const auto value = part.is_object() ? part.find("text") : part.end();
    const bool is_text = part.is_object() && value != part.end() && value->is_string() &&
                         (type == part.end() || (type->is_string() && type->get_ref<const std::string&>() == "text"));
    if (!is_text) {
      fail(Code::Usage, "messages[{}].content has a part {}; only parts of type 'text' are supported", message,
           part.is_object() && type != part.end() && type->is_string()
               ? "of type " + quote(type->get_ref<const std::string&>(), 40)
               : std::string("that is no text part"));
    }
    text += value->get_ref<const std::string&>();
  }
  return text;
}

Value message_value(Context& context, const OrderedJson& message, std::size_t index) {
  if (!message.is_object()) {
    fail(Code::Usage, "messages[{}] is {}; expected an object with 'role' and 'content'", index, message.type_name());
  }
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string())
    fail(Code::Usage, "messages[{}] has no 'role' that is a string", index);
  const auto given = message.find("content");
  Value content;
  if (given == message.end() || given->is_null()) {
    content = string_that_is("", None{});
  } else if (given->is_array()) {
    content = jinja::make_str(joined_parts(*given, index), true);
  } else {
    content = to_value(context, *given);
  }
  Fields fields;
  for (const auto& [key, item] : message.items()) {
    Value value = key == "content" ? content : to_value(context, item, 2);
    if (key == "tool_calls" && value.list()) {
      std::vector<Value> calls;
      for (const Value& call : value.list()->items) calls.push_back(tool_call(context, call));
      value = make_list(context, std::move(calls));
    }
    fields.emplace_back(jinja::make_str(key, true), std::move(value));
  }
  if (given == message.end()) fields.emplace_back(jinja::make_str("content"), std::move(content));
  return make_dict(context, std::move(fields));
}

Value messages_value(Context& context, const OrderedJson& messages) {
  if (!messages.is_array() || messages.empty()) {
    fail(Code::Usage, "messages is {}; expected a list of at least one message",
         messages.is_array() ? "an empty list" : messages.type_name());
  }
  std::vector<Value> out;
  for (const OrderedJson& message : messages) out.push_back(message_value(context, message, out.size()));
  return make_list(context, std::move(out));
}

// --- files -----------------------------------------------------------------------------------------------------------

// bos_token and eos_token: a string, or an object with the string as "content"; empty when absent.
std::string token_text(const OrderedJson& config, const char* name, const std::string& what) {
  const auto token = config.find(name);
  if (token == config.end() || token->is_null()) return "";
  if (token->is_string()) return token->get<std::string>();
  if (token->is_object()) {
    const auto content = token->find("content");
    if (content != token->end() && content->is_string()) return content->get<std::string>();
  }
  fail(Code::Model, "{}: '{}' is {}; expected a string, or an object with a string 'content'", printable(what), name,
       token->type_name());
}

}  // namespace

struct ChatTemplate::Impl {
  jinja::Template main;
  std::optional<jinja::Template> tool_use;  // instead of main when there are tools
  std::string bos_token, eos_token;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

ChatTemplate ChatTemplate::parse(std::string source, const std::string& what, std::string bos_token,
                                 std::string eos_token) {
  auto impl = std::make_unique<Impl>();
  impl->main = jinja::parse(source, what);
  impl->bos_token = std::move(bos_token);
  impl->eos_token = std::move(eos_token);
  return ChatTemplate(std::move(impl));
}

std::optional<ChatTemplate> ChatTemplate::load(const std::filesystem::path& dir) {
  const std::filesystem::path config_path = dir / "tokenizer_config.json", jinja_path = dir / "chat_template.jinja";
  const std::string what = config_path.string();
  OrderedJson config = OrderedJson::object();
  if (io::is_regular_file(config_path)) {
    config = io::parse_ordered_json(io::read_text(config_path, kMaxConfig), what);
    if (!config.is_object())
      fail(Code::Model, "{}: {} at the top; expected an object", printable(what), config.type_name());
  }
  const std::string bos_token = token_text(config, "bos_token", what),
                    eos_token = token_text(config, "eos_token", what);
  if (io::is_regular_file(jinja_path)) {
    return parse(io::read_text(jinja_path, jinja::kMaxSource), jinja_path.string(), bos_token, eos_token);
  }
  const auto given = config.find("chat_template");
  if (given == config.end() || given->is_null()) return std::nullopt;
  const std::string at = what + ": chat_template";
  if (given->is_string()) return parse(given->get<std::string>(), at, bos_token, eos_token);
  if (!given->is_array()) {
    fail(Code::Model, "{} is {}; expected a string or a list of {{name, template}}", printable(at), given->type_name());
  }

  auto impl = std::make_unique<Impl>();
  bool has_default = false;
  for (const OrderedJson& entry : *given) {
    const auto name = entry.is_object() ? entry.find("name") : entry.end();
    const auto text = entry.is_object() ? entry.find("template") : entry.end();
    if (!entry.is_object() || name == entry.end() || !name->is_string() || text == entry.end() || !text->is_string()) {
      fail(Code::Model, "{}: an entry of the list is not {{name, template}} with two strings", printable(at));
    }
    const std::string& label = name->get_ref<const std::string&>();
    const std::string& source = text->get_ref<const std::string&>();
    if (label == "default") {
      impl->main = jinja::parse(source, at + " 'default'");
      has_default = true;
    } else if (label == "tool_use") {
      impl->tool_use = jinja::parse(source, at + " 'tool_use'");
    }
  }
  if (!has_default) fail(Code::Model, "{}: the list has no template named 'default'", printable(at));
  impl->bos_token = bos_token;
  impl->eos_token = eos_token;
  return ChatTemplate(std::move(impl));
}

Rendered ChatTemplate::render(const ChatInput& input) const {
  const bool has_tools = !input.tools.is_null() && !input.tools.empty();
  if (has_tools && !input.tools.is_array()) {
    fail(Code::Usage, "tools is {}; expected a list of tool definitions", input.tools.type_name());
  }
  if (!input.extra.is_object())
    fail(Code::Usage, "extra variables are {}; expected an object", input.extra.type_name());

  const jinja::Template& source = has_tools && impl_->tool_use ? *impl_->tool_use : impl_->main;
  Context context(source.what);
  std::vector<std::pair<std::string, Value>> variables;
  variables.emplace_back("messages", messages_value(context, input.messages));
  variables.emplace_back("tools", has_tools ? to_value(context, input.tools) : Value(None{}));
  variables.emplace_back("add_generation_prompt", input.add_generation_prompt);
  // The first of a name counts: extra variables replace those below, not those above.
  for (const auto& [name, value] : input.extra.items()) variables.emplace_back(name, to_value(context, value));
  variables.emplace_back("documents", None{});
  variables.emplace_back("bos_token", jinja::make_str(impl_->bos_token));
  variables.emplace_back("eos_token", jinja::make_str(impl_->eos_token));

  const StrPtr out = jinja::evaluate(source, context, variables);
  return {out->text, out->tainted};
}

bool ChatTemplate::mentions(const std::string& name) const {
  return impl_->main.names.contains(name) || (impl_->tool_use && impl_->tool_use->names.contains(name));
}

}  // namespace glyd::text
