#include "text/unicode_classes.h"

#include <utf8proc.h>

#include <map>
#include <unordered_set>

namespace glyd::text {
namespace {

constexpr char32_t kCodePoints = 0x110000;

bool is_white_space(char32_t cp) {
  return (cp >= 0x09 && cp <= 0x0D) || cp == 0x20 || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
         (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

std::uint8_t category_class(utf8proc_category_t category) {
  if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) return kLetter;
  if (category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME) return kMark;
  if (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO) return kNumber;
  return 0;
}

bool has_canonical_decomposition(const utf8proc_property_t& property) {
  return property.decomp_seqindex != UINT16_MAX && property.decomp_type == 0;
}

// The code points that may join with one before them (quick check "maybe": the last of what a composed character is
// made of, and the Hangul vowels and finals), and those that NFC always replaces ("no").
struct NfcExceptions {
  std::unordered_set<char32_t> maybe, no;
};

NfcExceptions find_nfc_exceptions() {
  NfcExceptions found;
  for (char32_t cp = 0x1161; cp <= 0x1175; ++cp) found.maybe.insert(cp);
  for (char32_t cp = 0x11A8; cp <= 0x11C2; ++cp) found.maybe.insert(cp);
  for (char32_t cp = 0; cp < kCodePoints; ++cp) {
    const auto code = static_cast<utf8proc_int32_t>(cp);
    if (!has_canonical_decomposition(*utf8proc_get_property(code))) continue;
    std::array<utf8proc_int32_t, 16> parts{};
    int boundary = 0;
    const auto count = utf8proc_decompose_char(code, parts.data(), parts.size(), UTF8PROC_DECOMPOSE, &boundary);
    const auto last = static_cast<char32_t>(parts[static_cast<std::size_t>(count) - 1]);
    const auto composed = utf8proc_normalize_utf32(parts.data(), count,
                                                   static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    if (composed == 1 && parts[0] == code) {
      found.maybe.insert(last);
    } else {
      found.no.insert(cp);
    }
  }
  return found;
}

}  // namespace

const UnicodeClasses& UnicodeClasses::get() {
  static const UnicodeClasses classes;
  return classes;
}

UnicodeClasses::UnicodeClasses() {
  const NfcExceptions nfc = find_nfc_exceptions();
  std::map<Block, std::uint16_t> seen;
  for (std::size_t number = 0; number < block_of_.size(); ++number) {
    Block block{};
    for (std::size_t i = 0; i < block.size(); ++i) {
      const auto cp = static_cast<char32_t>(number * block.size() + i);
      const utf8proc_property_t& property = *utf8proc_get_property(static_cast<utf8proc_int32_t>(cp));
      std::uint8_t flags = category_class(static_cast<utf8proc_category_t>(property.category));
      if (is_white_space(cp)) flags |= kSpace;
      if (cp == '\n' || cp == '\r') flags |= kNewline;
      if (!nfc.maybe.contains(cp) && !nfc.no.contains(cp)) {
        flags |= kNfcYes;
        if (property.combining_class == 0) flags |= kNfcStarter;
      }
      block[i] = flags;
    }
    const auto [entry, is_new] = seen.emplace(block, static_cast<std::uint16_t>(blocks_.size()));
    if (is_new) blocks_.push_back(block);
    block_of_[number] = entry->second;
  }
}

}  // namespace glyd::text
