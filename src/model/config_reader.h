#pragma once
// Typed look-up in a JSON object of a config file; every message names the file, the key, what was found and expected.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "io/json.h"

namespace glyd::model {

// Reads keys of `object`, which must outlive the reader. Absent keys and explicit nulls both give an empty optional.
// All errors are Error(Model).
class ConfigReader {
 public:
  // `what` is the file's path; `path` stands before keys in messages: "rope_scaling." for a nested object.
  ConfigReader(const io::Json& object, std::string what, std::string path = "")
      : object_(object), what_(std::move(what)), path_(std::move(path)) {}

  // The key's value; null when it is absent. An explicit null is returned as such.
  const io::Json* find(const char* key) const;
  bool has(const char* key) const;  // present and not null

  std::optional<bool> boolean(const char* key) const;
  std::optional<std::string> string(const char* key) const;
  std::optional<double> number(const char* key, double low, double high) const;  // in [low, high]
  std::optional<std::int64_t> integer(const char* key, std::int64_t low, std::int64_t high) const;
  std::int64_t required(const char* key, std::int64_t low, std::int64_t high) const;  // absent is an error
  std::vector<std::int32_t> token_ids(const char* key) const;  // an integer, a list of them, or nothing; no repeats

  // "config.json: hidden_act is "gelu"; <expected>".
  [[noreturn]] void refuse(const char* key, const std::string& expected) const;

  const std::string& what() const { return what_; }
  std::string name(const char* key) const { return path_ + key; }

 private:
  const io::Json& object_;
  std::string what_, path_;
};

// `value` as an integer: 7 or 7.0, up to 2^53; empty for anything else.
std::optional<std::int64_t> as_integer(const io::Json& value);

// A JSON value as it may stand in a message: one printable line, shortened.
std::string json_text(const io::Json& value);

}  // namespace glyd::model
