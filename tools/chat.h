#pragma once
// A conversation on the terminal, or a turn for each line of stdin where that is none.

#include "run_options.h"
#include "session.h"

namespace glyd::tools {

// Runs until /exit, the end of input or two Ctrl-C (which end the process with 130); returns the exit code.
// `session` has a chat template.
int chat(Session& session, const RunOptions& options);

}  // namespace glyd::tools
