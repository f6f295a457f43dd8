#include "text/tokenizer.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "io/file.h"
#include "text/normalizer.h"
#include "text/tokenizer_file.h"
#include "text/tokenizer_json.h"

namespace glyd::text {
namespace {

constexpr std::size_t kMaxInputBytes = std::size_t{1} << 31;  // positions in a piece are 32 bits wide

TokenizerParts load_parts(const std::filesystem::path& dir) {
  const auto path = dir / "tokenizer.json";
  if (io::is_regular_file(path)) return parse_tokenizer_json(io::read_text(path, kMaxTokenizerBytes), path.string());
  if (io::is_regular_file(dir / "vocab.json") && io::is_regular_file(dir / "merges.txt")) {
    return load_vocab_and_merges(dir);
  }
  if (io::is_regular_file(dir / "tokenizer.model")) {
    fail(Code::Model,
         "{}: there is no tokenizer.json, only tokenizer.model: a SentencePiece tokenizer, which is not implemented",
         printable(dir.string()));
  }
  fail(Code::Model,
       "{}: no tokenizer: expected tokenizer.json, or vocab.json and merges.txt; without one a model takes ids and "
       "gives ids: --prompt-ids with --ids",
       printable(dir.string()));
}

}  // namespace

// The pipeline: added tokens in the text as it is, NFC of what lies between, added tokens that are matched after it,
// pieces, BPE.
struct Tokenizer::Impl {
  // Whether merging the bytes of a token ends in that token. Most pieces of a text are tokens, so knowing it saves most
  // of the merging; it is found out when a token is first met.
  enum class Whole : char { Unknown, Yes };

  TokenizerParts parts;
  std::unique_ptr<std::atomic<Whole>[]> whole;  // by id
  std::vector<bool> special;                    // by id
  AddedTokens by_content, raw, normalized;      // all; those matched before normalisation; after it
  std::optional<TokenId> bos, eos;

  explicit Impl(TokenizerParts p) : parts(std::move(p)) {
    const auto size = static_cast<std::size_t>(parts.vocabulary.size());
    whole.reset(new std::atomic<Whole>[size]());
    special.resize(size);
    std::vector<AddedToken> before, after;
    for (AddedToken token : parts.added) {
      special[static_cast<std::size_t>(token.id)] = token.special;
      if (token.normalized && parts.nfc) token.content = NfcText(token.content).text();
      (token.normalized ? after : before).push_back(std::move(token));
    }
    by_content = AddedTokens(std::move(parts.added));
    raw = AddedTokens(std::move(before));
    normalized = AddedTokens(std::move(after));
  }

  std::optional<TokenId> find(std::string_view content) const {
    const AddedToken* token = by_content.find_content(content);
    return token ? std::optional(token->id) : std::nullopt;
  }

  // A token that tokenizer_config.json names: an added one, or one of the model's.
  std::optional<TokenId> find_named(const std::optional<std::string>& content) const {
    if (!content) return std::nullopt;
    if (const auto added = find(*content)) return added;
    const TokenId id = parts.vocabulary.find(*content);
    return id == kNoToken ? std::nullopt : std::optional(id);
  }

  struct Work {
    std::vector<TokenId> out;
    Bpe::Scratch scratch;
  };

  void encode_input(std::string_view input, std::span<const Range> inert, Work& work) const {
    for (std::size_t at = 0; at < input.size();) {
      const auto match = raw.find(input, at, inert);
      const Range between{at, match ? match->where.begin : input.size()};
      if (between.begin < between.end) encode_between(input, between, inert, work);
      if (!match) break;
      work.out.push_back(match->token->id);
      at = match->where.end;
    }
  }

