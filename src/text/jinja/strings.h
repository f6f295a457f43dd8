#pragma once
// The methods of strings: Python's, with the ranges of content kept.

#include <string_view>

#include "text/jinja/builtins.h"
#include "text/jinja/value.h"

namespace glyd::text::jinja {

struct StrMethod {
  std::string_view name;
  Value (*apply)(Context& context, const Str& s, Arguments& arguments);
};

const StrMethod* find_str_method(std::string_view name);  // null when there is none

// Those that are filters as well.
Value str_capitalize(Context& context, const Str& s, Arguments& arguments);
Value str_lower(Context& context, const Str& s, Arguments& arguments);
Value str_replace(Context& context, const Str& s, Arguments& arguments);
Value str_strip(Context& context, const Str& s, Arguments& arguments);
Value str_upper(Context& context, const Str& s, Arguments& arguments);

}  // namespace glyd::text::jinja
