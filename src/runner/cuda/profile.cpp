#include "runner/cuda/profile.h"

#include <chrono>

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

double seconds_without(Forward& forward, Part part, int tokens, cudaStream_t stream) {
  using Clock = std::chrono::steady_clock;
  const Without without(forward, part);
  const Graph graph(stream, [&] {
    forward.run({Pass::Decode, tokens, tokens, 1, {}}, {});
    forward.choose(tokens);
  });
  graph.upload(stream);
  forward.meet_ranks();
  double least = 0;
  for (int i = 0; i < kReplays; ++i) {
    const auto start = Clock::now();
    graph.launch(stream);
    check(cudaStreamSynchronize(stream), "a step");
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (i == 0 || seconds < least) least = seconds;
  }
  return least;
}

}  // namespace

std::vector<std::pair<std::string, double>> profile_decode(Forward& forward, int tokens, cudaStream_t stream) {
  const double whole = seconds_without(forward, Part::None, tokens, stream);
  std::vector<std::pair<std::string, double>> profile{{"step", whole}};
  constexpr std::pair<const char*, Part> kParts[] = {
      {"products", Part::Products},   {"head product", Part::Head},   {"norms and sums", Part::Norms},
      {"heads", Part::Heads},         {"attention", Part::Attention}, {"activation", Part::Activation},
      {"embedding", Part::Embedding}, {"choice", Part::Choice},       {"sums over ranks", Part::Exchange}};
  for (const auto& [name, part] : kParts)
    profile.emplace_back(name, whole - seconds_without(forward, part, tokens, stream));
  return profile;
}

}  // namespace glyd::runner
