// Attention against fp64 on the host from the same bf16 inputs, and against itself where results must not move a bit.
//
// What a result may be off by, in terms of the exact probabilities p and values v of its row:
// - its own rounding to bf16: 2^-8 of it;
// - the scores' error, which moves every p by that factor: a tensor core loses some units in the last place of the sum
// of
//   magnitudes at each of head_dim / 16 steps;
// - prompts only: p is rounded to bf16, independently for every key, so the errors add up as a random walk does: a few
//   times 2^-8 of the root of the sum of (p v)^2. One key more or less is beyond that.

#include "cuda/attention/attention.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>

#include "cuda/device.h"
#include "cuda/host_product.h"

namespace glyd::test {
namespace {

using Bits = std::vector<std::uint16_t>;
constexpr int kBlock = cuda::kCacheBlock;
constexpr std::uint16_t kPoison = 0xFFFF;  // a NaN

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

struct Shape {
  int heads, kv_heads, head_dim;
  int width() const { return heads * head_dim; }
  int kv_width() const { return kv_heads * head_dim; }
};

// A sequence's inputs: keys and values of all its tokens, queries of the last `queries`.
struct Sequence {
  int context = 0, queries = 0;
  Bits q, keys, values;  // [token][head][dimension]
};

// What a step sees of a sequence: its first `context` tokens, with the queries of the last `count` of them.
struct Chunk {
  const Sequence* sequence;
  int context, count;
};

float scale_of(const Shape& shape) { return 1 / std::sqrt(static_cast<float>(shape.head_dim)); }

// `key_bias`: how far off zero the dimensions of all keys are.
Sequence random_sequence(std::mt19937& random, const Shape& shape, int context, int queries, float key_bias = 0) {
  Sequence s;
  s.context = context;
  s.queries = queries;
  s.q = random_bf16(random, index(queries * shape.width()), 0, key_bias == 0 ? 1.0f : 2.0f);
  s.values = random_bf16(random, index(context * shape.kv_width()), 0, 1);
  if (key_bias == 0) {
    s.keys = random_bf16(random, index(context * shape.kv_width()), 0, 1);
    return s;
  }
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> bias(index(shape.kv_width()));
  for (float& b : bias) b = key_bias * normal(random);
  for (int i = 0; i < context * shape.kv_width(); ++i) {
    s.keys.push_back(to_bf16(bias[index(i % shape.kv_width())] + 4 * normal(random)).bits);
  }
  return s;
}

struct Expected {
  std::vector<double> value, magnitude, norm;  // sum of p v, of p |v|, root of the sum of (p v)^2
  double score_error = 0;
};

// One head's result for the token at `position`.
Expected expect(const Shape& shape, const Sequence& s, int position, int head) {
  const int d = shape.head_dim, kv_head = head / (shape.heads / shape.kv_heads);
  const std::uint16_t* q = &s.q[index((position - (s.context - s.queries)) * shape.width() + head * d)];
  std::vector<double> p;
  double largest_terms = 0;
  for (int t = 0; t <= position; ++t) {
    double score = 0, terms = 0;
    for (int i = 0; i < d; ++i) {
      const double term = static_cast<double>(from_bits(q[i])) *
                          from_bits(s.keys[index(std::int64_t{t} * shape.kv_width() + kv_head * d + i)]);
      score += term;
      terms += std::abs(term);
    }
    p.push_back(score * scale_of(shape));
    largest_terms = std::max(largest_terms, terms * scale_of(shape));
  }
  const double max = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& x : p) sum += x = std::exp(x - max);
  Expected e{std::vector<double>(index(d)), std::vector<double>(index(d)), std::vector<double>(index(d)), 0};
  e.score_error = largest_terms * (d / 16 + 4) * 0x1p-22;
  for (int t = 0; t <= position; ++t) {
    for (int i = 0; i < d; ++i) {
      const double term =
          p[index(t)] / sum * from_bits(s.values[index(std::int64_t{t} * shape.kv_width() + kv_head * d + i)]);
      e.value[index(i)] += term;
      e.magnitude[index(i)] += std::abs(term);
      e.norm[index(i)] += term * term;
    }
  }
  for (double& x : e.norm) x = std::sqrt(x);
  return e;
}

// Every element of a token's row; `weights_off`: how far each p may be rounded.
void check_row(const Shape& shape, const Chunk& chunk, int position, const Bits& found, double weights_off) {
  int wrong = 0;
  double worst = 0;
  for (int head = 0; head < shape.heads; ++head) {
    const Expected e = expect(shape, *chunk.sequence, position, head);
    for (int i = 0; i < shape.head_dim; ++i) {
      const double allowed = 0x1p-8 * std::abs(e.value[index(i)]) + 4 * weights_off * e.norm[index(i)] +
                             (2 * e.score_error + 0x1p-15) * e.magnitude[index(i)];
      const double off = std::abs(from_bits(found[index(head * shape.head_dim + i)]) - e.value[index(i)]);
      if (!(off <= allowed)) ++wrong;
      worst = std::max(worst, off / allowed);
    }
  }
  INFO("heads " << shape.heads << " kv " << shape.kv_heads << " dim " << shape.head_dim << " context " << chunk.context
                << " position " << position << ": worst error is " << worst << " of the allowed");
  CHECK(wrong == 0);
}

// A step's inputs on the device: blocks dealt out at random, poison wherever nothing may be read.
class DeviceStep {
 public:
  // Tables have room for `most` tokens of a sequence; what is cached of a sequence is its chunk's context.
  DeviceStep(std::mt19937& random, const Shape& shape, const std::vector<Chunk>& chunks, int most = 0)
      : shape_(shape), chunks_(chunks) {
    for (const Chunk& c : chunks) most = std::max(most, c.context);
    stride_ = (most + kBlock - 1) / kBlock + 3;
    std::int64_t blocks = 2;
    for (const Chunk& c : chunks) blocks += (c.context + kBlock - 1) / kBlock;
    std::vector<std::int32_t> free(index(blocks));
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), random);

