#pragma once
// How an encoder writes a pair: a code word, and which of the two weights become exceptions. Device code includes this
// file.

#include <cstdint>

namespace glyd::codec {

// Bits 0-11 of an entry are the word, first bit lowest; 12-23 the same mirrored; 24-27 its length; then the flags.
inline constexpr std::uint32_t kFirstIsException = 1u << 28, kSecondIsException = 1u << 29, kNotCoded = 1u << 30;
inline constexpr std::uint32_t kNeedsCare = kFirstIsException | kSecondIsException | kNotCoded;

constexpr std::uint32_t word_of(std::uint32_t entry) { return entry & 0xFFF; }
constexpr std::uint32_t mirrored_word_of(std::uint32_t entry) { return entry >> 12 & 0xFFF; }
constexpr std::uint32_t length_of(std::uint32_t entry) { return entry >> 24 & 15; }

}  // namespace glyd::codec
