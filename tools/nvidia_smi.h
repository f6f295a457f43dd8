#pragma once
// What NVIDIA's own tool says of a GPU, where it is installed: an independent view for benchmark records.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace glyd::tools {

// Memory in use on the GPU that `facts` name by "uuid" (the first one without that), bytes; none when nvidia-smi is not
// there or does not answer within five seconds.
std::optional<std::uint64_t> driver_memory_used(const std::vector<std::pair<std::string, std::string>>& facts);

}  // namespace glyd::tools