    const std::int64_t block_size = std::int64_t{kBlock} * shape.kv_width();
    Bits keys(index(blocks * block_size), kPoison), values = keys;
    const int q_stride = shape.width() + 24;
    Bits q;
    std::vector<std::int32_t> tables(index(stride_ * static_cast<std::int64_t>(chunks.size())), -1), lengths, starts{0};
    for (std::size_t s = 0; s < chunks.size(); ++s) {
      const Sequence& sequence = *chunks[s].sequence;
      for (int t = 0; t < chunks[s].context; ++t) {
        std::int32_t& block = tables[s * index(stride_) + index(t / kBlock)];
        if (t % kBlock == 0) {
          block = free.back();
          free.pop_back();
        }
        for (int h = 0; h < shape.kv_heads; ++h) {
          const auto from = index(std::int64_t{t} * shape.kv_width() + h * shape.head_dim);
          const auto to = index(block * block_size + (h * kBlock + t % kBlock) * shape.head_dim);
          std::copy_n(&sequence.keys[from], shape.head_dim, &keys[to]);
          std::copy_n(&sequence.values[from], shape.head_dim, &values[to]);
        }
      }
      for (int t = chunks[s].context - chunks[s].count; t < chunks[s].context; ++t) {
        const std::uint16_t* from = &sequence.q[index((t - (sequence.context - sequence.queries)) * shape.width())];
        q.insert(q.end(), from, from + shape.width());
        q.resize(q.size() + 24, kPoison);
      }
      // In decode a padding sequence has a row of q all the same.
      if (chunks[s].context == 0) q.resize(q.size() + index(q_stride), kPoison);
      lengths.push_back(chunks[s].context);
      starts.push_back(starts.back() + chunks[s].count);
      longest_ = std::max(longest_, chunks[s].count);
    }
    rows_ = starts.back();
    q_ = std::make_unique<DeviceBuffer<std::uint16_t>>(q);
    keys_ = std::make_unique<DeviceBuffer<std::uint16_t>>(keys);
    values_ = std::make_unique<DeviceBuffer<std::uint16_t>>(values);
    tables_ = std::make_unique<DeviceBuffer<std::int32_t>>(tables);
    lengths_ = std::make_unique<DeviceBuffer<std::int32_t>>(lengths);
    starts_ = std::make_unique<DeviceBuffer<std::int32_t>>(starts);
    std::int64_t total = 0;
    for (const Chunk& c : chunks) total += std::max(most, c.context);
    const std::size_t bytes = cuda::attention_decode_workspace(sequences(), total, most, shape.heads, shape.head_dim);
    workspace_ = std::make_unique<DeviceBuffer<std::uint8_t>>(bytes + kGuard);
  }

  int sequences() const { return static_cast<int>(chunks_.size()); }
  int rows() const { return rows_; }

  cudaError_t decode(const cuda::Activations& out, cudaStream_t stream) {
    return cuda::attention_decode(q_->data(), shape_.width() + 24, cache(), batch(), sequences(), shape_.heads,
                                  scale_of(shape_), out, workspace_->data(), stream);
  }
  cudaError_t prefill(const cuda::Activations& out, cudaStream_t stream) {
    return cuda::attention_prefill(q_->data(), shape_.width() + 24, cache(), batch(), sequences(), rows_, longest_,
                                   shape_.heads, scale_of(shape_), out, stream);
  }
  void set_lengths(const std::vector<std::int32_t>& lengths) {
    CUDA_REQUIRE(cudaMemcpy(lengths_->data(), lengths.data(), lengths.size() * 4, cudaMemcpyHostToDevice));
  }
  void check_guard() const {
    const std::vector<std::uint8_t> all = workspace_->to_host();
    const bool untouched = std::all_of(all.end() - kGuard, all.end(), [](std::uint8_t b) { return b == 0xCD; });
    CHECK(untouched);
  }

 private:
  static constexpr int kGuard = 4096;  // behind the workspace

  cuda::PagedCache cache() const { return {keys_->data(), values_->data(), shape_.kv_heads, shape_.head_dim}; }
  cuda::AttentionBatch batch() const { return {tables_->data(), stride_, lengths_->data(), starts_->data()}; }

  Shape shape_;
  std::vector<Chunk> chunks_;
  std::int64_t stride_ = 0;
  int rows_ = 0, longest_ = 0;
  std::unique_ptr<DeviceBuffer<std::uint16_t>> q_, keys_, values_;
  std::unique_ptr<DeviceBuffer<std::int32_t>> tables_, lengths_, starts_;
  std::unique_ptr<DeviceBuffer<std::uint8_t>> workspace_;
};

