#include "runner/cuda/cache_sides.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>

#include "base/log.h"
#include "base/sizes.h"
#include "cuda/common/compare_ways.h"
#include "runner/cuda/check.h"

namespace glyd::runner {
namespace {

using cuda::kMaxProcessors;
using cuda::kPageBytes;
using cuda::kPairBytes;
using cuda::kParityPage;
using cuda::kQuadBytes;

constexpr const char* kWork = "finding the sides of the L2 cache";
constexpr std::uint64_t kMostPages = 4096;  // compared at once
constexpr std::int32_t kClearClocks = 60;   // near and far are further apart than this
// A product of such a matrix takes 14 us on an H200 (the model of docs/kernels.md). qwen3-32b, all of whose matrices
// are larger, gained 1.4 to 2.8 % in whole steps. qwen3-8b, of which two matrices a layer are, gains 3 to 5 % without a
// pause and nothing in bursts; with its smaller ones near as well it had lost 0.5 to 2 % (bench/results/products.md).
constexpr std::uint64_t kWorthIt = 32 << 20;
constexpr std::uint64_t kMeasured = 2 * std::uint64_t{kParityPage};

}  // namespace

CacheSides::CacheSides(int multiprocessors, cudaStream_t stream)
    : multiprocessors_(multiprocessors),
      memory_(kMeasured + kMostPages * (sizeof(std::uint64_t) + sizeof(std::int32_t)) +
              kMaxProcessors * sizeof(std::int32_t)) {
  if (multiprocessors > static_cast<int>(kMaxProcessors)) return;
  reference_ = round_up(reinterpret_cast<std::uint64_t>(memory_.get()), std::uint64_t{kParityPage});

  // Which bits of an address within 2 MB turn the sides round; then whether that explains all of the 2 MB.
  std::vector<std::uint64_t> pages;
  for (std::uint32_t bit = kPairBytes; bit < kParityPage; bit *= 2) pages.push_back(reference_ + bit);
  const std::optional<Comparison> bits = compare(pages, stream);
  if (!bits) return;
  cuda::PagePlaces within;
  within.mask = 0;
  for (std::size_t i = 0; i < pages.size(); ++i) within.mask |= bits->same[i] ? 0 : kPairBytes << i;
  // Places are what they are because bit 13 is among them and bit 14 is not.
  if ((within.mask & (kPairBytes | kQuadBytes)) != kPairBytes) return;
  pages.clear();
  for (std::uint32_t at = 0; at < kParityPage; at += kPairBytes) pages.push_back(reference_ + at);
  const std::optional<Comparison> all = compare(pages, stream);
  if (!all) return;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    if (all->same[i] == within.turned(pages[i])) {
      log::debug("the L2 cache is not divided as expected; pages go anywhere");
      return;
    }
  }
  for (std::size_t i = 0; i < all->differences.size(); ++i) {
    if (all->differences[i] == 0) continue;
    const std::size_t side = all->differences[i] > 0 ? 1 : 0;
    ++count_[side];
    sides_[i / 32] |= static_cast<std::uint32_t>(side) << i % 32;
  }
  // As many runs begin from either end as a side has multiprocessors, and about half should be near.
  if (count_[0] + count_[1] != multiprocessors || 4 * std::min(count_[0], count_[1]) < multiprocessors) return;
  mask_ = within.mask;
  log::debug("L2 cache: {} and {} multiprocessors on its sides; pages by the address bits {:#x}", count_[0], count_[1],
             mask_ | kPageBytes);
}

std::optional<CacheSides::Comparison> CacheSides::compare(const std::vector<std::uint64_t>& pages,
                                                          cudaStream_t stream) const {
  if (pages.size() > kMostPages) return std::nullopt;
  auto* const addresses = reinterpret_cast<std::uint64_t*>(static_cast<std::uint8_t*>(memory_.get()) + kMeasured);
  auto* const nearer = reinterpret_cast<std::int32_t*>(addresses + kMostPages);
  auto* const differences = nearer + kMostPages;
  std::vector<std::int32_t> clocks(pages.size());
  Comparison found{std::vector<bool>(pages.size()), std::vector<std::int32_t>(kMaxProcessors)};
  const auto to_host = [&](std::vector<std::int32_t>& to, const std::int32_t* from) {
    check(cudaMemcpyAsync(to.data(), from, to.size() * sizeof(to[0]), cudaMemcpyDeviceToHost, stream), kWork);
  };
  check(cudaMemcpyAsync(addresses, pages.data(), pages.size() * sizeof(pages[0]), cudaMemcpyHostToDevice, stream),
        kWork);
  check(cuda::compare_ways(reference_, addresses, static_cast<int>(pages.size()), nearer, differences, multiprocessors_,
                           stream),
        kWork);
  to_host(clocks, nearer);
  to_host(found.differences, differences);
  check(cudaStreamSynchronize(stream), kWork);
  for (const std::int32_t difference : found.differences)
    if (difference != 0 && std::abs(difference) < kClearClocks) return std::nullopt;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    if (std::abs(clocks[i]) < kClearClocks) return std::nullopt;
    found.same[i] = clocks[i] < 0;
  }
  return found;
}

bool CacheSides::is_worth_it(const cuda::ResidentMatrix& matrix) {
  return unsigned_of(matrix.sign_mantissa_bytes()) >= kWorthIt;
}

bool CacheSides::fits(const cuda::ResidentMatrix& matrix) {
  // A block's pairs are to lie within 2 MB, and the bits of a row, and of the matrix, to be there.
  constexpr std::uint64_t kWord = std::uint64_t{32} * kParityPage;
  const std::uint64_t bytes = unsigned_of(matrix.sign_mantissa_bytes());
  return bytes >= kParityPage && matrix.row_pages() % 4 == 0 && bytes <= (cuda::PagePlaces::kOddWords - 1) * kWord &&
         unsigned_of(matrix.row_pages()) * kPairBytes <= kWord - 2 * std::uint64_t{kParityPage};
}

std::optional<cuda::PagePlaces> CacheSides::places(const cuda::ResidentMatrix& matrix, cudaStream_t stream) const {
  const auto begin = reinterpret_cast<std::uint64_t>(matrix.sign_mantissa);
  const std::uint64_t bytes = unsigned_of(matrix.sign_mantissa_bytes());
  if (!known() || !is_worth_it(matrix) || !fits(matrix)) return std::nullopt;
  cuda::PagePlaces places;
  places.first = static_cast<std::uint32_t>(begin >> 26);
  places.mask = mask_;
  std::copy(sides_.begin(), sides_.end(), places.sides);
  std::vector<std::uint64_t> pages;
  for (std::uint64_t at = begin; at < begin + bytes; at = (at / kParityPage + 1) * kParityPage) pages.push_back(at);
  const std::optional<Comparison> found = compare(pages, stream);
  if (!found) return std::nullopt;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    if (found->same[i] == places.turned(pages[i]))
      places.odd[(pages[i] >> 26) - places.first] |= 1u << (pages[i] >> 21 & 31);
  }
  return places;
}

}  // namespace glyd::runner
