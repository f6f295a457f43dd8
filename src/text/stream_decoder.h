#pragma once
// Token ids to text, a token at a time, never half a character and never part of a stop string.

#include <span>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace glyd::text {

// The concatenation of all push() results and finish() equals Tokenizer::decode of the ids, up to the stop string.
class StreamDecoder {
 public:
  // `tokenizer` must outlive this.
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special, std::vector<std::string> stop_strings = {});

  // The text that became certain with this token. Empty while a character is incomplete or a stop string may be beginning.
  std::string push(TokenId id);

  // The rest: incomplete characters become U+FFFD. Nothing after a stop.
  std::string finish();

  bool stopped() const { return stopped_; }  // a stop string was met; it and what follows is never emitted

 private:
  std::string release(bool at_end);

  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::vector<std::string> stop_strings_;
  std::string bytes_;    // an incomplete character
  std::string held_;     // valid text that may begin a stop string
  bool stopped_ = false;
};

}  // namespace glyd::text
