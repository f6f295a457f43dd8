#include "base/bf16.h"
#include "cuda/device.h"
#include "cuda/kernels.h"

using namespace glyd;

TEST_CASE("the GPU widens every bf16 pattern as the CPU does", "[cuda][gpu]") {
  GLYD_NEEDS_GPU();
  std::vector<std::uint16_t> patterns(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
  test::DeviceBuffer<std::uint16_t> in(patterns);
  test::DeviceBuffer<float> out(patterns.size());
  CUDA_REQUIRE(cuda::widen_bf16(in.data(), out.data(), patterns.size(), nullptr));
  CUDA_REQUIRE(cudaDeviceSynchronize());
  const std::vector<float> got = out.to_host();
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    REQUIRE(std::bit_cast<std::uint32_t>(got[i]) == std::bit_cast<std::uint32_t>(to_float(Bf16{patterns[i]})));
  }
}
