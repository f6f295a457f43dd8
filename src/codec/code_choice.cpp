#include "codec/code_choice.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace glyd::codec {
namespace {

constexpr std::uint32_t kPairs = 1 << 16;
constexpr std::uint32_t kNonFinite = 255;  // exponent of infinities and NaNs: never coded
// What the choice counts for an exception: its list entry, and a quarter more for the time that a kernel spends on it.
constexpr std::uint64_t kExceptionCost = kExceptionBits * 5 / 4;

constexpr std::uint32_t first_of(std::uint32_t pair) { return pair >> 8; }
constexpr std::uint32_t second_of(std::uint32_t pair) { return pair & 255; }
constexpr bool codeable(std::uint32_t pair) { return first_of(pair) != kNonFinite && second_of(pair) != kNonFinite; }

struct Frequency {
  std::uint32_t pair;
  std::uint64_t count;
};

// How a pair may be written: as itself, or with either or both weights zeroed and listed as exceptions. A weight of
// exponent 0 never has to be one.
struct Way {
  std::uint32_t pair, exception_flags;
  std::uint32_t exceptions() const { return (exception_flags >> 28 & 1) + (exception_flags >> 29 & 1); }
};
static_assert(kFirstIsException == 1u << 28 && kSecondIsException == 1u << 29);
std::array<Way, 4> ways_to_write(std::uint32_t pair) {
  const std::uint32_t first = first_of(pair) == 0 ? 0 : kFirstIsException;
  const std::uint32_t second = second_of(pair) == 0 ? 0 : kSecondIsException;
  return {Way{pair, 0}, Way{pair & 0xFF00, second}, Way{pair & 0x00FF, first}, Way{0, first | second}};
}

// The pairs of a code under construction.
class Candidate {
 public:
  void clear() {
    for (const std::uint32_t pair : pairs_) slots_[pair] = 0;
    pairs_.clear();
  }
  std::size_t size() const { return pairs_.size(); }
  bool has(std::uint32_t pair) const { return slots_[pair] != 0; }
  void insert(std::uint32_t pair) {
    if (has(pair)) return;
    pairs_.push_back(pair);
    slots_[pair] = static_cast<std::uint16_t>(pairs_.size());
  }
  // The coded pair that `pair` is written as, before lengths are known: the first way there is.
  std::uint32_t stand_in(std::uint32_t pair) const {
    for (const Way& way : ways_to_write(pair)) {
      if (has(way.pair)) return way.pair;
    }
    return 0;
  }

  // Gives every pair its length for these frequencies. Ties in frequency go by the pair's value.
  void assign_lengths(std::span<const Frequency> all, int max_bits) {
    std::vector<std::uint64_t> weights(size());
    for (const Frequency& f : all) weights[slots_[stand_in(f.pair)] - 1u] += f.count;
    std::vector<std::size_t> order(size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return weights[a] != weights[b] ? weights[a] < weights[b] : pairs_[a] < pairs_[b];
    });
    std::vector<std::uint64_t> sorted(size());
    for (std::size_t i = 0; i < size(); ++i) sorted[i] = weights[order[i]];
    const std::vector<std::uint8_t> lengths = limited_lengths(sorted, max_bits);
    lengths_.resize(size());
    for (std::size_t i = 0; i < size(); ++i) lengths_[order[i]] = lengths[i];
  }

  // Bits of streams, table and exceptions, these at the price that the choice counts.
  std::uint64_t cost(std::span<const Frequency> all) const {
    std::uint64_t sum = 16 * size();
    for (const Frequency& f : all) {
      std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
      for (const Way& way : ways_to_write(f.pair)) {
        if (!has(way.pair)) continue;
        least = std::min(least, lengths_[slots_[way.pair] - 1u] + way.exceptions() * kExceptionCost);
      }
      sum += f.count * least;
    }
    return sum;
  }

  std::vector<CodedPair> coded_pairs() const {
    std::vector<CodedPair> coded;
    for (std::size_t i = 0; i < size(); ++i) {
      coded.push_back({static_cast<std::uint8_t>(first_of(pairs_[i])), static_cast<std::uint8_t>(second_of(pairs_[i])),
                       lengths_[i]});
    }
    return coded;
  }

 private:
  std::vector<std::uint32_t> pairs_;
  std::vector<std::uint8_t> lengths_;
  std::vector<std::uint16_t> slots_ = std::vector<std::uint16_t>(kPairs);  // place in pairs_ + 1; 0: not coded
};