// Rows of `found` without the padding, which is checked.
std::vector<Bits> without_padding(const Shape& shape, const DeviceActivations& out) {
  std::vector<Bits> rows = out.to_host();
  bool clean = true;
  for (Bits& row : rows) {
    for (std::size_t i = index(shape.width()); i < row.size(); ++i) clean = clean && row[i] == out.padding();
    row.resize(index(shape.width()));
  }
  CHECK(clean);
  return rows;
}

// Three launches on one workspace, whatever the one before has left there.
std::vector<Bits> decode(std::mt19937& random, const Shape& shape, const std::vector<Chunk>& chunks,
                         cuda::Layout layout = cuda::Layout::Rows) {
  DeviceStep step(random, shape, chunks);
  std::vector<Bits> first;
  for (int launch = 0; launch < 3; ++launch) {
    DeviceActivations out(layout, step.sequences(), shape.width());
    CUDA_REQUIRE(step.decode(out.activations, nullptr));
    CUDA_REQUIRE(cudaDeviceSynchronize());
    const std::vector<Bits> rows = without_padding(shape, out);
    if (launch == 0) first = rows;
    CHECK((rows == first));
  }
  step.check_guard();
  return first;
}

std::vector<Bits> prefill(std::mt19937& random, const Shape& shape, const std::vector<Chunk>& chunks) {
  DeviceStep step(random, shape, chunks);
  DeviceActivations out(cuda::Layout::Rows, step.rows(), shape.width());
  CUDA_REQUIRE(step.prefill(out.activations, nullptr));
  CUDA_REQUIRE(cudaDeviceSynchronize());
  return without_padding(shape, out);
}

