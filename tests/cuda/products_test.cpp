#include "cuda/products/products.h"

#include <cmath>
#include <cstring>
#include <random>

#include "base/thread_pool.h"
#include "codec/pack.h"
#include "cuda/device.h"
#include "cuda/packing/gather_reference.h"

using namespace glyd;

namespace {

struct Case {
  std::int64_t rows, cols;
};

// Gaussian weights, `specials` among them.
std::vector<Bf16> some_weights(std::int64_t rows, std::int64_t cols, std::uint64_t seed, bool specials) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<Bf16> weights(static_cast<std::size_t>(rows * cols));
  for (Bf16& w : weights) w = to_bf16(normal(random));
  if (!specials) return weights;
  // Every second 256 weights with exponents of 16 sizes, whose long words make leaps (cuda/packing/resident.h).
  for (std::size_t i = 0; i < weights.size(); ++i)
    if (i / 256 % 2 != 0) weights[i].bits = static_cast<std::uint16_t>(weights[i].bits - (random() % 16 << 7));
  // Rare exponents of all sizes (exceptions of the code), zeros of both signs, denormals.
  for (int i = 0; i < rows * cols / 50 + 3; ++i) {
    const std::uint16_t bits[] = {0x4300, 0xC2FF, 0x0000, 0x8000, 0x0001, 0x8123, 0x3F80, 0x1234};
    weights[random() % weights.size()] = Bf16{bits[random() % 8]};
  }
  return weights;
}

// A matrix on the device, packed and plain.
class Matrix {
 public:
  Matrix(std::int64_t rows, std::int64_t cols, std::vector<Bf16> weights)
      : rows_(rows), cols_(cols), stride_((cols + 31) / 32 * 32), weights_(std::move(weights)) {
    ThreadPool pool(2);
    codec::PackOptions options;
    options.min_saving = -1e9;
    const auto packed =
        codec::pack({static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(cols)}, weights_, options, pool);
    host_ = cuda::gather_reference(*packed);
    sign_mantissa_ =
        std::make_unique<test::DeviceBuffer<std::uint8_t>>(host_.sign_mantissa.size() + 2 * cuda::kQuadBytes);
    CUDA_REQUIRE(
        cudaMemcpy(sign_mantissa(), host_.sign_mantissa.data(), host_.sign_mantissa.size(), cudaMemcpyHostToDevice));
    streams_ = std::make_unique<test::DeviceBuffer<std::uint8_t>>(host_.streams);
    offsets_ = std::make_unique<test::DeviceBuffer<std::uint32_t>>(host_.block_offsets);
    table_ = std::make_unique<test::DeviceBuffer<std::uint32_t>>(host_.table);
    std::vector<std::uint16_t> rows_padded(static_cast<std::size_t>(rows * stride_) + cuda::kPlainReadAhead / 2, 0);
    for (std::int64_t r = 0; r < rows; ++r)
      std::memcpy(&rows_padded[static_cast<std::size_t>(r * stride_)], &weights_[static_cast<std::size_t>(r * cols)],
                  static_cast<std::size_t>(cols) * 2);
    plain_ = std::make_unique<test::DeviceBuffer<std::uint16_t>>(rows_padded);
  }

