#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/text.h"
#include "text/unicode_classes.h"

namespace glyd::text {
namespace {

int combining_class(char32_t cp) { return utf8proc_get_property(static_cast<utf8proc_int32_t>(cp))->combining_class; }

// NFC of `s`. Decomposition and composition are utf8proc's; its own ordering of marks takes quadratic time, so they are
// sorted here.
std::string compose(std::string_view s) {
  std::vector<utf8proc_int32_t> points;
  for (std::size_t at = 0; at < s.size();) {
    const CodePoint c = decode_at(s, at);
    std::array<utf8proc_int32_t, 16> parts{};  // a canonical decomposition has at most 4
    int boundary = 0;
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.value), parts.data(), parts.size(),
                                               UTF8PROC_DECOMPOSE, &boundary);
    points.insert(points.end(), parts.begin(), parts.begin() + count);
    at += c.length;
  }
  auto class_of = [](utf8proc_int32_t cp) { return combining_class(static_cast<char32_t>(cp)); };
  for (auto begin = points.begin(); begin != points.end();) {
    if (class_of(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, points.end(), [&](utf8proc_int32_t cp) { return class_of(cp) == 0; });
    std::stable_sort(begin, end, [&](auto a, auto b) { return class_of(a) < class_of(b); });
    begin = end;
  }
  const auto count = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                                              static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  std::string out;
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    append_utf8(out, static_cast<char32_t>(points[static_cast<std::size_t>(i)]));
  }
  return out;
}

}  // namespace

NfcText::NfcText(std::string_view input) : input_(input) {
  const UnicodeClasses& classes = UnicodeClasses::get();
  std::size_t copied = 0;   // input before this is in changed_
  std::size_t starter = 0;  // the last character that nothing before it can change
  for (std::size_t at = 0; at < input.size();) {
    if (static_cast<unsigned char>(input[at]) < 0x80) {
      starter = at++;
      continue;
    }
    CodePoint c = decode_at(input, at);
    if (classes[c.value] & kNfcStarter) {
      starter = at;
      at += c.length;
      continue;
    }
    // From that starter to the next one is rewritten as a unit, unless the quick check already answers.
    bool normal = true;
    int previous = 0;
    while (at < input.size()) {
      c = decode_at(input, at);
      const std::uint8_t flags = classes[c.value];
      if (flags & kNfcStarter) break;
      const int mark = combining_class(c.value);
      normal = normal && (flags & kNfcYes) && !(mark != 0 && mark < previous);
      previous = mark;
      at += c.length;
    }
    if (normal) continue;
    const std::string_view before = input.substr(starter, at - starter);
    const std::string after = compose(before);
    if (after == before) continue;
    changed_.append(input.substr(copied, starter - copied));
    changes_.push_back({{starter, at}, {changed_.size(), changed_.size() + after.size()}});
    changed_ += after;
    copied = at;
  }
  if (!changes_.empty()) changed_.append(input.substr(copied));
}

Range NfcText::to_normalized(Range range) const {
  auto place = [&](std::size_t at, bool is_end) {
    // The last change that begins before `at` (or at it, for the beginning of a range).
    const auto next = std::partition_point(changes_.begin(), changes_.end(), [&](const Change& change) {
      return is_end ? change.before.begin < at : change.before.begin <= at;
    });
    if (next == changes_.begin()) return at;
    const Change& change = *(next - 1);
    if (at < change.before.end) return is_end ? change.after.end : change.after.begin;
    return change.after.end + (at - change.before.end);
  };
  return {place(range.begin, false), place(range.end, true)};
}

}  // namespace glyd::text