  void encode_between(std::string_view input, Range between, std::span<const Range> inert, Work& work) const {
    const std::string_view text = input.substr(between.begin, between.end - between.begin);
    if (!parts.nfc && normalized.empty()) return encode_pieces(text, work);
    const NfcText nfc(parts.nfc ? text : std::string_view());
    const std::string_view normal = parts.nfc ? nfc.text() : text;
    if (normalized.empty()) return encode_pieces(normal, work);

    std::vector<Range> moved;  // the inert ranges, in bytes of `normal`
    for (const Range& range : inert) {
      const Range inside{std::max(range.begin, between.begin), std::min(range.end, between.end)};
      if (inside.begin >= inside.end) continue;
      moved.push_back(nfc.to_normalized({inside.begin - between.begin, inside.end - between.begin}));
    }
    for (std::size_t at = 0; at < normal.size();) {
      const auto match = normalized.find(normal, at, moved);
      encode_pieces(normal.substr(at, match ? match->where.begin - at : std::string_view::npos), work);
      if (!match) break;
      work.out.push_back(match->token->id);
      at = match->where.end;
    }
  }

  void encode_pieces(std::string_view text, Work& work) const {
    parts.pre_tokenizer.split(text, [&](std::string_view piece) { encode_piece(piece, work); });
  }

  void encode_piece(std::string_view piece, Work& work) const {
    const TokenId id = piece.size() <= parts.vocabulary.longest() ? parts.vocabulary.find(piece) : kNoToken;
    if (id != kNoToken) {
      const bool is_whole = whole[static_cast<std::size_t>(id)].load(std::memory_order_relaxed) == Whole::Yes;
      if (is_whole || parts.ignore_merges) return work.out.push_back(id);
    }
    const std::size_t before = work.out.size();
    parts.bpe.encode(piece, parts.byte_ids, work.scratch, work.out);
    if (id != kNoToken && work.out.size() == before + 1) {
      whole[static_cast<std::size_t>(id)].store(Whole::Yes, std::memory_order_relaxed);
    }
  }
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::load(const std::filesystem::path& dir) {
  auto impl = std::make_unique<Impl>(load_parts(dir));
  const NamedTokens named = load_named_tokens(dir);
  impl->bos = impl->find_named(named.bos);
  impl->eos = impl->find_named(named.eos);
  return Tokenizer(std::move(impl));
}

Tokenizer Tokenizer::parse(std::string_view tokenizer_json, const std::string& what) {
  return Tokenizer(std::make_unique<Impl>(parse_tokenizer_json(tokenizer_json, what)));
}

std::vector<TokenId> Tokenizer::encode(std::string_view input, const EncodeOptions& options) const {
  if (input.size() > kMaxInputBytes) {
    fail(Code::Usage, "text of {} bytes, expected at most {}", input.size(), kMaxInputBytes);
  }
  if (const std::string fault = utf8_fault(input); !fault.empty()) fail(Code::Usage, "the text{}", fault);
  Impl::Work work;
  if (options.add_special) work.out = impl_->parts.prefix;
  impl_->encode_input(input, options.inert, work);
  if (options.add_special) work.out.insert(work.out.end(), impl_->parts.suffix.begin(), impl_->parts.suffix.end());
  return std::move(work.out);
}

std::string_view Tokenizer::bytes(TokenId id) const { return impl_->parts.vocabulary.bytes(id); }

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string joined;
  for (const TokenId id : ids) {
    if (!skip_special || !is_special(id)) joined += bytes(id);
  }
  return to_valid_utf8(joined);
}

bool Tokenizer::has_token(TokenId id) const { return impl_->parts.vocabulary.has(id); }

bool Tokenizer::is_special(TokenId id) const { return has_token(id) && impl_->special[static_cast<std::size_t>(id)]; }

TokenId Tokenizer::size() const { return impl_->parts.vocabulary.size(); }

std::optional<TokenId> Tokenizer::find(std::string_view content) const { return impl_->find(content); }

std::optional<TokenId> Tokenizer::eos() const { return impl_->eos; }

std::optional<TokenId> Tokenizer::bos() const { return impl_->bos; }

}  // namespace glyd::text