  cuda::ResidentMatrix packed() {
    return {
        rows_,   cols_, sign_mantissa(), streams_->data(), offsets_->data(), table_->data(), host_.max_block_bytes, 0,
        nullptr, {}};
  }
  cuda::PlainMatrix plain() { return {plain_->data(), rows_, cols_, stride_}; }
  // Leaps in the lists of exceptions.
  std::size_t leaps() const {
    std::size_t count = 0;
    for (std::int64_t row_group = 0, block = 0; row_group < (rows_ + 63) / 64; ++row_group) {
      for (std::int64_t i = 0; i < (cols_ + 255) / 256; ++i, ++block) {
        const auto* const words = reinterpret_cast<const std::uint32_t*>(host_.streams.data()) +
                                  4 * std::size_t{host_.block_offsets[static_cast<std::size_t>(block)]};
        const std::int64_t tiles = std::min<std::int64_t>(4, (rows_ - row_group * 64 + 15) / 16);
        for (std::int64_t tile = 0; tile < tiles; ++tile) {
          const cuda::TileWord word = cuda::decode_tile_word(words[tile]);
          for (std::uint32_t entry = 0, at = word.place; word.exceptions && (entry & cuda::kResidentLast) == 0;) {
            entry = words[--at];
            count += (entry & cuda::kResidentLeap) != 0;
          }
        }
      }
    }
    return count;
  }
  float weight(std::int64_t r, std::int64_t k) const {
    return to_float(weights_[static_cast<std::size_t>(r * cols_ + k)]);
  }

 private:
  std::uint8_t* sign_mantissa() {
    constexpr std::uint64_t kTo = 2 * cuda::kQuadBytes;
    return reinterpret_cast<std::uint8_t*>((reinterpret_cast<std::uint64_t>(sign_mantissa_->data()) + kTo - 1) / kTo *
                                           kTo);
  }

  std::int64_t rows_, cols_, stride_;
  std::vector<Bf16> weights_;
  cuda::HostResident host_;
  std::unique_ptr<test::DeviceBuffer<std::uint8_t>> sign_mantissa_, streams_;
  std::unique_ptr<test::DeviceBuffer<std::uint32_t>> offsets_, table_;
  std::unique_ptr<test::DeviceBuffer<std::uint16_t>> plain_;
};

std::vector<Bf16> activations(std::int64_t tokens, std::int64_t cols, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<Bf16> x(static_cast<std::size_t>(tokens * cols));
  for (Bf16& v : x) v = to_bf16(normal(random));
  return x;
}

// The image of `tokens` rows of x, made from the description in activations.h; columns without a token hold NaN.
std::vector<std::uint16_t> image(const std::vector<Bf16>& x, std::int64_t tokens, std::int64_t cols, int columns,
                                 cuda::Layout layout) {
  const std::int64_t groups = (cols + 31) / 32;
  std::vector<std::uint16_t> out(static_cast<std::size_t>(groups * 32 * columns), 0x7FC1);
  for (std::int64_t n = 0; n < tokens; ++n) {
    for (std::int64_t k = 0; k < groups * 32; ++k) {
      const std::int64_t group = k / 32, q = k % 32 / 8, pair = k % 8 / 2, e = k % 2;
      std::int64_t at = 0;
      if (layout == cuda::Layout::Mma) {
        at = ((group * (columns / 8) + n / 8) * 32 + n % 8 * 4 + q) * 8 + k % 8;
      } else {
        at = ((group * 4 + pair) * (columns / 8) + n / 8) * 64 + n % 8 * 8 + 2 * q + e;
      }
      out[static_cast<std::size_t>(at)] = k < cols ? x[static_cast<std::size_t>(n * cols + k)].bits : 0;
    }
  }
  return out;
}

// Finished sums [tokens][rows], in the order of the splits.
std::vector<float> finish(const std::vector<float>& partials, const cuda::Partition& p, std::int64_t tokens) {
  const std::vector<std::uint8_t> counts = cuda::split_counts(p);
  std::vector<float> out;
  for (std::int64_t n = 0; n < tokens; ++n) {
    for (std::int64_t r = 0; r < p.rows; ++r) {
      const auto at = [&](int s) { return partials[static_cast<std::size_t>((s * tokens + n) * p.stored_rows() + r)]; };
      float sum = at(0);
      for (int s = 1; s < counts[static_cast<std::size_t>(r / 64)]; ++s) sum += at(s);
      out.push_back(sum);
    }
  }
  return out;
}

