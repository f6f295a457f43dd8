#include "runner/cuda/rank_exchange.h"

#include <algorithm>
#include <limits>
#include <thread>

#include "base/sizes.h"
#include "runner/cuda/check.h"

namespace glyd::runner {
namespace {

// Tokens of a prompt that are summed at a time: each rank has room for all ranks' sums, twice.
std::int64_t piece_tokens(const ExchangeShape& shape, int ranks) {
  return std::max(shape.columns, std::min<std::int64_t>(shape.tokens, 1024 / ranks));
}
// Floats of one of the two halves.
std::int64_t half_values(const ExchangeShape& shape, int ranks) {
  return ranks * piece_tokens(shape, ranks) * shape.hidden;
}
std::int64_t logits_stride(const ExchangeShape& shape) { return round_up(shape.vocab, 8); }
std::int64_t own_logits(const ExchangeShape& shape) {  // rows that are sent
  return round_up(static_cast<std::int64_t>(shape.own_vocab.size()), 8);
}

struct Sizes {
  std::uint64_t slots = 0, logits = 0, staging = 0, incoming = 0, outgoing = 0;
};
Sizes sizes_of(const ExchangeShape& s, const RankGroup& group, int global_rank) {
  const int ranks = group.tensor_parallel();
  const bool last_stage = global_rank / ranks == (group.size() - 1) / ranks, first_stage = global_rank < ranks;
  Sizes sizes;
  if (ranks > 1) {
    sizes.slots = 2 * unsigned_of(half_values(s, ranks)) * sizeof(float);
    if (last_stage) {
      const std::uint64_t logits = unsigned_of(s.logits_tokens) * unsigned_of(logits_stride(s)) * sizeof(float);
      if (global_rank % ranks == 0) sizes.logits = logits;
      // As NCCL carries them they are not in their places.
      if (group.transport() == Transport::Nccl) sizes.staging = logits;
    }
  }
  // NCCL too is given memory that other GPUs can reach, which the residual stream's is not.
  const std::uint64_t hidden =
      unsigned_of(std::max(s.tokens, s.columns)) * unsigned_of(s.hidden) * sizeof(std::uint16_t);
  if (!first_stage) sizes.incoming = hidden;
  if (!last_stage && group.transport() == Transport::Nccl) sizes.outgoing = hidden;
  return sizes;
}

// Words of a rank, each kind on a line of its own.
constexpr std::uint64_t kLine = 128;
constexpr std::uint64_t kWordBytes = 7 * kLine;

}  // namespace

std::uint64_t RankExchange::bytes(const ExchangeShape& shape, const RankGroup& group, int global_rank) {
  const Sizes s = sizes_of(shape, group, global_rank);
  constexpr std::uint64_t kPages = 6 * (2u << 20);  // that allocations are rounded up to
  return s.slots + s.logits + s.staging + s.incoming + s.outgoing + kPages;
}

RankExchange::RankExchange(const ExchangeShape& shape, RankGroup& group, Communicator& communicator,
                           cudaStream_t stream)
    : shape_(shape),
      group_(group),
      communicator_(communicator),
      stream_(stream),
      rank_(communicator.rank()),
      ranks_(communicator.size()),
      first_(communicator.stage() * communicator.size()),
      piece_(piece_tokens(shape, communicator.size())) {
  const int own = communicator.global_rank();
  const Sizes sizes = sizes_of(shape, group, own);
  slots_ = DeviceMemory(sizes.slots);
  logits_ = DeviceMemory(sizes.logits);
  staging_ = DeviceMemory(sizes.staging);
  incoming_ = DeviceMemory(sizes.incoming);
  outgoing_ = DeviceMemory(sizes.outgoing);
  words_ = DeviceMemory(kWordBytes);
  auto* const words = static_cast<std::uint8_t*>(words_.get());
  check(cudaMemsetAsync(words, 0, kWordBytes, stream_), "clearing memory");
  check(cudaMemsetAsync(words + 6 * kLine, ranks_, 1, stream_), "clearing memory");
  check(cudaStreamSynchronize(stream_), "clearing memory");
  const auto line = [&](std::uint64_t i) { return reinterpret_cast<std::uint32_t*>(words + i * kLine); };
  splits_ = words + 6 * kLine;
  group_.end(own) = {static_cast<float*>(slots_.get()),
                     static_cast<float*>(logits_.get()),
                     line(0),
                     incoming_.get(),
                     line(1),
                     line(2),
                     written_.get(),
                     shape.own_vocab};
  communicator_.all_min(0);  // all ends are there
  mend();

  meeting_ = {rank_, ranks_, line(3), {}, group_.stop_word()};
  for (int r = 0; r < ranks_; ++r) meeting_.arrived[r] = group_.end(first_ + r).arrived;
  if (communicator.stage() > 0)
    from_previous_ = {line(4), line(1), group_.end(own - ranks_).taken_out, group_.stop_word()};
  if (communicator.stage() + 1 < communicator.stages())
    to_next_ = {line(5), line(2), group_.end(own + ranks_).put_in, group_.stop_word()};
}

bool RankExchange::mend() {
  if (!group_.stopped()) return false;
  check(cudaStreamSynchronize(stream_), "a step");
  communicator_.all_min(0);  // nobody's kernels run any more
  check(cudaMemsetAsync(words_.get(), 0, 6 * kLine, stream_), "clearing memory");
  check(cudaStreamSynchronize(stream_), "clearing memory");
  half_ = 0;
  if (communicator_.global_rank() == 0) {
    group_.connect();
    group_.set_stopped(false);
  }
  communicator_.all_min(0);
  return true;
}

// NCCL's kernels know nothing of ranks that failed: while they may be under way somebody has to look.
void RankExchange::synchronize() {
  if (group_.transport() == Transport::Nccl) {
    cudaError_t error = cudaErrorNotReady;
    while ((error = cudaStreamQuery(stream_)) == cudaErrorNotReady) {
      if (group_.stopped()) {
        stop();
        throw Aborted();
      }
      std::this_thread::yield();
    }
    check(error, "a step");
  }
  check(cudaStreamSynchronize(stream_), "a step");
  if (group_.stopped()) throw Aborted();  // kernels have stopped waiting for a rank: what they left is nothing
}

void RankExchange::stop() {
  group_.set_stopped(true);
  group_.disconnect(communicator_.global_rank());
  cudaStreamSynchronize(stream_);
}

float* RankExchange::half() const { return static_cast<float*>(slots_.get()) + half_ * half_values(shape_, ranks_); }

void RankExchange::meet_on_host() {
  float nothing = 0;
  communicator_.all_reduce_sum({&nothing, 1});
}

// Kernels that wait for other GPUs are for graphs alone: there everything is loaded and has its memory, so that nothing
// in the way of a rank's launch can itself be waiting for the GPUs to be idle.
bool RankExchange::is_capturing() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream_, &status), "a step");
  return status != cudaStreamCaptureStatusNone;
}

