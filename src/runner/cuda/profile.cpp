#include "runner/cuda/profile.h"

#include <algorithm>
#include <limits>

#include "base/timing.h"
#include "runner/cuda/check.h"
#include "runner/cuda/decode_graphs.h"

namespace glyd::runner {
namespace {

constexpr int kReplays = 8;

// Leaves a kind of kernel out as long as it lives.
class Without {
 public:
  Without(Forward& forward, Part part) : forward_(forward) { forward_.leave_out(part); }
  ~Without() { forward_.leave_out(Part::None); }
  Without(const Without&) = delete;
  Without& operator=(const Without&) = delete;

 private:
  Forward& forward_;
};

Graph capture_without(Forward& forward, Part part, int tokens, cudaStream_t stream) {
  const Without without(forward, part);
  return Graph(stream, [&] {
    forward.run({Pass::Decode, tokens, tokens, 1, {}}, {});
    forward.choose(tokens);
  });
}

// The least time of each of two graphs, replayed by turns: the chip's clock moves.
std::pair<double, double> least_seconds(const Graph& a, const Graph& b, cudaStream_t stream,
                                        const std::function<void()>& wait) {
  std::pair<double, double> least{std::numeric_limits<double>::max(), std::numeric_limits<double>::max()};
  for (int i = 0; i < 2 * kReplays; ++i) {
    const auto start = Clock::now();
    (i % 2 == 0 ? a : b).launch(stream);
    wait();
    double& seconds = i % 2 == 0 ? least.first : least.second;
    seconds = std::min(seconds, seconds_since(start));
  }
  return least;
}

}  // namespace

std::vector<std::pair<std::string, double>> profile_decode(Forward& forward, int tokens, cudaStream_t stream,
                                                           const std::function<void()>& wait) {
  const Graph whole = capture_without(forward, Part::None, tokens, stream);
  whole.upload(stream);
  constexpr std::pair<const char*, Part> kParts[] = {
      {"products", Part::Products},   {"head product", Part::Head},   {"norms and sums", Part::Norms},
      {"heads", Part::Heads},         {"attention", Part::Attention}, {"activation", Part::Activation},
      {"embedding", Part::Embedding}, {"choice", Part::Choice},       {"sums over ranks", Part::Exchange}};
  std::vector<std::pair<std::string, double>> profile{{"step", std::numeric_limits<double>::max()}};
  for (const auto& [name, part] : kParts) {
    if (part == Part::Exchange && !forward.shares()) continue;
    const Graph without = capture_without(forward, part, tokens, stream);
    without.upload(stream);
    forward.meet_ranks();
    const auto [with_it, without_it] = least_seconds(whole, without, stream, wait);
    profile.front().second = std::min(profile.front().second, with_it);
    profile.emplace_back(name, with_it - without_it);
  }
  return profile;
}

}  // namespace glyd::runner
