#include "text/stream_decoder.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace glyd::text {
namespace {

// Bytes at the end of `s` that begin a character and can still become one: 0 to 3.
std::size_t incomplete_suffix(std::string_view s) {
  for (std::size_t length = 1; length <= std::min<std::size_t>(3, s.size()); ++length) {
    const std::string_view suffix = s.substr(s.size() - length);
    const auto lead = static_cast<unsigned char>(suffix[0]);
    if ((lead & 0xC0) == 0x80) continue;
    const std::size_t whole = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC2 ? 2 : 1;
    if (whole <= length) return 0;
    if (length == 1) return lead <= 0xF4 ? 1 : 0;
    // The second byte decides whether the sequence is allowed; those after it may be any continuation byte.
    return is_valid_utf8(std::string(suffix) + std::string(whole - length, '\x80')) ? length : 0;
  }
  return 0;
}

}  // namespace

void StreamDecoder::Stop::advance(char byte) {
  while (matched > 0 && text[matched] != byte) matched = border[matched - 1];
  if (text[matched] == byte) ++matched;
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special,
                             const std::vector<std::string>& stop_strings)
    : tokenizer_(tokenizer), skip_special_(skip_special) {
  for (const std::string& text : stop_strings) {
    if (text.empty() || !is_valid_utf8(text)) {
      fail(Code::Usage, "stop string {}: expected UTF-8 text that is not empty", quote(text));
    }
    // The borders come from matching the string against itself, one byte late.
    Stop stop{text, std::vector<std::size_t>(text.size(), 0)};
    for (std::size_t i = 1; i < text.size(); ++i) {
      stop.advance(text[i]);
      stop.border[i] = stop.matched;
    }
    stop.matched = 0;
    stops_.push_back(std::move(stop));
  }
}

std::string StreamDecoder::push(TokenId id) {
  if (stopped_ || (skip_special_ && tokenizer_.is_special(id))) return {};
  bytes_ += tokenizer_.bytes(id);
  const std::size_t complete = bytes_.size() - incomplete_suffix(bytes_);
  const std::string text = to_valid_utf8(std::string_view(bytes_).substr(0, complete));
  bytes_.erase(0, complete);
  return release(text);
}

std::string StreamDecoder::finish() {
  if (stopped_) return {};
  std::string text = release(to_valid_utf8(std::exchange(bytes_, {})));
  if (!stopped_) text += std::exchange(held_, {});
  return text;
}

// Takes in more text; returns what can no longer be part of a stop string.
std::string StreamDecoder::release(const std::string& text) {
  if (stops_.empty()) return text;
  for (const char byte : text) {
    held_ += byte;
    std::size_t met = 0;
    for (Stop& stop : stops_) {
      stop.advance(byte);
      if (stop.matched == stop.text.size()) met = std::max(met, stop.text.size());
    }
    if (met == 0) continue;
    stopped_ = true;
    held_.resize(held_.size() - met);
    return std::exchange(held_, {});
  }
  std::size_t hold = 0;
  for (const Stop& stop : stops_) hold = std::max(hold, stop.matched);
  std::string certain = held_.substr(0, held_.size() - hold);
  held_.erase(0, certain.size());
  return certain;
}

}  // namespace glyd::text