std::vector<Sequence> random_sequences(std::mt19937& random, const Shape& shape, const std::vector<int>& contexts,
                                       bool all_queries) {
  std::vector<Sequence> sequences;
  for (const int context : contexts)
    sequences.push_back(random_sequence(random, shape, context, all_queries ? context : std::min(context, 1)));
  return sequences;
}

// All of each sequence.
std::vector<Chunk> whole(const std::vector<Sequence>& sequences) {
  std::vector<Chunk> chunks;
  for (const Sequence& s : sequences) chunks.push_back({&s, s.context, s.queries});
  return chunks;
}

constexpr Shape kShapes[] = {{64, 8, 128}, {4, 2, 64},  {3, 3, 128}, {7, 1, 64},   {12, 4, 80}, {5, 1, 8},
                             {24, 2, 128}, {16, 1, 96}, {9, 1, 72},  {10, 2, 256}, {6, 2, 200}, {4, 1, 192}};
constexpr double kWeightsRounded = 0x1p-8;

bool is_zero(const Bits& row) {
  return std::all_of(row.begin(), row.end(), [](std::uint16_t bits) { return bits == 0; });
}

void check_decode(std::mt19937& random, const Shape& shape, const std::vector<int>& contexts) {
  const std::vector<Sequence> sequences = random_sequences(random, shape, contexts, false);
  const std::vector<Chunk> chunks = whole(sequences);
  const std::vector<Bits> rows = decode(random, shape, chunks);
  for (std::size_t s = 0; s < chunks.size(); ++s) {
    if (chunks[s].context == 0) {
      CHECK(is_zero(rows[s]));
    } else {
      check_row(shape, chunks[s], chunks[s].context - 1, rows[s], 0);
    }
  }
}

TEST_CASE("attention_decode agrees with fp64", "[cuda][gpu][attention]") {
  GLYD_NEEDS_GPU();
  std::mt19937 random(1);
  for (const Shape& shape : kShapes)
    check_decode(random, shape, {1, 15, 0, 16, 17, 127, 128, 129, 255, 256, 257, 1000});
  check_decode(random, {16, 2, 128}, {5000, 1, 1024, 1025});  // merged by a warp and by a block
  check_decode(random, {2, 1, 64}, {35000, 200});
  check_decode(random, {3, 1, 256}, {3000});
  check_decode(random, {4, 2, 200}, {1500, 900});
  check_decode(random, {8, 8, 8}, {150000});  // more items a block than it looks up at once
  check_decode(random, {8, 1, 128}, std::vector<int>(300, 33));
  check_decode(random, {8, 1, 128}, {0});
}

TEST_CASE("attention_decode writes every layout", "[cuda][gpu][attention]") {
  GLYD_NEEDS_GPU();
  std::mt19937 random(2);
  for (const Shape& shape : {Shape{8, 2, 64}, Shape{5, 1, 40}, Shape{3, 1, 72}, Shape{1, 1, 8}}) {
    std::vector<int> contexts;
    for (int i = 0; i < 11; ++i) contexts.push_back(i * 37);
    const std::vector<Sequence> sequences = random_sequences(random, shape, contexts, false);
    const std::vector<Bits> rows = decode(random, shape, whole(sequences));
    CHECK((decode(random, shape, whole(sequences), cuda::Layout::Mma) == rows));
    CHECK((decode(random, shape, whole(sequences), cuda::Layout::Wgmma) == rows));
  }
}

TEST_CASE("attention_decode of a sequence does not depend on the batch", "[cuda][gpu][attention]") {
  GLYD_NEEDS_GPU();
  std::mt19937 random(3);
  for (const Shape& shape : {Shape{64, 8, 128}, Shape{12, 2, 64}}) {
    std::vector<int> contexts(32);
    for (int& c : contexts) c = static_cast<int>(random() % 3000);
    contexts[7] = 0;
    const std::vector<Sequence> sequences = random_sequences(random, shape, contexts, false);
    std::vector<Chunk> chunks = whole(sequences);
    const std::vector<Bits> together = decode(random, shape, chunks);
    for (const std::size_t s : {std::size_t{0}, std::size_t{7}, std::size_t{20}, std::size_t{31}})
      CHECK((decode(random, shape, {chunks[s]}).front() == together[s]));
    std::reverse(chunks.begin(), chunks.end());
    std::vector<Bits> reversed = decode(random, shape, chunks);
    std::reverse(reversed.begin(), reversed.end());
    CHECK((reversed == together));
  }
}

