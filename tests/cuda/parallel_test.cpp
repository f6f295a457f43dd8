// The kernels by which ranks put sums together and pass on hidden states, against the host. All ranks are on one GPU
// here. Where one waits for another, each has a stream, and their blocks are so few that all have a place to run.

#include "cuda/parallel/parallel.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "cuda/host_product.h"
#include "runner/cuda/device_memory.h"

using namespace glyd;
using namespace glyd::test;

namespace {

// What the stream is at. An answer of "not ready" is not left behind for those who ask CUDA for its last error.
cudaError_t state_of(cudaStream_t stream) {
  const cudaError_t state = cudaStreamQuery(stream);
  if (state == cudaErrorNotReady) cudaGetLastError();
  return state;
}

// Whether kernels are still there when all that do not wait have long ended.
bool is_waiting(cudaStream_t stream) {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return state_of(stream) == cudaErrorNotReady;
}

// Whether all kernels of the stream end, within a time that none needs.
bool ends(cudaStream_t stream) {
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  cudaError_t state = cudaErrorNotReady;
  while (state == cudaErrorNotReady && std::chrono::steady_clock::now() < late) state = state_of(stream);
  return state == cudaSuccess;
}

// The word that says that a rank has failed. However a test ends, no kernel waits behind this one's life: declared
// after all memory and streams of the test, as freeing them waits for the kernels.
class StopWord {
 public:
  StopWord() {
    CUDA_REQUIRE(cudaMallocHost(reinterpret_cast<void**>(&word_), sizeof(int)));
    set(0);
  }
  ~StopWord() {
    set(1);
    cudaDeviceSynchronize();
    cudaFreeHost(word_);
  }
  StopWord(const StopWord&) = delete;
  StopWord& operator=(const StopWord&) = delete;
  void set(int value) { *static_cast<volatile int*>(word_) = value; }
  const int* get() const { return word_; }

 private:
  int* word_ = nullptr;
};

// Where counters of meetings and messages begin in tests. They are counted up first, so the second number is 0.
constexpr std::uint32_t kBegin = ~std::uint32_t{0} - 1;

}  // namespace

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
  constexpr int kRanks = 2, kTokens = 3, kRounds = 4;
  constexpr std::int64_t kRows = 1000, kValues = kTokens * kRows;
  std::mt19937 random(4);
  std::vector<HostProduct> hosts;
  std::vector<std::unique_ptr<DeviceProduct>> products;  // of rank r in round i at [i * kRanks + r]
  for (int i = 0; i < kRounds * kRanks; ++i) {
    hosts.emplace_back(random, Kind::Partials, kTokens, kRows, 5, 8);
    products.push_back(std::make_unique<DeviceProduct>(hosts.back()));
  }
  // For each rank from word 32 r on: its counters, and from 32 r + 16 on who has arrived.
  std::vector<std::uint32_t> start(64, 0);
  for (const std::size_t at : {0, 16, 17, 32, 48, 49}) start[at] = kBegin;
  DeviceBuffer<std::uint32_t> words(start), lone_words(std::vector<std::uint32_t>(32, 0));
  DeviceBuffer<float> first(kRanks * kValues), second(kRanks * kValues);  // what ranks 0 and 1 are given by all
  const runner::Stream streams[kRanks];
  StopWord stop;
  cuda::Meeting meetings[kRanks];
  for (int r = 0; r < kRanks; ++r)
    meetings[r] = {r, kRanks, words.data() + 32 * r, {words.data() + 16, words.data() + 48}, stop.get()};
  const auto share = [&](int i, int rank) {
    cuda::Destinations to;
    to.to[0] = first.data() + rank * kValues;
    to.to[1] = second.data() + rank * kValues;
    to.stride = kRows;
    return cuda::share_rows(products[static_cast<std::size_t>(i * kRanks + rank)]->product, kTokens, kRows, to,
                            &meetings[rank], streams[rank].get());
  };

  // By a rank that is alone, first: a kernel is loaded when it is first launched, and that may wait for those that run.
  const cuda::Meeting alone{0, 1, lone_words.data(), {lone_words.data() + 16}, stop.get()};
  cuda::Destinations to;
  to.to[0] = first.data();
  to.stride = kRows;
  CUDA_REQUIRE(cuda::share_rows(products[0]->product, kTokens, kRows, to, &alone, nullptr));
  CUDA_REQUIRE(cuda::meet(alone, nullptr));
  CUDA_REQUIRE(cudaDeviceSynchronize());

  for (int i = 0; i < kRounds; ++i) {
    INFO("round " << i);
    const int early = i % kRanks, late = 1 - early;
    CUDA_REQUIRE(share(i, early));
    REQUIRE(is_waiting(streams[early].get()));
    CUDA_REQUIRE(share(i, late));
    REQUIRE(ends(streams[early].get()));
    REQUIRE(ends(streams[late].get()));
    const std::vector<float> a = first.to_host(), b = second.to_host();
    CHECK(a == b);
    for (std::size_t r = 0; r < kRanks; ++r) {
      const std::vector<float>& want = hosts[static_cast<std::size_t>(i) * kRanks + r].finished;
      CHECK(std::equal(want.begin(), want.end(), a.begin() + static_cast<std::ptrdiff_t>(r) * kValues));
    }
    // The same with nothing to share, the other one first.
    CUDA_REQUIRE(cuda::meet(meetings[late], streams[late].get()));
    REQUIRE(is_waiting(streams[late].get()));
    CUDA_REQUIRE(cuda::meet(meetings[early], streams[early].get()));
    REQUIRE(ends(streams[early].get()));
    REQUIRE(ends(streams[late].get()));
  }
  constexpr std::uint32_t kMeetings = kBegin + 2 * kRounds;
  std::vector<std::uint32_t> want(64, 0);
  for (const std::size_t at : {0, 16, 17, 32, 48, 49}) want[at] = kMeetings;
  CHECK(words.to_host() == want);

  // One more would wait for ever, but for the word that says so.
  CUDA_REQUIRE(cuda::meet(meetings[0], streams[0].get()));
  REQUIRE(is_waiting(streams[0].get()));
  stop.set(1);
  REQUIRE(ends(streams[0].get()));
  for (const std::size_t at : {0, 16, 48}) want[at] = kMeetings + 1;  // counted, and told to both
  CHECK(words.to_host() == want);
}

