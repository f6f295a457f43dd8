#pragma once
// Runs a parsed template.

#include <string>
#include <utility>
#include <vector>

#include "text/jinja/parse.h"
#include "text/jinja/value.h"

namespace glyd::text::jinja {

// What `source` writes when it sees these variables. Throws Error(Model) with the line: raise_exception, a value of a
// type that an operation does not take, something this interpreter does not know, or a limit of value.h.
StrPtr evaluate(const Template& source, Context& context, const std::vector<std::pair<std::string, Value>>& variables);

}  // namespace glyd::text::jinja
