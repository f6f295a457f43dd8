#include "cuda/common/launch.h"

#include <array>
#include <atomic>

#include "cuda/common/read_memory.h"

namespace glyd::cuda {

bool has_dependent_launch() {
  constexpr int kDevices = 64;
  static std::array<std::atomic<int>, kDevices> known{};  // 0: not asked, 1: no, 2: yes
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= kDevices) return false;
  std::atomic<int>& answer = known[static_cast<std::size_t>(device)];
  if (answer == 0) {
    // Code made from older PTX does not have the instructions that wait.
    answer = compiled_architecture() >= 90 ? 2 : 1;
  }
  return answer == 2;
}

}  // namespace glyd::cuda
