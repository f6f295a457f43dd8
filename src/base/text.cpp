#include "base/text.h"

#include <fmt/format.h>

namespace glyd {
namespace {

struct Decoded {
  char32_t cp = 0;
  std::size_t length = 0;  // bytes of the character, or of the maximal malformed subpart
  bool ok = false;
};

// Decodes the first character of a non-empty `s`; the ranges are those of Unicode table 3-7.
Decoded decode_one(std::string_view s) {
  auto at = [&](std::size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned lead = at(0);
  if (lead < 0x80) return {lead, 1, true};
  unsigned low = 0x80, high = 0xBF, more = 0;
  if (lead >= 0xC2 && lead <= 0xDF)
    more = 1;
  else if (lead >= 0xE0 && lead <= 0xEF)
    more = 2;
  else if (lead >= 0xF0 && lead <= 0xF4)
    more = 3;
  else
    return {0, 1, false};
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  char32_t cp = lead & (0x3Fu >> more);
  for (unsigned i = 1; i <= more; ++i) {
    if (i >= s.size() || at(i) < low || at(i) > high) return {0, i, false};
    cp = (cp << 6) | (at(i) & 0x3Fu);
    low = 0x80, high = 0xBF;
  }
  return {cp, more + 1, true};
}

bool is_unprintable(char32_t cp) {
  return cp < 0x20 || (cp >= 0x7F && cp < 0xA0) || cp == 0x2028 || cp == 0x2029 || cp == 0x061C ||
         (cp >= 0x200B && cp <= 0x200F) || (cp >= 0x202A && cp <= 0x202E) || (cp >= 0x2066 && cp <= 0x2069) ||
         cp == 0xFEFF;
}

}  // namespace

std::size_t valid_utf8_prefix(std::string_view s) {
  std::size_t i = 0;
  while (i < s.size()) {
    if (static_cast<unsigned char>(s[i]) < 0x80) {
      ++i;
      continue;
    }
    const Decoded d = decode_one(s.substr(i));
    if (!d.ok) break;
    i += d.length;
  }
  return i;
}

std::string utf8_fault(std::string_view s) {
  const std::size_t good = valid_utf8_prefix(s);
  if (good == s.size()) return "";
  return fmt::format(" is not UTF-8: byte {} is 0x{:02x}", good, static_cast<unsigned char>(s[good]));
}

void append_utf8(std::string& out, char32_t cp) {
  auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (cp < 0x80) {
    put(cp);
  } else if (cp < 0x800) {
    put(0xC0 | (cp >> 6)), put(0x80 | (cp & 0x3F));
  } else if (cp < 0x10000) {
    put(0xE0 | (cp >> 12)), put(0x80 | ((cp >> 6) & 0x3F)), put(0x80 | (cp & 0x3F));
  } else {
    put(0xF0 | (cp >> 18)), put(0x80 | ((cp >> 12) & 0x3F)), put(0x80 | ((cp >> 6) & 0x3F)), put(0x80 | (cp & 0x3F));
  }
}

std::string to_valid_utf8(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  while (!s.empty()) {
    const std::size_t good = valid_utf8_prefix(s);
    out.append(s.substr(0, good));
    s.remove_prefix(good);
    if (s.empty()) break;
    out.append("\xEF\xBF\xBD");
    s.remove_prefix(decode_one(s).length);
  }
  return out;
}

std::string printable(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  while (!s.empty()) {
    const Decoded d = decode_one(s);
    if (!d.ok) {
      for (std::size_t i = 0; i < d.length; ++i) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(s[i]));
    } else if (d.cp == '\n') {
      out += "\\n";
    } else if (d.cp == '\r') {
      out += "\\r";
    } else if (d.cp == '\t') {
      out += "\\t";
    } else if (is_unprintable(d.cp)) {
      out += d.cp < 0x80 ? fmt::format("\\x{:02x}", static_cast<unsigned>(d.cp))
                         : fmt::format("\\u{{{:x}}}", static_cast<unsigned>(d.cp));
    } else {
      out.append(s.substr(0, d.length));
    }
    s.remove_prefix(d.length);
  }
  return out;
}

std::string quote(std::string_view s, std::size_t max_bytes) {
  if (s.size() <= max_bytes) return "'" + printable(s) + "'";
  // Cut on character borders where there are any; printable() shows what is left of a cut one.
  auto is_inside = [&](std::size_t i) { return (static_cast<unsigned char>(s[i]) & 0xC0) == 0x80; };
  std::size_t head = max_bytes / 2, tail = s.size() - max_bytes / 2;
  for (int i = 0; i < 3 && head > 0 && is_inside(head); ++i) --head;
  for (int i = 0; i < 3 && tail < s.size() && is_inside(tail); ++i) ++tail;
  return fmt::format("'{}...{}' ({} bytes)", printable(s.substr(0, head)), printable(s.substr(tail)), s.size());
}

}  // namespace glyd