TEST_CASE("a captured attention_decode serves any lengths", "[cuda][gpu][attention]") {
  GLYD_NEEDS_GPU();
  std::mt19937 random(4);
  const Shape shape{16, 2, 128};
  constexpr int kMost = 2200;
  const std::vector<Sequence> sequences = random_sequences(random, shape, std::vector<int>(5, kMost), false);
  // The queries are the last token's; the lengths only say how much of the keys is seen.
  std::vector<Chunk> chunks;
  for (const Sequence& s : sequences) chunks.push_back({&s, kMost, 1});
  DeviceStep step(random, shape, chunks);
  DeviceActivations out(cuda::Layout::Mma, step.sequences(), shape.width());
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t captured = nullptr;
  CUDA_REQUIRE(cudaStreamCreate(&stream));
  CUDA_REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CUDA_REQUIRE(step.decode(out.activations, stream));
  CUDA_REQUIRE(step.decode(out.activations, stream));  // one after the other on one workspace
  CUDA_REQUIRE(cudaStreamEndCapture(stream, &graph));
  CUDA_REQUIRE(cudaGraphInstantiate(&captured, graph, 0));
  for (const std::vector<std::int32_t>& lengths : {std::vector<std::int32_t>{kMost, 16, 0, 129, 1},
                                                   {1, kMost, 128, 0, 2100},
                                                   {0, 0, 0, 0, 0},
                                                   {7, 600, 1, 2, 3}}) {
    step.set_lengths(lengths);
    CUDA_REQUIRE(cudaMemset(out.activations.data, 0xCD, index(shape.width() * out.activations.columns * 2)));
    CUDA_REQUIRE(cudaGraphLaunch(captured, stream));
    CUDA_REQUIRE(cudaStreamSynchronize(stream));
    const std::vector<Bits> rows = without_padding(shape, out);
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      if (lengths[s] == 0) {
        CHECK(is_zero(rows[s]));
        continue;
      }
      Sequence seen = sequences[s];  // with the last token's query at the place of the length's last
      seen.context = lengths[s];
      seen.queries = 1;
      seen.q.assign(seen.q.end() - shape.width(), seen.q.end());
      check_row(shape, {&seen, lengths[s], 1}, lengths[s] - 1, rows[s], 0);
    }
  }
  cudaGraphExecDestroy(captured);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

// Tokens of a prompt that are compared: all of a short one, of a longer one those around the tiles' edges and some
// more.
std::vector<int> compared(std::mt19937& random, int context) {
  std::vector<int> positions;
  if (context <= 70) {
    positions.resize(index(context));
    std::iota(positions.begin(), positions.end(), 0);
    return positions;
  }
  for (const int p : {0, 1, 15, 16, 31, 32, 63, 64, 127, 128, context - 2, context - 1})
    if (p < context) positions.push_back(p);
  for (int i = 0; i < 12; ++i) positions.push_back(static_cast<int>(random() % static_cast<unsigned>(context)));
  return positions;
}

void check_prefill(std::mt19937& random, const Shape& shape, const std::vector<int>& contexts) {
  const std::vector<Sequence> sequences = random_sequences(random, shape, contexts, true);
  const std::vector<Bits> rows = prefill(random, shape, whole(sequences));
  int first = 0;
  for (const Sequence& s : sequences) {
    for (const int p : compared(random, s.context))
      check_row(shape, {&s, s.context, s.queries}, p, rows[index(first + p)], kWeightsRounded);
    first += s.context;
  }
}

TEST_CASE("attention_prefill agrees with fp64", "[cuda][gpu][attention]") {
  GLYD_NEEDS_GPU();
  std::mt19937 random(5);
  for (const Shape& shape : kShapes) check_prefill(random, shape, {1, 15, 16, 17, 64, 65, 255, 256, 257});
  check_prefill(random, {8, 2, 128}, {1000, 3, 600});
  check_prefill(random, {4, 1, 64}, {5000, 1});
  check_prefill(random, {2, 1, 256}, {1100, 40});
}

