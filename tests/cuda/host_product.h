#pragma once
// A product's results made up on the host, as the kernels behind products find them, and images read back. Written from
// the descriptions in cuda/common, without their device functions.

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "base/bf16.h"
#include "cuda/common/activations.h"
#include "cuda/common/product.h"
#include "cuda/device.h"

namespace glyd::test {

inline std::vector<std::uint16_t> random_bf16(std::mt19937& random, std::size_t count, float mean, float deviation) {
  std::normal_distribution<float> normal(mean, deviation);
  std::vector<std::uint16_t> bits(count);
  for (std::uint16_t& b : bits) b = to_bf16(normal(random)).bits;
  return bits;
}

// What a DeviceBuffer can be made from.
template <class T>
std::vector<T> at_least_one(std::vector<T> values) {
  if (values.empty()) values.push_back(T{});
  return values;
}

inline float from_bits(std::uint16_t bits) { return to_float(Bf16{bits}); }

enum class Kind { Partials, PartialsAndBias, Values };

// Random sums of `tokens` x `rows` in 1 to `most` parts, the number drawn for each group of rows. Parts that do not
// exist are NaN: nobody may add them.
class HostProduct {
 public:
  HostProduct(std::mt19937& random, Kind kind, std::int64_t tokens, std::int64_t rows, int most, int group_rows,
              float deviation = 1)
      : finished(static_cast<std::size_t>(tokens * rows)) {
    product.rows = rows;
    product.group_rows = group_rows;
    product.split_stride = tokens * rows + 24;
    std::normal_distribution<float> normal(0, deviation);
    if (kind == Kind::Values) {
      values_ = random_bf16(random, finished.size(), 0, deviation);
      for (std::size_t i = 0; i < finished.size(); ++i) finished[i] = from_bits(values_[i]);
      return;
    }
    for (std::int64_t group = 0; group * group_rows < rows; ++group)
      splits_.push_back(static_cast<std::uint8_t>(1 + random() % static_cast<unsigned>(most)));
    partials_.assign(static_cast<std::size_t>(most * product.split_stride), std::numeric_limits<float>::quiet_NaN());
    for (std::int64_t token = 0; token < tokens; ++token) {
      for (std::int64_t row = 0; row < rows; ++row) {
        float& sum = finished[static_cast<std::size_t>(token * rows + row)];
        for (int s = 0; s < splits_[static_cast<std::size_t>(row / group_rows)]; ++s) {
          const float part = normal(random);
          partials_[static_cast<std::size_t>(s * product.split_stride + token * rows + row)] = part;
          sum = s == 0 ? part : sum + part;
        }
      }
    }
    if (kind != Kind::PartialsAndBias) return;
    bias_ = random_bf16(random, static_cast<std::size_t>(rows), 0, deviation);
    for (std::size_t i = 0; i < finished.size(); ++i)
      finished[i] += from_bits(bias_[i % static_cast<std::size_t>(rows)]);
  }

  // Changes one result, which must be of one part and have no bias.
  void set(std::int64_t token, std::int64_t row, float value) {
    REQUIRE((splits_.at(static_cast<std::size_t>(row / product.group_rows)) == 1 && bias_.empty()));
    finished[static_cast<std::size_t>(token * product.rows + row)] = value;
    partials_[static_cast<std::size_t>(token * product.rows + row)] = value;
  }

  float at(std::int64_t token, std::int64_t row) const {
    return finished[static_cast<std::size_t>(token * product.rows + row)];
  }
  float rounded(std::int64_t token, std::int64_t row) const { return round_to_bf16(at(token, row)); }

  cuda::Product product;        // shape only: DeviceProduct has the pointers
  std::vector<float> finished;  // [token][row] parts added in order, then the bias, not rounded