TEST_CASE("messages pass from stage to stage, and both ends wait", "[cuda][gpu][parallel]") {
  GLYD_NEEDS_GPU();
  constexpr int kMessages = 9;
  constexpr std::size_t kWords = 4 * 3001;
  std::mt19937 random(3);
  std::vector<std::vector<std::uint32_t>> data;
  std::vector<std::unique_ptr<DeviceBuffer<std::uint32_t>>> messages;
  for (int i = 0; i < kMessages; ++i) {
    data.emplace_back(kWords);
    for (std::uint32_t& word : data.back()) word = static_cast<std::uint32_t>(random());
    messages.push_back(std::make_unique<DeviceBuffer<std::uint32_t>>(data.back()));
  }
  std::vector<std::uint32_t> start(64, 0);
  for (const std::size_t at : {0, 8, 16, 24}) start[at] = kBegin;
  DeviceBuffer<std::uint32_t> words(start), between(kWords), to(kWords);
  const runner::Stream sending, receiving;
  StopWord stop;
  const cuda::Passage sender{words.data(), words.data() + 8, words.data() + 16, stop.get()};
  const cuda::Passage receiver{words.data() + 24, words.data() + 16, words.data() + 8, stop.get()};
  const cuda::Passage from_nobody{words.data() + 32, words.data() + 40, words.data() + 48, stop.get()};
  std::size_t sent = 0, received = 0;
  const auto put_in = [&] {
    CUDA_REQUIRE(cuda::put_in(messages[sent++]->data(), between.data(), kWords * 4, sender, sending.get()));
  };
  const auto take_out = [&] {
    CUDA_REQUIRE(cuda::take_out(between.data(), to.data(), kWords * 4, receiver, receiving.get()));
  };
  const auto check_received = [&] {
    REQUIRE(ends(receiving.get()));
    CHECK(to.to_host() == data[received++]);
  };

  // Nobody waits for the first: a kernel is loaded when it is first launched, and that may wait for those that run.
  CUDA_REQUIRE(cudaDeviceSynchronize());
  put_in();
  REQUIRE(ends(sending.get()));
  take_out();
  check_received();

  for (int round = 0; round < 2; ++round) {
    INFO("round " << round);
    take_out();  // of a message that was not put in
    REQUIRE(is_waiting(receiving.get()));
    put_in();
    check_received();
    REQUIRE(ends(sending.get()));

    put_in();
    REQUIRE(ends(sending.get()));
    put_in();  // where the one before was not taken out
    REQUIRE(is_waiting(sending.get()));
    take_out();
    REQUIRE(ends(sending.get()));
    check_received();
    take_out();
    check_received();
  }
  std::vector<std::uint32_t> want(64, 0);
  for (const std::size_t at : {0, 8, 16, 24}) want[at] = kBegin + 7;
  CHECK(words.to_host() == want);

  // Either end would wait for ever, but for the word that says that a rank has failed.
  put_in();
  put_in();
  CUDA_REQUIRE(cuda::take_out(between.data(), to.data(), kWords * 4, from_nobody, receiving.get()));
  REQUIRE(is_waiting(sending.get()));
  REQUIRE(is_waiting(receiving.get()));
  stop.set(1);
  REQUIRE(ends(sending.get()));
  REQUIRE(ends(receiving.get()));
}
