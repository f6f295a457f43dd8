#pragma once
// How fast this machine reads memory: the yardstick of everything that streams weights.

#include "base/thread_pool.h"

namespace glyd::runner::cpu {

// Bytes a second when all threads of `pool` sum a buffer much larger than any cache (2 GiB, or an eighth of the memory
// that is free); the best of five passes.
double read_bandwidth(ThreadPool& pool);

}  // namespace glyd::runner::cpu
