#pragma once

namespace glyd::tools {

const char* commit();  // that this was built from, "+changes" behind it when files differed; "unknown" outside git

}  // namespace glyd::tools
