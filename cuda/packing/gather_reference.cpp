#include "cuda/packing/gather_reference.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "codec/pair_code.h"

namespace glyd::cuda {
namespace {

std::uint32_t word_at(const std::uint8_t* p) {
  std::uint32_t w;
  std::memcpy(&w, p, sizeof(w));
  return w;
}

// Where leaps are follows from LeapFinder here too: that it is right is for the tests of the products to show, which
// use them. A unit's leaps, as sets of lanes: [group][0: row g, 1: row g + 8]. Bits around the unit's read as zeros.
std::vector<std::array<std::uint32_t, 2>> find_leaps(const std::vector<std::uint32_t>& table,
                                                     const codec::UnitHeader& h, const std::uint8_t* unit,
                                                     std::uint32_t groups) {
  const std::uint8_t *starts = unit + 4, *bits = unit + codec::bits_offset(h);
  const auto bit = [&](std::int64_t i) {
    return i >= 0 && i < 32 * static_cast<std::int64_t>(h.words) ? bits[i / 8] >> i % 8 & 1u : 0u;
  };
  std::vector<std::array<std::uint32_t, 2>> leaps(groups, {0, 0});
  for (std::uint32_t lane = 0; lane < codec::kLanes; ++lane) {
    const std::uint32_t start = h.wide ? starts[2 * lane] | std::uint32_t{starts[2 * lane + 1]} << 8
                                       : h.words * lane + h.words / 2 + starts[lane] - codec::kStartBias;
    for (const std::uint32_t lower : {0u, 1u}) {
      LeapFinder finder(start, lower != 0);
      std::int64_t at = start;
      for (std::uint32_t group = 0; group < groups; ++group) {
        std::uint32_t taken = 0;
        for (int pair = 0; pair < 4; ++pair) {
          std::uint32_t index = 0;
          for (int i = 0; i < codec::kCodeBits; ++i) index |= bit(lower != 0 ? at - 1 - i : at + i) << i;
          const std::uint32_t length = table[index] & 31;
          at += lower != 0 ? -static_cast<std::int64_t>(length) : static_cast<std::int64_t>(length);
          taken += length;
        }
        finder.add(taken);
        leaps[group][lower] |= (finder.leaps() >> group & 1) << lane;
      }
    }
  }
  return leaps;
}

// A unit's list of exceptions and leaps, in its order.
std::vector<std::uint32_t> resident_list(const std::vector<std::uint32_t>& table, const codec::UnitHeader& h,
                                         const std::uint8_t* unit, std::uint32_t groups) {
  const auto leaps = find_leaps(table, h, unit, groups);
  std::vector<std::uint32_t> out;
  std::uint32_t e = 0;
  for (std::uint32_t group = 0; group < groups; ++group) {
    const std::size_t first = out.size();
    for (; e < h.exceptions; ++e) {
      const std::uint32_t entry = word_at(unit + codec::exceptions_offset(h) + 4 * e);
      if (entry >> 25 != group) break;
      out.push_back(resident_exception(entry >> 16, entry & 0xFFFF, false, true));
    }
    for (const std::uint32_t lower : {0u, 1u})
      for (std::uint32_t lane = 0; lane < codec::kLanes; ++lane)
        if ((leaps[group][lower] >> lane & 1) != 0) out.push_back(resident_leap(group, lane, lower != 0, false));
    if (out.size() > first && (out.back() & kResidentLeap) == 0) out.back() &= ~kResidentGoesOn;
  }
  if (!out.empty()) out.back() |= kResidentLast;
  return out;
}

}  // namespace

HostResident gather_reference(std::span<const std::byte> packed) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(packed.data());
  codec::PackedHeader header;
  std::memcpy(&header, bytes, sizeof(header));
  const codec::UnitGrid grid{header.rows, header.cols};
  const codec::SectionOffsets at = codec::section_offsets(grid, header.code_bytes, header.stream_bytes);