// What all ranks of the stage have written so far comes before what follows.
void RankExchange::meet_with_events() {
  check(cudaEventRecord(written_.get(), stream_), "an event");
  meet_on_host();
  for (int r = 0; r < ranks_; ++r)
    check(cudaStreamWaitEvent(stream_, group_.end(first_ + r).written), "waiting for a rank");
}

// Brings all ranks' sums to the present half: [rank][token][hidden].
void RankExchange::share(const cuda::Product& own, int tokens) {
  const std::int64_t values = tokens * shape_.hidden;
  const std::int64_t place = half_ * half_values(shape_, ranks_) + rank_ * values;
  const bool nccl = group_.transport() == Transport::Nccl;
  cuda::Destinations to;
  to.stride = shape_.hidden;
  for (int r = 0; r < ranks_; ++r) {
    if (!nccl || r == rank_) to.to[r] = group_.end(first_ + r).slots + place;
  }
  const bool kernels_wait = !nccl && is_capturing();
  check(cuda::share_rows(own, tokens, shape_.hidden, to, kernels_wait ? &meeting_ : nullptr, stream_), "sharing sums");
  if (nccl) {
    group_.stage_nccl(communicator_.stage()).all_gather(rank_, half() + rank_ * values, half(), values, stream_);
  } else if (!kernels_wait) {
    meet_with_events();
  }
}

cuda::Product RankExchange::sum(const cuda::Product& own, int tokens) {
  share(own, tokens);
  cuda::Product all;
  all.partials = half();
  all.rows = shape_.hidden;
  all.split_stride = tokens * shape_.hidden;
  all.splits = splits_;
  all.group_rows = std::numeric_limits<int>::max();
  half_ ^= 1;
  return all;
}

cuda::Product RankExchange::sum_in_place(const cuda::Product& own, float* values, int tokens) {
  // A layer has two sums of equally many pieces, so every pass begins with the same half.
  for (int first = 0; first < tokens; first += static_cast<int>(piece_)) {
    const int count = std::min(static_cast<int>(piece_), tokens - first);
    cuda::Product piece = own;
    piece.partials += first * own.rows;
    share(piece, count);
    check(cuda::add_ranks(half(), ranks_, count * shape_.hidden, values + first * shape_.hidden, count * shape_.hidden,
                          stream_),
          "adding sums");
    half_ ^= 1;
  }
  cuda::Product all;
  all.partials = values;
  all.rows = shape_.hidden;
  return all;
}

cuda::Product RankExchange::gather_logits(const cuda::Product& own, int tokens) {
  const std::int64_t stride = logits_stride(shape_), rows = own_logits(shape_);
  const auto begin = static_cast<std::int64_t>(shape_.own_vocab.begin);
  float* const logits = group_.end(first_).logits;
  cuda::Destinations to;
  to.stride = stride;
  to.to[0] = logits + begin;
  if (group_.transport() == Transport::Nccl) {
    if (rank_ != 0) to = {{static_cast<float*>(staging_.get())}, rows};
    check(cuda::share_rows(own, tokens, rows, to, nullptr, stream_), "sharing logits");
    send_logits(tokens);
  } else if (is_capturing()) {
    check(cuda::meet(meeting_, stream_), "meeting the ranks");  // the first one has read the logits before
    check(cuda::share_rows(own, tokens, rows, to, &meeting_, stream_), "sharing logits");
  } else {
    meet_with_events();
    check(cuda::share_rows(own, tokens, rows, to, nullptr, stream_), "sharing logits");
    meet_with_events();
  }
  cuda::Product all;
  if (rank_ == 0) {
    all.partials = logits;
    all.rows = stride;
  }
  return all;
}

