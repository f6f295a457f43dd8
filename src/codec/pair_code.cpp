#include "codec/pair_code.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace glyd::codec {
namespace {

constexpr std::size_t kLengthCounts = kMaxCodeBits + 1;  // lengths 0..kMaxCodeBits

void check_pairs(const std::vector<CodedPair>& pairs, std::string_view what) {
  if (pairs.empty()) fail(Code::Model, "{}: the code has no pairs; the file is damaged", what);
  std::vector<bool> seen(1 << 16);
  std::uint64_t space = 0;  // in units of 2^-kMaxCodeBits
  for (const CodedPair& p : pairs) {
    if (p.length > kMaxCodeBits) {
      fail(Code::Model, "{}: a code word of {} bits; at most {} are allowed", what, p.length, kMaxCodeBits);
    }
    if (p.first == 255 || p.second == 255) {
      fail(Code::Model, "{}: the code holds exponent 255, which only exceptions may have; the file is damaged", what);
    }
    if (seen[p.value()])
      fail(Code::Model, "{}: the pair {},{} is coded twice; the file is damaged", what, p.first, p.second);
    seen[p.value()] = true;
    space += std::uint64_t{1} << (kMaxCodeBits - p.length);
  }
  if (space != std::uint64_t{1} << kMaxCodeBits) {
    fail(Code::Model, "{}: the code lengths fill {}/{} of the code space and not all of it; the file is damaged", what,
         space, 1 << kMaxCodeBits);
  }
}

}  // namespace

PairCode::PairCode(std::vector<CodedPair> pairs, std::string_view what) : pairs_(std::move(pairs)) {
  check_pairs(pairs_, what);
  std::sort(pairs_.begin(), pairs_.end(), [](const CodedPair& a, const CodedPair& b) {
    return a.length != b.length ? a.length < b.length : a.value() < b.value();
  });
  std::uint32_t next = 0;
  int length = 0;
  for (const CodedPair& p : pairs_) {
    next <<= p.length - length;
    length = p.length;
    words_.push_back(mirror_bits(next++, length));
  }
}

std::vector<std::uint32_t> PairCode::decode_table(int index_bits) const {
  if (index_bits < bits() || index_bits > kMaxCodeBits) {
    fail(Code::Runtime, "a table of {} bits for a code of {}", index_bits, bits());
  }
  std::vector<std::uint32_t> table(std::size_t{1} << index_bits);
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    const CodedPair& p = pairs_[i];
    const std::uint32_t entry =
        static_cast<std::uint32_t>(p.first) << 7 | static_cast<std::uint32_t>(p.second) << 23 | p.length;
    for (std::size_t x = words_[i]; x < table.size(); x += std::size_t{1} << p.length) table[x] = entry;
  }
  return table;
}

std::vector<std::uint8_t> PairCode::serialize() const {
  std::vector<std::uint8_t> out(2 * kLengthCounts);
  for (const CodedPair& p : pairs_) {
    std::uint8_t* count = &out[2u * p.length];
    if (++count[0] == 0) ++count[1];
  }
  for (const CodedPair& p : pairs_) {
    out.push_back(p.first);
    out.push_back(p.second);
  }
  return out;
}

PairCode PairCode::parse(std::span<const std::uint8_t> bytes, std::string_view what) {
  const auto check = [&](bool good) {
    if (!good) {
      fail(Code::Model, "{}: the code's {} bytes are not the pairs that it counts, in order; the file is damaged", what,
           bytes.size());
    }
  };
  check(bytes.size() >= 2 * kLengthCounts);
  std::vector<CodedPair> pairs;
  std::span<const std::uint8_t> rest = bytes.subspan(2 * kLengthCounts);
  for (std::size_t length = 0; length < kLengthCounts; ++length) {
    const std::size_t count = bytes[2 * length] | static_cast<std::size_t>(bytes[2 * length + 1]) << 8;
    check(2 * count <= rest.size());
    for (std::size_t i = 0; i < count; ++i) {
      pairs.push_back({rest[2 * i], rest[2 * i + 1], static_cast<std::uint8_t>(length)});
      check(i == 0 || pairs[pairs.size() - 2].value() < pairs.back().value());
    }
    rest = rest.subspan(2 * count);
  }
  check(rest.empty());
  return PairCode(std::move(pairs), what);
}

}  // namespace glyd::codec