 private:
  friend class DeviceProduct;
  std::vector<float> partials_;
  std::vector<std::uint8_t> splits_;
  std::vector<std::uint16_t> values_, bias_;
};

class DeviceProduct {
 public:
  explicit DeviceProduct(const HostProduct& host)
      : partials_(at_least_one(host.partials_)),
        splits_(at_least_one(host.splits_)),
        values_(at_least_one(host.values_)),
        bias_(at_least_one(host.bias_)) {
    product = host.product;
    if (!host.partials_.empty()) product.partials = partials_.data();
    if (!host.splits_.empty()) product.splits = splits_.data();
    if (!host.values_.empty()) product.values = values_.data();
    if (!host.bias_.empty()) product.bias = bias_.data();
  }

  // The same results from `token` on, as if it were the first of the step.
  cuda::Product from(std::int64_t token) const {
    cuda::Product shifted = product;
    if (shifted.partials != nullptr) shifted.partials += token * product.rows;
    if (shifted.values != nullptr) shifted.values += token * product.rows;
    return shifted;
  }

  cuda::Product product;

 private:
  DeviceBuffer<float> partials_;
  DeviceBuffer<std::uint8_t> splits_;
  DeviceBuffer<std::uint16_t> values_, bias_;
};

inline constexpr cuda::Layout kLayouts[] = {cuda::Layout::Rows, cuda::Layout::Mma, cuda::Layout::Wgmma};

// Activations on the device for `tokens` tokens of `width` values.
class DeviceActivations {
 public:
  DeviceActivations(cuda::Layout layout, int tokens, int width)
      : tokens_(tokens), width_(width), columns_(columns_for(tokens)), buffer_(size(layout)) {
    activations = {buffer_.data(), layout, columns_, width + 16};
  }

  // [token][padded width]: in an image the padding up to whole groups of 32, in rows what lies behind up to the stride.
  std::vector<std::vector<std::uint16_t>> to_host() const {
    const std::vector<std::uint16_t> image = buffer_.to_host();
    std::vector<std::vector<std::uint16_t>> tokens(static_cast<std::size_t>(tokens_));
    for (int n = 0; n < tokens_; ++n)
      for (int k = 0; k < padded_width(); ++k)
        tokens[static_cast<std::size_t>(n)].push_back(image[static_cast<std::size_t>(place(n, k))]);
    return tokens;
  }
  int padded_width() const { return activations.layout == cuda::Layout::Rows ? width_ + 16 : (width_ + 31) / 32 * 32; }
  // What the padding holds when nobody (Rows) or everybody (images) wrote it.
  std::uint16_t padding() const { return activations.layout == cuda::Layout::Rows ? 0xCDCD : 0; }

  cuda::Activations activations;

 private:
  static int columns_for(int tokens) {
    int columns = 8;
    while (columns < tokens) columns *= 2;
    return columns;
  }
  std::size_t size(cuda::Layout layout) const {
    return layout == cuda::Layout::Rows ? static_cast<std::size_t>(tokens_) * static_cast<std::size_t>(width_ + 16)
                                        : static_cast<std::size_t>((width_ + 31) / 32 * 32 * columns_);
  }
  // The element of the image that holds activation k of column n.
  int place(int n, int k) const {
    const int group = k / 32, quad = k % 32 / 8, in_lane = k % 8;
    if (activations.layout == cuda::Layout::Rows) return n * (width_ + 16) + k;
    if (activations.layout == cuda::Layout::Mma)
      return ((group * (columns_ / 8) + n / 8) * 32 + n % 8 * 4 + quad) * 8 + in_lane;
    const int step = in_lane / 4, half = in_lane % 4 / 2, slot = 2 * quad + in_lane % 2;
    return (((group * 2 + step) * 2 + half) * (columns_ / 8) + n / 8) * 64 + n % 8 * 8 + slot;
  }

  int tokens_, width_, columns_;
  DeviceBuffer<std::uint16_t> buffer_;
};

// `x` moved by `steps` floats.
inline float neighbour(float x, int steps) {
  for (; steps > 0; --steps) x = std::nextafter(x, std::numeric_limits<float>::infinity());
  for (; steps < 0; ++steps) x = std::nextafter(x, -std::numeric_limits<float>::infinity());
  return x;
}

}  // namespace glyd::test