// By NCCL, rank for rank as they are, to the first one, which puts them into their places.
void RankExchange::send_logits(int tokens) {
  auto* const staging = static_cast<float*>(staging_.get());
  Nccl& nccl = group_.stage_nccl(communicator_.stage());
  if (rank_ != 0) {
    const std::int64_t rows = own_logits(shape_);
    if (rows > 0) nccl.send(rank_, 0, staging, unsigned_of(tokens * rows) * sizeof(float), stream_);
    return;
  }
  const auto for_others = [&](const auto& body) {
    std::int64_t at = 0;
    for (int r = 1; r < ranks_; ++r) {
      const Range vocab = group_.end(first_ + r).vocab;
      const std::int64_t theirs = round_up(static_cast<std::int64_t>(vocab.size()), 8);
      if (theirs > 0) body(r, staging + at, static_cast<std::int64_t>(vocab.begin), theirs);
      at += tokens * theirs;
    }
  };
  nccl.group_start();
  for_others([&](int r, float* from, std::int64_t, std::int64_t rows) {
    nccl.receive(0, r, from, unsigned_of(tokens * rows) * sizeof(float), stream_);
  });
  nccl.group_end();
  float* const logits = group_.end(first_).logits;
  for_others([&](int, const float* from, std::int64_t place, std::int64_t rows) {
    check(cudaMemcpy2DAsync(logits + place, unsigned_of(logits_stride(shape_)) * sizeof(float), from,
                            unsigned_of(rows) * sizeof(float), unsigned_of(rows) * sizeof(float), unsigned_of(tokens),
                            cudaMemcpyDeviceToDevice, stream_),
          "bringing logits together");
  });
}

std::uint64_t RankExchange::hidden_bytes(int tokens) const {
  return unsigned_of(tokens) * unsigned_of(shape_.hidden) * sizeof(std::uint16_t);
}

// Where kernels carry the hidden states, the next stage waits on its thread until they are on their way, so that no
// kernel waits for a stage that may yet make CUDA take memory.
void RankExchange::send_hidden(const std::uint16_t* hidden, int tokens) {
  constexpr std::byte kOnItsWay{};
  const std::uint64_t bytes = hidden_bytes(tokens);
  const int own = communicator_.global_rank(), next = own + ranks_;
  switch (group_.transport()) {
    case Transport::PeerMemory:
      check(cuda::put_in(hidden, group_.end(next).incoming, bytes, to_next_, stream_), "sending hidden states");
      communicator_.send_to_next({&kOnItsWay, 1});
      break;
    case Transport::Nccl:
      communicator_.send_to_next({&kOnItsWay, 1});
      check(cudaMemcpyAsync(outgoing_.get(), hidden, bytes, cudaMemcpyDeviceToDevice, stream_),
            "sending hidden states");
      group_.all_nccl().send(own, next, outgoing_.get(), bytes, stream_);
      break;
    case Transport::SharedGpu:
      if (host_hidden_.bytes() < bytes) host_hidden_ = PinnedMemory(bytes);
      check(cudaMemcpyAsync(host_hidden_.get(), hidden, bytes, cudaMemcpyDeviceToHost, stream_),
            "sending hidden states");
      check(cudaStreamSynchronize(stream_), "sending hidden states");
      communicator_.send_to_next({reinterpret_cast<const std::byte*>(host_hidden_.get()), bytes});
      break;
  }
}

void RankExchange::receive_hidden(std::uint16_t* hidden, int tokens) {
  const std::uint64_t bytes = hidden_bytes(tokens);
  const int own = communicator_.global_rank();
  if (group_.transport() != Transport::SharedGpu) {
    std::byte on_its_way{};
    communicator_.receive_from_previous({&on_its_way, 1});
  }
  switch (group_.transport()) {
    case Transport::PeerMemory:
      check(cuda::take_out(incoming_.get(), hidden, bytes, from_previous_, stream_), "receiving hidden states");
      break;
    case Transport::Nccl:
      group_.all_nccl().receive(own, own - ranks_, incoming_.get(), bytes, stream_);
      check(cudaMemcpyAsync(hidden, incoming_.get(), bytes, cudaMemcpyDeviceToDevice, stream_),
            "receiving hidden states");
      break;
    case Transport::SharedGpu:
      check(cudaStreamSynchronize(stream_), "receiving hidden states");  // the buffer is free
      if (host_hidden_.bytes() < bytes) host_hidden_ = PinnedMemory(bytes);
      communicator_.receive_from_previous({reinterpret_cast<std::byte*>(host_hidden_.get()), bytes});
      check(cudaMemcpyAsync(hidden, host_hidden_.get(), bytes, cudaMemcpyHostToDevice, stream_),
            "receiving hidden states");
      break;
  }
}

}  // namespace glyd::runner