TEST_CASE("attention_prefill does not depend on the batch or on how the prompt was cut", "[cuda][gpu][attention]") {
  GLYD_NEEDS_GPU();
  std::mt19937 random(6);
  for (const Shape& shape : {Shape{16, 2, 128}, Shape{4, 4, 64}, Shape{5, 1, 80}, Shape{3, 1, 256}}) {
    const std::vector<Sequence> sequences = random_sequences(random, shape, {700, 40, 333}, true);
    const std::vector<Bits> together = prefill(random, shape, whole(sequences));
    const Sequence& sequence = sequences[0];
    const std::vector<Bits> expected(together.begin(), together.begin() + sequence.context);
    CHECK((prefill(random, shape, {{&sequence, sequence.context, sequence.context}}) == expected));
    for (const int size : {1, 16, 100, 129, 512}) {
      std::vector<Bits> cut;
      for (int from = 0; from < sequence.context; from += size) {
        if (size == 1 && from == 150) break;
        const int to = std::min(from + size, sequence.context);
        // Beside a sequence that has nothing to do and one in the middle of its prompt.
        const std::vector<Bits> rows =
            prefill(random, shape, {{&sequences[1], 30, 5}, {&sequences[2], 100, 0}, {&sequence, to, to - from}});
        REQUIRE(rows.size() == index(5 + to - from));
        cut.insert(cut.end(), rows.begin() + 5, rows.end());
      }
      CHECK(std::equal(cut.begin(), cut.end(), expected.begin()));
    }
  }
}

TEST_CASE("attention with a large key bias", "[cuda][gpu][attention]") {
  GLYD_NEEDS_GPU();
  std::mt19937 random(7);
  const Shape shape{14, 2, 128};
  const Sequence sequence = random_sequence(random, shape, 700, 700, 400);
  const Chunk chunk{&sequence, 700, 700};
  const std::vector<Bits> rows = prefill(random, shape, {chunk});
  for (const int p : compared(random, 700)) check_row(shape, chunk, p, rows[index(p)], kWeightsRounded);
  for (const int context : {1, 100, 500, 700})
    check_row(shape, chunk, context - 1, decode(random, shape, {{&sequence, context, 1}}).front(), 0);
}

TEST_CASE("attention does not hide a NaN", "[cuda][gpu][attention]") {
  GLYD_NEEDS_GPU();
  std::mt19937 random(9);
  const Shape shape{4, 2, 64};
  Sequence sequence = random_sequence(random, shape, 300, 300);
  for (int t = 0; t < 300; ++t) sequence.q[index(t * shape.width() + 2 * shape.head_dim)] = kPoison;  // head 2
  const Bits token = decode(random, shape, {{&sequence, 300, 1}}).front();
  const Bits row = prefill(random, shape, {{&sequence, 300, 300}})[299];
  for (int i = 0; i < shape.width(); ++i) {
    const bool expected = i / shape.head_dim == 2;
    CHECK(std::isnan(from_bits(token[index(i)])) == expected);
    CHECK(std::isnan(from_bits(row[index(i)])) == expected);
  }
}

TEST_CASE("attention_decode agrees with attention_prefill", "[cuda][gpu][attention]") {
  GLYD_NEEDS_GPU();
  std::mt19937 random(8);
  for (const Shape& shape : {Shape{64, 8, 128}, Shape{6, 3, 64}}) {
    const Sequence sequence = random_sequence(random, shape, 400, 400);
    const std::vector<Bits> prompt = prefill(random, shape, {{&sequence, 400, 400}});
    for (const int context : {1, 2, 64, 129, 400}) {
      const Bits token = decode(random, shape, {{&sequence, context, 1}}).front();
      const Bits& row = prompt[index(context - 1)];
      double off = 0, size = 0;
      for (std::size_t i = 0; i < row.size(); ++i) {
        off += std::pow(from_bits(token[i]) - from_bits(row[i]), 2);
        size += std::pow(from_bits(row[i]), 2);
      }
      CHECK(std::sqrt(off / size) < 0x1p-8);
    }
  }
}

}  // namespace
}  // namespace glyd::test
