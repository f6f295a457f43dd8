#include "commit.h"

#include "glyd_commit.h"

namespace glyd::tools {

const char* commit() { return GLYD_COMMIT; }

}  // namespace glyd::tools
