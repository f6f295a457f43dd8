#pragma once
// Arithmetic, indexing and slicing of values.

#include <string_view>

#include "text/jinja/value.h"

namespace glyd::text::jinja {

// left OP right for + - * / // % and ~, as in Python: / makes floats, // and % round down. Errors name the types.
Value arithmetic(Context& context, std::string_view op, const Value& left, const Value& right);
Value negate(Context& context, const Value& value);

// object[key] of lists, strings (by character) and mappings. What is not there is undefined; `from` names the object.
Value item(Context& context, const Value& object, const Value& key, std::string_view from);

// object[start:stop:step] of lists and strings; a bound that is none is left out.
Value slice(Context& context, const Value& object, const Value& start, const Value& stop, const Value& step);

}  // namespace glyd::text::jinja
