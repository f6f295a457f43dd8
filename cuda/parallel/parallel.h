#pragma once
// What the ranks of a split model put together: each GPU has a sum of its own over the inputs that it holds, and the
// layer's is all of them. A rank writes its sums straight into the others' memory, and whoever reads them adds them in
// the order of the ranks. So all ranks get the same bits, and a token's do not depend on how many others there are.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/common/product.h"

namespace glyd::cuda {

inline constexpr int kMaxRanks = 16;

// How a rank meets the others. The memory is the owner's, and starts at zero.
struct Meeting {
  int rank = 0, ranks = 1;
  std::uint32_t* counters = nullptr;       // the rank's own [2]: meetings so far, blocks that are done
  std::uint32_t* arrived[kMaxRanks] = {};  // [ranks] of each rank, as this GPU reaches it: [r] meetings that r came to
  const int* stop = nullptr;  // in host memory: not zero once a rank has failed; nobody is waited for any more
};

// Where a rank's rows go: row r of token n to to[i][n * stride + r] for each i that is not null.
struct Destinations {
  float* to[kMaxRanks] = {};
  std::int64_t stride = 0;  // a multiple of 4
};

// Adds up a product's parts (its bias too; nothing is rounded) for rows [0, rows) of some tokens, rows a multiple of 8,
// and writes them to the destinations. With `meeting`, the kernel then waits for all ranks to have come as far, and
// what they have written is there when it ends. No rank may share its GPU with another then: it would wait for a kernel
// that has no place to run.
cudaError_t share_rows(const Product& product, int tokens, std::int64_t rows, const Destinations& destinations,
                       const Meeting* meeting, cudaStream_t stream);

// Waits for all ranks to have come as far.
cudaError_t meet(const Meeting& meeting, cudaStream_t stream);

// A passage from one GPU to another, as either end sees it. The words are in the memory of the one who waits for them.
struct Passage {
  std::uint32_t* counters = nullptr;    // own [2]: messages so far, blocks that are done
  const std::uint32_t* mine = nullptr;  // the sender's: messages taken out; the receiver's: messages put in
  std::uint32_t* theirs = nullptr;      // the same of the other end, as this GPU reaches it
  const int* stop = nullptr;            // as in a Meeting
};
// Copies `bytes` (a multiple of 16) to the other GPU's `to` once the message before was taken out of it, and says so.
cudaError_t put_in(const void* from, void* to, std::uint64_t bytes, const Passage& passage, cudaStream_t stream);
// Copies the next message, which lies at `from` on this GPU, to `to`, and says so.
cudaError_t take_out(const void* from, void* to, std::uint64_t bytes, const Passage& passage, cudaStream_t stream);

// out[i] = slots[i] + slots[stride + i] + ... over the ranks in their order, i < count. All are multiples of 4.
cudaError_t add_ranks(const float* slots, int ranks, std::int64_t stride, float* out, std::int64_t count,
                      cudaStream_t stream);

}  // namespace glyd::cuda
