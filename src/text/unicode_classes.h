#pragma once
// What the tokenizer asks about a code point, one byte each, from utf8proc's tables (Unicode 15).

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace glyd::text {

enum CharClass : std::uint8_t {
  kLetter = 1,      // general category L*
  kNumber = 2,      // N*
  kMark = 4,        // M*
  kSpace = 8,       // the property White_Space: not U+001C-001F, 180E, 200B or FEFF
  kNewline = 16,    // U+000A and U+000D only; these are kSpace too
  kNfcYes = 32,     // NFC quick check: stays as it is wherever its marks are in canonical order
  kNfcStarter = 64  // kNfcYes and combining class 0: never joined to what comes before it
};

// Lookup in two stages: a block number for each 256 code points, and the different blocks.
class UnicodeClasses {
 public:
  static const UnicodeClasses& get();  // built when first used, in a few milliseconds

  std::uint8_t operator[](char32_t cp) const { return blocks_[block_of_[cp >> 8]][cp & 0xFF]; }
  std::uint8_t ascii(unsigned char byte) const { return blocks_[0][byte]; }

 private:
  UnicodeClasses();
  using Block = std::array<std::uint8_t, 256>;
  std::array<std::uint16_t, 0x1100> block_of_{};
  std::vector<Block> blocks_;
};

struct CodePoint {
  char32_t value;
  unsigned length;  // bytes
};

// The code point at byte `at` of `text`, which is well-formed UTF-8; `at` is the beginning of a character.
inline CodePoint decode_at(std::string_view text, std::size_t at) {
  auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[at + i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {((lead & 0x1F) << 6) | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {((lead & 0x0F) << 12) | ((byte(1) & 0x3F) << 6) | (byte(2) & 0x3F), 3};
  return {((lead & 0x07) << 18) | ((byte(1) & 0x3F) << 12) | ((byte(2) & 0x3F) << 6) | (byte(3) & 0x3F), 4};
}

}  // namespace glyd::text