template <class Weights>
std::vector<float> product(cuda::KernelSet set, const Weights& weights, const cuda::Partition& p,
                           const std::vector<Bf16>& x, int tokens) {
  const int columns = cuda::activation_columns(tokens);
  const cuda::Layout layout = cuda::activation_layout(set, tokens);
  test::DeviceBuffer<std::uint16_t> device_x(image(x, tokens, p.cols, columns, layout));
  test::DeviceBuffer<float> partials(static_cast<std::size_t>(cuda::max_splits(p) * tokens * p.stored_rows()));
  CUDA_REQUIRE(
      cuda::multiply(set, weights, p, {device_x.data(), layout, columns, 0}, tokens, partials.data(), nullptr));
  CUDA_REQUIRE(cudaDeviceSynchronize());
  return finish(partials.to_host(), p, tokens);
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<Bf16> rows_of(const std::vector<Bf16>& x, std::int64_t first, std::int64_t count, std::int64_t cols) {
  return {x.begin() + first * cols, x.begin() + (first + count) * cols};
}

int multiprocessors() {
  int count = 0;
  CUDA_REQUIRE(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
  return count;
}

// `height`: of step rows; 0: what make_partition() takes.
void check_shape(cuda::KernelSet set, std::int64_t rows, std::int64_t cols, bool specials, bool check_values,
                 int height = 0) {
  INFO("rows " << rows << ", cols " << cols << ", specials " << specials);
  Matrix matrix(rows, cols, some_weights(rows, cols, static_cast<std::uint64_t>(rows * 7 + cols), specials));
  const cuda::Partition p = height == 0 ? cuda::make_partition(rows, cols, multiprocessors())
                                        : cuda::partition_of_height(rows, cols, multiprocessors(), height);
  const std::vector<Bf16> x = activations(cuda::kMaxColumns, cols, 3);
  const std::vector<float> all = product(set, matrix.plain(), p, x, cuda::kMaxColumns);
  if (check_values) {
    // Against fp64; the bound is that of adding K terms in fp32, a few units of the sum of magnitudes.
    std::size_t wrong = 0;
    for (std::int64_t n = 0; n < cuda::kMaxColumns; n += 9) {
      for (std::int64_t r = 0; r<rows; r += rows> 2000 ? 61 : 1) {
        double sum = 0, size = 0;
        for (std::int64_t k = 0; k < cols; ++k) {
          const double term = double{matrix.weight(r, k)} * to_float(x[static_cast<std::size_t>(n * cols + k)]);
          sum += term;
          size += std::abs(term);
        }
        const double error = std::abs(all[static_cast<std::size_t>(n * rows + r)] - sum);
        wrong += !(error <= 4e-6 * size + 1e-30);
      }
    }
    REQUIRE(wrong == 0);
  }
  for (const int tokens : {1, 2, 3, 5, 8, 9, 15, 16, 24, 32, 33, 48, 49, 64, 65, 96, 97, 112, 113, 128}) {
    INFO("tokens " << tokens);
    // The last rows of x, so that a token also stands in another column than in the product of all.
    const std::int64_t first = cuda::kMaxColumns - tokens;
    const std::vector<Bf16> some = rows_of(x, first, tokens, cols);
    const std::vector<float> expected(all.begin() + first * rows, all.end());
    REQUIRE(same_bits(product(set, matrix.plain(), p, some, tokens), expected));
    REQUIRE(same_bits(product(set, matrix.packed(), p, some, tokens), expected));
  }
}

constexpr Case kEdges[] = {{1, 1},     {16, 32},   {17, 33},   {64, 256},  {65, 257},  {100, 31},  {63, 512},
                           {200, 300}, {448, 992}, {1000, 64}, {130, 700}, {8, 20000}, {5000, 40}, {3, 5000}};
constexpr Case kModels[] = {{1152, 896},   {896, 896},    {9728, 896},   {896, 4864},   // qwen2.5-0.5b
                            {4608, 3584},  {3584, 3584},  {3584, 18944},                // qwen2.5-7b
                            {4096, 1024},  {1024, 2048},  {6144, 1024},  {1024, 3072},  // qwen3-0.6b
                            {6144, 2560},  {2560, 4096},  {2560, 9728},  {6144, 4096},  // qwen3-4b, 8b
                            {4096, 4096},  {4096, 12288}, {7168, 5120},  {5120, 5120},  // 8b, 14b
                            {5120, 17408}, {10240, 5120}, {5120, 8192},  {5120, 25600},
                            {10240, 8192}};  // 14b, 32b, 72b

}  // namespace

TEST_CASE("a product is right, and the same bits packed, plain, at every number of columns", "[cuda][gpu][products]") {
  GLYD_NEEDS_GPU();
  for (const cuda::KernelSet set : {cuda::KernelSet::Hopper, cuda::KernelSet::Generic}) {
    INFO("kernel set " << static_cast<int>(set));
    for (const auto& [rows, cols] : kEdges) {
      check_shape(set, rows, cols, false, true);
      check_shape(set, rows, cols, true, true);
    }
  }
}

TEST_CASE("the matrices of the published models multiply the same packed and plain", "[cuda][gpu][products][models]") {
  GLYD_NEEDS_GPU();
  for (const auto& [rows, cols] : kModels)
    check_shape(cuda::KernelSet::Hopper, rows, cols, true, rows * cols < 5'000'000);
  for (const auto& [rows, cols] : {Case{9728, 896}, Case{3584, 3584}})
    check_shape(cuda::KernelSet::Generic, rows, cols, true, false);
}

// A thread block goes through its run once for each part of a step row's row groups, also where blocks are so large
// that fewer of them fit.
TEST_CASE("step rows of more row groups than a thread block has side by side", "[cuda][gpu][products]") {
  GLYD_NEEDS_GPU();
  for (const auto& [rows, cols] : {Case{448, 992}, Case{1000, 1300}, Case{6000, 700}}) {
    for (const int height : {6, 7}) check_shape(cuda::KernelSet::Hopper, rows, cols, true, true, height);
  }
}

// A read that is overtaken by the copy of what comes next, or a register written while wgmma reads it, shows once in
// many launches, and where memory is slow to answer.
TEST_CASE("a product comes out the same every time", "[cuda][gpu][products]") {
  GLYD_NEEDS_GPU();
  const std::int64_t rows = 5120, cols = 17440;  // with a short block at each row's end
  Matrix matrix(rows, cols, some_weights(rows, cols, 21, true));
  const cuda::Partition p = cuda::make_partition(rows, cols, multiprocessors());
  const std::vector<Bf16> x = activations(cuda::kMaxColumns, cols, 7);
  const int pieces = cuda::max_splits(p);
  for (const int tokens : {1, 9, 32, 40, 64, 90, 110, 128}) {
    const int columns = cuda::activation_columns(tokens), launches = tokens == 128 ? 60 : 150;
    const cuda::Layout layout = cuda::activation_layout(cuda::KernelSet::Hopper, tokens);
    test::DeviceBuffer<std::uint16_t> device_x(image(x, tokens, cols, columns, layout));
    test::DeviceBuffer<float> partials(static_cast<std::size_t>(pieces * tokens * p.stored_rows()));
    const auto differ = [&](const auto& weights) {
      std::vector<float> first;
      int count = 0;
      for (int i = 0; i < launches; ++i) {
        CUDA_REQUIRE(cuda::multiply(cuda::KernelSet::Hopper, weights, p, {device_x.data(), layout, columns, 0}, tokens,
                                    partials.data(), nullptr));
        const std::vector<float> sums = partials.to_host();
        if (i == 0) first = sums;
        count += same_bits(sums, first) ? 0 : 1;
      }
      return count;
    };
    INFO("tokens " << tokens);
    CHECK(differ(matrix.plain()) == 0);
    CHECK(differ(matrix.packed()) == 0);
  }
}

TEST_CASE("both kernel sets give the same bits", "[cuda][gpu][products]") {
  GLYD_NEEDS_GPU();
  Matrix matrix(2000, 2048, some_weights(2000, 2048, 11, true));
  REQUIRE(matrix.leaps() > 1000);  // or nothing here shows that leaps are multiplied
  const cuda::Partition p = cuda::make_partition(2000, 2048, multiprocessors());
  const std::vector<Bf16> x = activations(32, 2048, 5);
  REQUIRE(same_bits(product(cuda::KernelSet::Hopper, matrix.packed(), p, x, 32),
                    product(cuda::KernelSet::Generic, matrix.packed(), p, x, 32)));
}

TEST_CASE("infinities and NaNs among the weights come out as infinities and NaNs", "[cuda][gpu][products]") {
  GLYD_NEEDS_GPU();
  // Row r of a matrix of ones has a special at column r: +inf, -inf, NaN.
  const std::int64_t rows = 96, cols = 256;
  std::vector<Bf16> weights(static_cast<std::size_t>(rows * cols), to_bf16(1.0f));
  const std::uint16_t specials[3] = {0x7F80, 0xFF80, 0x7FA5};
  for (std::int64_t r = 0; r < rows; ++r) weights[static_cast<std::size_t>(r * cols + r)] = Bf16{specials[r % 3]};
  Matrix matrix(rows, cols, weights);
  const cuda::Partition p = cuda::make_partition(rows, cols, multiprocessors());
  for (const int tokens : {1, 32}) {
    const std::vector<Bf16> x(static_cast<std::size_t>(tokens * cols), to_bf16(2.0f));
    const std::vector<float> y = product(cuda::KernelSet::Hopper, matrix.packed(), p, x, tokens);
    for (std::int64_t r = 0; r < rows; ++r) {
      const float v = y[static_cast<std::size_t>(r)];
      REQUIRE((r % 3 == 2 ? std::isnan(v) : std::isinf(v) && (v > 0) == (r % 3 == 0)));
    }
  }
}

TEST_CASE("a zero has the same sign at every number of columns", "[cuda][gpu][products]") {
  GLYD_NEEDS_GPU();
  // Zeros of both signs times negative numbers: each sum is a zero, which mma.sync and wgmma must make alike.
  const std::int64_t rows = 64, cols = 512;
  std::vector<Bf16> weights(static_cast<std::size_t>(rows * cols));
  for (std::size_t i = 0; i < weights.size(); ++i)
    weights[i].bits = i / cols % 3 == 0 ? 0 : i / cols % 3 == 1 || i % 2 == 0 ? 0x8000 : 0;
  Matrix matrix(rows, cols, weights);
  const cuda::Partition p = cuda::make_partition(rows, cols, multiprocessors());
  const std::vector<Bf16> x(static_cast<std::size_t>(cuda::kMaxColumns * cols), to_bf16(-1.5f));
  const std::vector<float> one = product(cuda::KernelSet::Hopper, matrix.plain(), p, rows_of(x, 0, 1, cols), 1);
  for (const int tokens : {1, 16, 32, 48, 64, 96, 112, 128}) {
    const std::vector<Bf16> some = rows_of(x, 0, tokens, cols);
    for (const std::vector<float>& all : {product(cuda::KernelSet::Hopper, matrix.plain(), p, some, tokens),
                                          product(cuda::KernelSet::Hopper, matrix.packed(), p, some, tokens)}) {
      for (int n = 0; n < tokens; ++n) {
        INFO("column " << n << " of " << tokens);
        REQUIRE(same_bits({all.begin() + n * rows, all.begin() + (n + 1) * rows}, one));
      }
    }
  }
}

// Every block in its order, and every piece of a row group once. Returns whether cuts lie inside steps.
bool check_partition(const cuda::Partition& p) {
  REQUIRE(p.first[0] == 0);
  REQUIRE(p.first[p.ctas] == p.steps());
  REQUIRE(p.first_number(0) == 0);
  REQUIRE(p.first_number(p.steps_down) == p.row_groups());
  const int blocks = p.col_blocks();
  std::vector<int> pieces(static_cast<std::size_t>(p.row_groups()), 0), done(pieces);
  bool inside = false;
  int shortest = p.row_groups() * blocks, longest = 0;
  for (int cta = 0; cta < p.ctas; ++cta) {
    REQUIRE(p.first[cta] < p.end(cta));
    inside = inside || p.place[cta] != 0;
    int count = 0;
    for (int at = 0; at < p.height; ++at) {
      const int begin = p.begin_at(cta, at), end = p.end_at(cta, at);
      REQUIRE((begin >= p.first[cta] && end <= p.end(cta)));
      for (int step = begin; step < end; ++step) {
        const int row = step / blocks;
        REQUIRE(at < p.groups_of(row));
        const auto group = static_cast<std::size_t>(p.row_group(row, at));
        if (step == begin || step % blocks == 0) REQUIRE(pieces[group]++ == p.piece(cta, row, at));
        REQUIRE(done[group]++ == step % blocks);
        ++count;
      }
    }
    shortest = std::min(shortest, count);
    longest = std::max(longest, count);
  }
  REQUIRE(shortest > 0);
  if (inside && p.low_rows() == 0) REQUIRE(longest - shortest <= 2);  // either end is the nearest cut to its share
  const std::vector<std::uint8_t> counts = cuda::split_counts(p);
  for (int row = 0; row < p.steps_down; ++row)
    REQUIRE((p.groups_of(row) >= 1 && p.groups_of(row) == p.first_number(row + 1) - p.first_number(row)));
  for (std::size_t g = 0; g < counts.size(); ++g) {
    REQUIRE(int{counts[g]} == pieces[g]);
    REQUIRE(done[g] == blocks);
  }
  return inside;
}

TEST_CASE("a partition gives every block to one thread block, and counts the pieces of each row", "[cuda]") {
  std::vector<Case> shapes(std::begin(kModels), std::end(kModels));
  shapes.insert(shapes.end(), std::begin(kEdges), std::end(kEdges));
  shapes.insert(shapes.end(), {{64, 76800}, {1, 70000}});  // a row in more pieces than a byte counts, if it could be
  int inside = 0;
  for (const auto& [rows, cols] : shapes) {
    for (const int multiprocessors : {1, 84, 132, 148, 300}) {
      for (int height = 1; height <= 7; ++height) {
        INFO("rows " << rows << ", cols " << cols << ", height " << height << ", " << multiprocessors);
        const cuda::Partition p = cuda::partition_of_height(rows, cols, multiprocessors, height);
        REQUIRE(p.height <= height);
        inside += check_partition(p) ? 1 : 0;
      }
    }
  }
  CHECK(inside > 300);
}

TEST_CASE("the first half of all runs has the even row groups, the second half the odd ones", "[cuda]") {
  for (const auto& [rows, cols] :
       {Case{10240, 5120}, Case{5120, 8192}, Case{51200, 5120}, Case{5120, 25600}, Case{151936, 5120}}) {
    INFO("rows " << rows << ", cols " << cols);
    const cuda::Partition p = cuda::make_partition(rows, cols, 132);
    int blocks = 0, elsewhere = 0;
    for (int cta = 0; cta < p.ctas; ++cta) {
      for (int at = 0; at < p.height; ++at) {
        for (int step = p.begin_at(cta, at); step < p.end_at(cta, at); ++step, ++blocks)
          elsewhere += p.row_group(step / p.col_blocks(), at) % 2 != (2 * cta >= p.ctas ? 1 : 0) ? 1 : 0;
      }
    }
    CHECK(blocks == p.row_groups() * p.col_blocks());
    CHECK(elsewhere <= blocks / 40);  // where a step row has even and odd ones
  }
}