  HostResident out;
  out.rows = static_cast<std::int64_t>(grid.rows);
  out.cols = static_cast<std::int64_t>(grid.cols);
  out.table = codec::PairCode::parse({bytes + at.code, header.code_bytes}, "matrix").decode_table(codec::kCodeBits);

  const std::uint64_t tiles = grid.row_tiles(), groups = grid.groups(), blocks = grid.col_blocks();
  const std::uint64_t row_groups = (tiles + kGroupTiles - 1) / kGroupTiles;
  ResidentMatrix shape;
  shape.rows = out.rows;
  shape.cols = out.cols;
  out.sign_mantissa.assign(static_cast<std::size_t>(shape.sign_mantissa_bytes()), 0);
  std::vector<std::vector<const std::uint8_t*>> units(tiles);
  const std::uint8_t* unit = bytes + at.streams;
  for (std::uint64_t tile = 0; tile < tiles; ++tile) {
    for (std::uint64_t g = 0; g < groups; ++g) {
      std::uint8_t* to = out.sign_mantissa.data() + shape.slab_offset(0, tile / kGroupTiles, g) +
                         tile % kGroupTiles * codec::kGroupBytes;
      const std::uint8_t* from = bytes + at.sign_mantissa + (tile * groups + g) * codec::kGroupBytes;
      for (std::uint32_t i = 0; i < codec::kGroupBytes; i += 4) {
        const std::uint32_t word = weave(word_at(from + i));
        std::memcpy(to + i, &word, sizeof(word));
      }
    }
    for (std::uint64_t block = 0; block < blocks; ++block) {
      units[tile].push_back(unit);
      unit += codec::unit_bytes(codec::decode_unit_header(word_at(unit)));
    }
  }
  for (std::uint64_t group = 0; group < row_groups; ++group) {
    for (std::uint64_t block = 0; block < blocks; ++block) {
      const std::size_t begin = out.streams.size();
      out.block_offsets.push_back(static_cast<std::uint32_t>(begin / 16));
      out.streams.resize(begin + kBlockHeaderBytes, 0);
      for (std::uint64_t i = 0; i < kGroupTiles; ++i) {
        if (group * kGroupTiles + i >= tiles) {
          std::memcpy(out.streams.data() + begin + 4 * i, out.streams.data() + begin, 4);
          continue;
        }
        const std::uint8_t* from = units[group * kGroupTiles + i][block];
        const codec::UnitHeader h = codec::decode_unit_header(word_at(from));
        const std::vector<std::uint32_t> list = resident_list(out.table, h, from, grid.block_groups(block));
        for (std::size_t e = list.size(); e-- > 0;) {
          const auto* p = reinterpret_cast<const std::uint8_t*>(&list[e]);
          out.streams.insert(out.streams.end(), p, p + 4);
        }
        const auto place = static_cast<std::uint32_t>((out.streams.size() - begin) / 4);
        const std::uint32_t word = encode_tile_word({place, h.words, h.wide, !list.empty()});
        std::memcpy(out.streams.data() + begin + 4 * i, &word, sizeof(word));
        out.streams.insert(out.streams.end(), from + 4, from + codec::exceptions_offset(h));
        out.streams.insert(out.streams.end(), from + codec::bits_offset(h), from + codec::unit_bytes(h));
      }
      const auto words = static_cast<std::uint32_t>((out.streams.size() - begin - kBlockHeaderBytes) / 4);
      const bool last = group + 1 == row_groups && block + 1 == blocks;
      out.streams.resize(begin + 4 * resident_block_words(words, last), 0);
      out.max_block_bytes = std::max(out.max_block_bytes, static_cast<std::uint32_t>(out.streams.size() - begin));
    }
  }
  out.block_offsets.push_back(static_cast<std::uint32_t>(out.streams.size() / 16));
  return out;
}

}  // namespace glyd::cuda
