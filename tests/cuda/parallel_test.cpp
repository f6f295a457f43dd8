// The kernels by which ranks put sums together, against the host. All ranks are on one GPU here, so none waits for
// another that has not begun: the kernels run one after another, each finding what it waits for.

#include "cuda/parallel/parallel.h"

#include <cstring>

#include "cuda/host_product.h"

using namespace glyd;
using namespace glyd::test;

TEST_CASE("rows are added up and written to every rank", "[cuda][gpu][parallel]") {
  GLYD_NEEDS_GPU();
  std::mt19937 random(1);
  for (const std::int64_t rows : {8, 64, 1000, 5120}) {
    for (const int tokens : {1, 3, 32}) {
      for (const Kind kind : {Kind::Partials, Kind::PartialsAndBias}) {
        INFO(rows << " rows, " << tokens << " tokens");
        HostProduct host(random, kind, tokens, rows, 5, 8);
        DeviceProduct product(host);
        const std::int64_t stride = rows + 12;
        const auto count = static_cast<std::size_t>(tokens * stride);
        DeviceBuffer<float> first(count), third(count);
        cuda::Destinations to;
        to.to[0] = first.data();
        to.to[2] = third.data();
        to.stride = stride;
        CUDA_REQUIRE(cuda::share_rows(product.product, tokens, rows, to, nullptr, nullptr));
        CUDA_REQUIRE(cudaDeviceSynchronize());
        const std::vector<float> a = first.to_host(), b = third.to_host();
        CHECK(std::memcmp(a.data(), b.data(), count * sizeof(float)) == 0);
        // The same with a meeting behind it, of a rank that is alone: the last of many blocks tells itself, twice.
        DeviceBuffer<std::uint32_t> words(std::vector<std::uint32_t>(64, 0));
        DeviceBuffer<float> again(count);
        const int go_on = 0;
        const cuda::Meeting meeting{0, 1, words.data(), {words.data() + 16}, &go_on};
        to = {};
        to.to[0] = again.data();
        to.stride = stride;
        for (int i = 0; i < 2; ++i)
          CUDA_REQUIRE(cuda::share_rows(product.product, tokens, rows, to, &meeting, nullptr));
        CUDA_REQUIRE(cudaDeviceSynchronize());
        CHECK(words.to_host()[0] == 2);
        CHECK(words.to_host()[1] == 0);
        CHECK(words.to_host()[16] == 2);
        CHECK(std::memcmp(again.to_host().data(), a.data(), count * sizeof(float)) == 0);
        for (std::int64_t t = 0; t < tokens; ++t) {
          for (std::int64_t r = 0; r < rows; ++r)
            REQUIRE(a[static_cast<std::size_t>(t * stride + r)] ==
                    host.finished[static_cast<std::size_t>(t * rows + r)]);
        }
      }
    }
  }
}

TEST_CASE("the sums of ranks are added in their order", "[cuda][gpu][parallel]") {
  GLYD_NEEDS_GPU();
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (const int ranks : {1, 2, 3, 8}) {
    constexpr std::int64_t kCount = 4100, kStride = 4104;
    std::vector<float> slots(static_cast<std::size_t>(ranks * kStride));
    for (float& x : slots) x = std::ldexp(normal(random), static_cast<int>(random() % 40) - 20);
    DeviceBuffer<float> device(slots), out(kCount);
    CUDA_REQUIRE(cuda::add_ranks(device.data(), ranks, kStride, out.data(), kCount, nullptr));
    CUDA_REQUIRE(cudaDeviceSynchronize());
    const std::vector<float> sums = out.to_host();
    for (std::size_t i = 0; i < sums.size(); ++i) {
      float want = slots[i];
      for (int r = 1; r < ranks; ++r) want += slots[static_cast<std::size_t>(r * kStride) + i];
      REQUIRE(sums[i] == want);
    }
  }
}

TEST_CASE("ranks meet, and stop waiting when one has failed", "[cuda][gpu][parallel]") {
  GLYD_NEEDS_GPU();
  DeviceBuffer<std::uint32_t> words(std::vector<std::uint32_t>(64, 0));
  int* stop = nullptr;
  CUDA_REQUIRE(cudaMallocHost(reinterpret_cast<void**>(&stop), sizeof(int)));
  *stop = 0;
  // Rank 0 of two, whose other rank has been at three meetings already.
  cuda::Meeting meeting{0, 2, words.data(), {words.data() + 16, words.data() + 32}, stop};
  const std::uint32_t three = 3;
  CUDA_REQUIRE(cudaMemcpy(words.data() + 17, &three, sizeof three, cudaMemcpyHostToDevice));
  for (int i = 0; i < 3; ++i) CUDA_REQUIRE(cuda::meet(meeting, nullptr));
  CUDA_REQUIRE(cudaDeviceSynchronize());
  std::vector<std::uint32_t> after = words.to_host();
  CHECK(after[0] == 3);   // meetings
  CHECK(after[1] == 0);   // blocks
  CHECK(after[16] == 3);  // told itself
  CHECK(after[32] == 3);  // told the other
  // A fourth would wait for ever, but for the word that says so.
  *stop = 1;
  CUDA_REQUIRE(cuda::meet(meeting, nullptr));
  CUDA_REQUIRE(cudaDeviceSynchronize());
  CHECK(words.to_host()[32] == 4);
  cudaFreeHost(stop);
}

TEST_CASE("messages pass from stage to stage", "[cuda][gpu][parallel]") {
  GLYD_NEEDS_GPU();
  DeviceBuffer<std::uint32_t> words(std::vector<std::uint32_t>(64, 0));
  int* stop = nullptr;
  CUDA_REQUIRE(cudaMallocHost(reinterpret_cast<void**>(&stop), sizeof(int)));
  *stop = 0;
  const cuda::Passage sender{words.data(), words.data() + 8, words.data() + 16, stop};
  const cuda::Passage receiver{words.data() + 24, words.data() + 16, words.data() + 8, stop};
  std::mt19937 random(3);
  constexpr std::size_t kWords = 4 * 3001;
  DeviceBuffer<std::uint32_t> between(kWords), to(kWords);
  for (int message = 0; message < 5; ++message) {
    std::vector<std::uint32_t> data(kWords);
    for (std::uint32_t& word : data) word = static_cast<std::uint32_t>(random());
    DeviceBuffer<std::uint32_t> from(data);
    CUDA_REQUIRE(cuda::put_in(from.data(), between.data(), kWords * 4, sender, nullptr));
    CUDA_REQUIRE(cuda::take_out(between.data(), to.data(), kWords * 4, receiver, nullptr));
    CUDA_REQUIRE(cudaDeviceSynchronize());
    CHECK(to.to_host() == data);
  }
  cudaFreeHost(stop);
}
