#include "model/config_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/text.h"

namespace glyd::model {

std::string json_text(const io::Json& value) {
  constexpr std::size_t kLongest = 200;
  // A large value is described rather than written out, so that a message costs no more than its line.
  if (value.is_structured() && value.size() > 16) {
    return value.is_array() ? fmt::format("a list of {} values", value.size())
                            : fmt::format("an object of {} keys", value.size());
  }
  const std::string text = value.dump();
  if (text.size() <= kLongest) return printable(text);
  const std::string quoted = quote(text, kLongest);
  return quoted.substr(1, quoted.size() - 1);
}

std::optional<std::int64_t> as_integer(const io::Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return static_cast<std::int64_t>(number);
    }
    return std::nullopt;
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (std::trunc(number) == number && std::abs(number) < 0x1p53) return static_cast<std::int64_t>(number);
  }
  return std::nullopt;
}

const io::Json* ConfigReader::find(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() ? nullptr : &*it;
}

bool ConfigReader::has(const char* key) const {
  const io::Json* value = find(key);
  return value != nullptr && !value->is_null();
}

void ConfigReader::refuse(const char* key, const std::string& expected) const {
  const io::Json* value = find(key);
  fail(Code::Model, "{}: {} is {}; {}", printable(what_), name(key), value ? json_text(*value) : "missing", expected);
}

std::optional<bool> ConfigReader::boolean(const char* key) const {
  if (!has(key)) return std::nullopt;
  if (!find(key)->is_boolean()) refuse(key, "expected true or false");
  return find(key)->get<bool>();
}

std::optional<std::string> ConfigReader::string(const char* key) const {
  if (!has(key)) return std::nullopt;
  if (!find(key)->is_string()) refuse(key, "expected a string");
  return find(key)->get<std::string>();
}

std::optional<double> ConfigReader::number(const char* key, double low, double high) const {
  if (!has(key)) return std::nullopt;
  const io::Json& value = *find(key);
  const double number = value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
  if (!(number >= low && number <= high)) refuse(key, fmt::format("expected a number from {} to {}", low, high));
  return number;
}

std::optional<std::int64_t> ConfigReader::integer(const char* key, std::int64_t low, std::int64_t high) const {
  if (!has(key)) return std::nullopt;
  const auto number = as_integer(*find(key));
  if (!number || *number < low || *number > high) {
    refuse(key, fmt::format("expected an integer from {} to {}", low, high));
  }
  return number;
}

std::int64_t ConfigReader::required(const char* key, std::int64_t low, std::int64_t high) const {
  if (!has(key)) {
    fail(Code::Model, "{}: {} is {}; this model needs it, an integer from {} to {}", printable(what_), name(key),
         find(key) ? "null" : "missing", low, high);
  }
  return *integer(key, low, high);
}

std::vector<std::int32_t> ConfigReader::token_ids(const char* key) const {
  constexpr std::size_t kMost = 1024;
  std::vector<std::int32_t> ids;
  const auto add = [&](const io::Json& value) {
    const auto id = as_integer(value);
    if (!id || *id < 0 || *id > std::numeric_limits<std::int32_t>::max()) {
      refuse(key, "expected a token id, or a list of token ids, from 0 to 2147483647");
    }
    if (std::find(ids.begin(), ids.end(), *id) == ids.end()) ids.push_back(static_cast<std::int32_t>(*id));
  };
  if (!has(key)) return ids;
  const io::Json& value = *find(key);
  if (!value.is_array()) {
    add(value);
    return ids;
  }
  if (value.size() > kMost) refuse(key, fmt::format("expected at most {} token ids", kMost));
  for (const io::Json& entry : value) add(entry);
  return ids;
}

}  // namespace glyd::model