// Adds pairs (a,0) and (0,b) that let one weight of many uncoded pairs stay in the stream. A word of the longest length
// takes 2^-max_bits of the code space and so lengthens every other word by 1.44 times that: a helper must save more.
void add_helpers(Candidate& code, std::span<const Frequency> rest, std::uint64_t total, int max_bits) {
  std::array<std::uint64_t, 512> gain{};  // [a]: of (a,0); [256 + b]: of (0,b)
  std::vector<Frequency> open;
  const auto count = [&](const Frequency& f, std::uint64_t sign) {
    gain[first_of(f.pair)] += sign * f.count;
    gain[256 + second_of(f.pair)] += sign * f.count;
  };
  for (const Frequency& f : rest) {
    if (f.pair == 0 || code.stand_in(f.pair) != 0) continue;
    open.push_back(f);
    count(f, 1);
  }
  const double threshold = 1.44 * static_cast<double>(total) / static_cast<double>(1u << max_bits);
  while (code.size() < (1u << max_bits)) {
    std::uint32_t best = 1;
    for (std::uint32_t i = 1; i < 512; ++i) {
      if (i != 256 && i % 256 != kNonFinite && gain[i] > gain[best]) best = i;
    }
    if (static_cast<double>(gain[best] * kExceptionCost) <= threshold) return;
    code.insert(best < 256 ? best << 8 : best - 256);
    std::erase_if(open, [&](const Frequency& f) {
      const bool covered = best < 256 ? first_of(f.pair) == best : second_of(f.pair) == best - 256;
      if (covered) count(f, ~std::uint64_t{0});
      return covered;
    });
  }
}

// Whether some last weight of an odd row has no coded pair to stand in.
bool strands_lone(const PairHistogram& histogram, const Candidate& code) {
  for (std::uint32_t a = 0; a < 256; ++a) {
    if (histogram.lone(a) == 0) continue;
    bool coded = false;
    for (std::uint32_t b = 0; b < 256 && !coded; ++b) coded = code.has(a << 8 | b);
    if (!coded) return true;
  }
  return false;
}

}  // namespace

PairHistogram::PairHistogram(std::span<const std::uint64_t> pairs, std::span<const std::uint64_t> lone)
    : pairs_(pairs.begin(), pairs.end()), lone_(lone.begin(), lone.end()) {
  if (pairs.size() != kPairs || lone.size() != 256)
    fail(Code::Runtime, "a histogram of {} pairs and {} exponents", pairs.size(), lone.size());
}

void PairHistogram::add_row(std::span<const Bf16> row) {
  const std::size_t even = row.size() / 2 * 2;
  for (std::size_t i = 0; i < even; i += 2) {
    std::uint32_t two;
    std::memcpy(&two, &row[i], sizeof(two));
    ++pairs_[(two << 1 & 0xFF00) | (two >> 23 & 0xFF)];
  }
  if (even < row.size()) ++lone_[row[even].bits >> 7 & 255];
}

void PairHistogram::add(const PairHistogram& other) {
  for (std::size_t i = 0; i < pairs_.size(); ++i) pairs_[i] += other.pairs_[i];
  for (std::size_t i = 0; i < lone_.size(); ++i) lone_[i] += other.lone_[i];
}

std::uint64_t PairHistogram::weights() const {
  return 2 * std::accumulate(pairs_.begin(), pairs_.end(), std::uint64_t{0}) +
         std::accumulate(lone_.begin(), lone_.end(), std::uint64_t{0});
}

double PairHistogram::entropy_bits() const {
  const auto total = static_cast<double>(std::accumulate(pairs_.begin(), pairs_.end(), std::uint64_t{0}));
  double bits = 0;
  for (const std::uint64_t count : pairs_) {
    if (count > 0) bits += static_cast<double>(count) * std::log2(total / static_cast<double>(count));
  }
  return bits;
}

std::vector<std::uint8_t> limited_lengths(std::span<const std::uint64_t> weights, int max_bits) {
  const std::size_t n = weights.size();
  if (n == 0 || max_bits < 0 || n > std::size_t{1} << max_bits) {
    fail(Code::Runtime, "{} symbols do not fit a code of {} bits", n, max_bits);
  }
  std::vector<std::uint8_t> lengths(n, 0);
  if (n == 1) return lengths;

  // Level by level from the deepest: the leaves merged with the packages (adjacent two) of the level before. Equal
  // weights: leaves first. Kept of every level: which of its items are packages. Both lists end with a weight that is
  // above all others, so that the merge, which takes either side by chance, needs no branches.
  constexpr std::uint64_t kEnd = std::numeric_limits<std::uint64_t>::max();
  std::vector<std::uint64_t> leaves(weights.begin(), weights.end());
  leaves.push_back(kEnd);
  std::vector<std::vector<std::uint8_t>> is_package;
  std::vector<std::uint64_t> items, packages;
  for (int level = 0; level < max_bits; ++level) {
    packages.clear();
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) packages.push_back(items[i] + items[i + 1]);
    items.resize(n + packages.size());
    packages.push_back(kEnd);
    std::vector<std::uint8_t>& kinds = is_package.emplace_back(items.size());
    for (std::size_t i = 0, leaf = 0, package = 0; i < items.size(); ++i) {
      const bool take_package = packages[package] < leaves[leaf];
      items[i] = std::min(packages[package], leaves[leaf]);
      kinds[i] = take_package;
      package += take_package;
      leaf += !take_package;
    }
  }

  // The cheapest 2 n - 2 items of the last level are taken, with all that their packages hold.
  std::size_t taken = 2 * n - 2;
  for (std::size_t level = is_package.size(); level-- > 0;) {
    const auto end = is_package[level].begin() + static_cast<std::ptrdiff_t>(taken);
    const auto package_count = static_cast<std::size_t>(std::count(is_package[level].begin(), end, 1));
    for (std::size_t leaf = 0; leaf < taken - package_count; ++leaf) ++lengths[leaf];
    taken = 2 * package_count;
  }
  return lengths;
}

