#pragma once
// Cuts text into the pieces that BPE works on: the "Split" steps of a tokenizer.json.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace glyd::text {

// The published patterns, by exact text.
extern const std::string_view kQwen2Regex;   // Qwen2, Qwen2.5, Qwen3
extern const std::string_view kQwen35Regex;  // Qwen3.5, Qwen3.6: letters and marks together
extern const std::string_view kLlama3Regex;  // Llama 3: digits in groups of up to three
extern const std::string_view kGpt2Regex;    // what ByteLevel with use_regex stands for

using PieceSink = std::function<void(std::string_view)>;

// One step. Every match is a piece, and so is what lies between two matches (behavior "Isolated").
class Splitter {
 public:
  virtual ~Splitter() = default;

  // Hands the pieces of `text` (well-formed UTF-8) to `sink` in order; together they are `text`, none is empty. Safe
  // from several threads. Time is linear for the published patterns. Others: throws Error(Model) when a match takes too
  // many steps, or the text too long.
  virtual void split(std::string_view text, const PieceSink& sink) const = 0;
};

// A hand-written scanner for one of kQwen2Regex, kQwen35Regex, kLlama3Regex; null for any other pattern.
std::unique_ptr<Splitter> make_scanner(std::string_view pattern);

// Any pattern, through PCRE2. `what` (a path and key) opens every message. Throws Error(Model) for a pattern that does
// not compile, or that means something else to the engine the reference uses (docs of the function's file).
std::unique_ptr<Splitter> make_regex_splitter(std::string_view pattern, const std::string& what);

// The scanner where there is one, else PCRE2.
std::unique_ptr<Splitter> make_splitter(std::string_view pattern, const std::string& what);

// Several steps, each cutting the pieces of the one before. None: the text is one piece.
class PreTokenizer {
 public:
  void add(std::unique_ptr<Splitter> step) { steps_.push_back(std::move(step)); }
  std::size_t size() const { return steps_.size(); }
  void split(std::string_view text, const PieceSink& sink) const { split_from(0, text, sink); }

 private:
  void split_from(std::size_t step, std::string_view text, const PieceSink& sink) const;
  std::vector<std::unique_ptr<Splitter>> steps_;
};

}  // namespace glyd::text
