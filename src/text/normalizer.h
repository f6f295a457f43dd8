#pragma once
// Unicode normalisation form C. Text that is in NFC already, ASCII above all, is only looked at.

#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace glyd::text {

// `input` (well-formed UTF-8) in NFC. Time n log n at worst: a run of marks is sorted, whatever its length.
class NfcText {
 public:
  explicit NfcText(std::string_view input);
  NfcText(const NfcText&) = delete;  // text() may point into this object
  NfcText& operator=(const NfcText&) = delete;

  // The normalised text: `input` itself where nothing changed.
  std::string_view text() const { return changes_.empty() ? input_ : std::string_view(changed_); }

  // Where the bytes [begin, end) of the input went. A stretch that NFC rewrote counts as a whole.
  Range to_normalized(Range range) const;

 private:
  struct Change {
    Range before, after;
  };
  std::string_view input_;
  std::string changed_;
  std::vector<Change> changes_;
};

}  // namespace glyd::text