PairCode choose_code(const PairHistogram& histogram, int max_bits) {
  if (max_bits < 1 || max_bits > kMaxCodeBits) {
    fail(Code::Usage, "a code of at most {} bits was asked for; 1 to {} are possible", max_bits, kMaxCodeBits);
  }
  std::vector<Frequency> all;
  std::uint64_t total = 0;
  for (std::uint32_t pair = 0; pair < kPairs; ++pair) {
    if (const std::uint64_t count = histogram.count(pair); count > 0) all.push_back({pair, count});
    total += histogram.count(pair);
  }
  // Most frequent first; pairs that cannot be coded last.
  std::stable_sort(all.begin(), all.end(), [](const Frequency& a, const Frequency& b) {
    return codeable(a.pair) != codeable(b.pair) ? codeable(a.pair) : a.count > b.count;
  });
  const auto codeable_count = static_cast<std::size_t>(
      std::count_if(all.begin(), all.end(), [](const Frequency& f) { return codeable(f.pair); }));

  std::vector<CodedPair> best;
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  std::size_t best_n = 0;
  Candidate code;  // used for all, since it is large
  const auto try_most_frequent = [&](std::size_t n) {
    code.clear();
    for (std::size_t i = 0; i < n; ++i) code.insert(all[i].pair);
    if (n == 0 || n < all.size() || strands_lone(histogram, code)) {
      code.insert(0);
      add_helpers(code, std::span(all).subspan(n), total, max_bits);
    }
    if (code.size() > std::size_t{1} << max_bits) return;
    code.assign_lengths(all, max_bits);
    if (const std::uint64_t cost = code.cost(all); cost < least) {
      least = cost;
      best_n = n;
      best = code.coded_pairs();
    }
  };
  // The cost has one broad valley: coarse steps find it, fine ones its bottom.
  constexpr std::size_t kCoarse = 16, kFine = 2;
  const std::size_t most = std::min(codeable_count, std::size_t{1} << max_bits);
  for (std::size_t n = 0; n <= most; n += n < kCoarse ? 1 : kCoarse) try_most_frequent(n);
  try_most_frequent(most);
  const std::size_t middle = best_n;
  const std::size_t end = std::min(most + 1, middle + kCoarse);
  for (std::size_t n = middle > kCoarse ? middle - kCoarse + kFine : 1; n < end; n += kFine) try_most_frequent(n);
  return PairCode(std::move(best));
}

PairEncoder::PairEncoder(const PairCode& code) : entries_(kPairs, kNotCoded) {
  std::vector<std::uint32_t> words(kPairs, kNotCoded);
  for (std::size_t i = 0; i < code.pairs().size(); ++i) {
    const CodedPair& p = code.pairs()[i];
    words[p.value()] =
        code.word(i) | mirror_bits(code.word(i), p.length) << 12 | static_cast<std::uint32_t>(p.length) << 24;
  }
  filler_pair_ = code.pairs().front().value();
  for (std::uint32_t pair = 0; pair < kPairs; ++pair) {
    std::uint32_t least = std::numeric_limits<std::uint32_t>::max();
    for (const Way& way : ways_to_write(pair)) {
      const std::uint32_t word = words[way.pair];
      if (word & kNotCoded) continue;
      if (const std::uint32_t cost = (word >> 24) + kExceptionBits * way.exceptions(); cost < least) {
        least = cost;
        entries_[pair] = word | way.exception_flags;
      }
    }
  }
  for (std::uint32_t a = 0; a < 256; ++a) {
    std::uint32_t least = std::numeric_limits<std::uint32_t>::max();
    for (std::uint32_t b = 0; b < 255; ++b) {
      const std::uint32_t e = entries_[a << 8 | b];
      if (e & (kSecondIsException | kNotCoded)) continue;
      if (const std::uint32_t cost = (e >> 24 & 15) + (e & kFirstIsException ? kExceptionBits : 0); cost < least) {
        least = cost;
        filler_after_[a] = static_cast<std::uint8_t>(b);
      }
    }
  }
}

PairEncoder::Cost PairEncoder::cost(const PairHistogram& histogram) const {
  Cost sum;
  const auto add = [&](std::uint32_t pair, std::uint64_t count) {
    const std::uint32_t e = entries_[pair];
    sum.stream_bits += count * (e >> 24 & 15);
    sum.exceptions += count * static_cast<unsigned>(std::popcount(e & (kFirstIsException | kSecondIsException)));
  };
  for (std::uint32_t pair = 0; pair < kPairs; ++pair) {
    if (const std::uint64_t count = histogram.count(pair); count > 0) add(pair, count);
  }
  for (std::uint32_t a = 0; a < 256; ++a) {
    if (histogram.lone(a) > 0) add(a << 8 | filler_after_[a], histogram.lone(a));
  }
  return sum;
}

}  // namespace glyd::codec
