#pragma once
// JSON from files that are not trusted: strict, bounded in depth, no duplicate keys, nothing after the value.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace glyd::io {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // objects keep the order of their keys; look-up is linear

// Parses `text`; `what` (a path, an option) opens every message. Throws Error(Model): bad UTF-8, syntax (with the
// byte's place), nesting beyond `max_depth`, a key twice in one object, a number outside double's range, anything but
// white space after the value. Integers keep their kind: is_number_integer() is false for 1.0 and 1e3 and for integers
// above 2^64-1.
Json parse_json(std::string_view text, const std::string& what, int max_depth = 64);
OrderedJson parse_ordered_json(std::string_view text, const std::string& what, int max_depth = 64);

}  // namespace glyd::io
