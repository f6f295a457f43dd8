#pragma once
// Where the time of a decode pass goes, by leaving out one kind of kernel at a time.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runner/cuda/forward.h"

namespace glyd::runner {

// Seconds by name: "step", the pass that the workspace's input stands for, of `tokens` tokens; then what it takes less
// without each kind of kernel, so that what overlaps counts for nobody. Writes garbage to the KV cache's slots of these
// tokens. "sums over ranks" has the choice in it, which has nothing to choose from without them. Least of a few
// replays; differences are good to some tenths of a millisecond, since a GPU's clock moves. `wait` waits for the
// stream, and throws when another rank has failed.
std::vector<std::pair<std::string, double>> profile_decode(Forward& forward, int tokens, cudaStream_t stream,
                                                           const std::function<void()>& wait);

}  // namespace glyd::runner
