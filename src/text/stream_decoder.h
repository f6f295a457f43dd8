#pragma once
// Token ids to text, a token at a time, never half a character and never part of a stop string.

#include <span>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace glyd::text {

// The concatenation of all push() results and finish() equals Tokenizer::decode of the ids, up to the stop string.
// Where several stop strings occur, the one that is complete first ends the text (of those that end together, the
// longest): what comes out does not depend on how the text is cut into tokens.
class StreamDecoder {
 public:
  // `tokenizer` must outlive this. Throws Error(Usage) for a stop string that is empty or not UTF-8.
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special, const std::vector<std::string>& stop_strings = {});

  // The text that became certain with this token. Empty while a character is incomplete or a stop string may be
  // beginning. Held back are at most 3 bytes of a character, and the longest end of the text that begins a stop string.
  std::string push(TokenId id);

  // The rest: incomplete characters become U+FFFD. Nothing after a stop.
  std::string finish();

  bool stopped() const { return stopped_; }  // a stop string was met; it and what follows is never emitted

 private:
  // A stop string and how much of it the end of the text matches (Knuth-Morris-Pratt).
  struct Stop {
    std::string text;
    std::vector<std::size_t> border;  // border[i]: the longest proper prefix of text that ends text[0, i]
    std::size_t matched = 0;
    void advance(char byte);
  };

  std::string release(const std::string& text);

  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::vector<Stop> stops_;
  std::string bytes_;  // an incomplete character
  std::string held_;   // valid text that may begin a stop string
  bool stopped_ = false;
};

}  // namespace glyd::text
