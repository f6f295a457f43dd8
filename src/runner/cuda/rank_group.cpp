#include "runner/cuda/rank_group.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "cuda/parallel/parallel.h"
#include "runner/cuda/check.h"

namespace glyd::runner {
namespace {

// The transport that the environment asks for.
std::optional<Transport> wanted_transport() {
  const char* const value = std::getenv("GLYD_ALL_REDUCE");
  if (value == nullptr || *value == '\0') return {};
  if (std::string_view(value) == "peer") return Transport::PeerMemory;
  if (std::string_view(value) == "nccl") return Transport::Nccl;
  fail(Code::Usage, "GLYD_ALL_REDUCE={}: expected peer or nccl", printable(value));
}

bool reaches(int from, int to) {
  int can = 0;
  check(cudaDeviceCanAccessPeer(&can, from, to), "asking for peer memory");
  return can != 0;
}

}  // namespace

RankGroup::RankGroup(std::vector<int> devices, int tensor_parallel)
    : devices_(std::move(devices)), tensor_parallel_(tensor_parallel), ends_(devices_.size()) {
  check(cudaSetDevice(devices_.front()),
        "choosing the GPU");  // or pinned memory would be made by the first one's driver state
  stop_ = PinnedMemory(sizeof(int));
  set_stopped(false);
  if (tensor_parallel > cuda::kMaxRanks)
    fail(Code::Usage, "-tp {}: GPUs take at most {} ranks; use pipeline stages (-pp)", tensor_parallel,
         cuda::kMaxRanks);
  const std::optional<Transport> wanted = wanted_transport();
  std::pair<int, int> apart{-1, -1};  // two GPUs that do not reach each other
  bool shared = false;
  for (const int a : devices_) {
    shared = shared || ranks_on(a) > 1;
    for (const int b : devices_) {
      if (a != b && !reaches(a, b)) apart = {a, b};
    }
  }
  const bool peers = apart.first < 0;
  if (shared) {
    if (wanted == Transport::Nccl)
      fail(Code::Usage,
           "GLYD_ALL_REDUCE=nccl: not for ranks that share a GPU; take it away, or name a GPU for each rank");
    if (!peers)
      fail(Code::Usage,
           "--device: ranks share a GPU, but GPUs {} and {} do not reach each other's memory; name a GPU "
           "for each rank",
           apart.first, apart.second);
    transport_ = Transport::SharedGpu;
  } else {
    if (wanted == Transport::PeerMemory && !peers)
      fail(Code::Usage, "GLYD_ALL_REDUCE=peer: GPUs {} and {} do not reach each other's memory; take it away",
           apart.first, apart.second);
    transport_ = wanted.value_or(peers ? Transport::PeerMemory : Transport::Nccl);
  }
  if (transport_ == Transport::Nccl) {
    const auto stages = devices_.size() / static_cast<std::size_t>(tensor_parallel);
    for (std::size_t s = 0; s < stages; ++s) {
      const auto first = devices_.begin() + static_cast<std::ptrdiff_t>(s) * tensor_parallel;
      stage_nccl_.push_back(std::make_unique<Nccl>(std::vector<int>(first, first + tensor_parallel)));
    }
    if (stages > 1) all_nccl_ = std::make_unique<Nccl>(devices_);
  } else {
    enable_peers();
  }
}

int RankGroup::ranks_on(int device) const {
  return static_cast<int>(std::count(devices_.begin(), devices_.end(), device));
}

// Once for the process, to which it applies: CUDA calls a second time an error.
void RankGroup::enable_peers() const {
  static std::mutex mutex;
  static std::set<std::pair<int, int>> enabled;
  const std::lock_guard lock(mutex);
  for (const int a : devices_) {
    check(cudaSetDevice(a), "choosing the GPU");
    for (const int b : devices_) {
      if (a == b || enabled.count({a, b}) != 0) continue;
      const cudaError_t error = cudaDeviceEnablePeerAccess(b, 0);
      if (error == cudaErrorPeerAccessAlreadyEnabled) {  // by somebody else
        cudaGetLastError();
      } else {
        check(error, "reaching another GPU's memory");
      }
      enabled.emplace(a, b);
    }
  }
}

void RankGroup::disconnect(int rank) {
  if (transport_ != Transport::Nccl) return;
  stage_nccl(rank / tensor_parallel_).abort(rank % tensor_parallel_);
  if (all_nccl_) all_nccl_->abort(rank);
}

void RankGroup::connect() {
  for (const auto& stage : stage_nccl_) stage->connect();
  if (all_nccl_) all_nccl_->connect();
}

std::string RankGroup::describe() const {
  switch (transport_) {
    case Transport::PeerMemory:
      return "peer memory";
    case Transport::SharedGpu:
      return "one GPU's memory";
    case Transport::Nccl:
      break;
  }
  const int version = stage_nccl_.front()->version();
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace glyd::runner
