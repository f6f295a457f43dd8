// tokenizer.json, section by section.

#include "text/tokenizer_file.h"

#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "text/tokenizer_json.h"

namespace glyd::text {
namespace {

using io::Json;

constexpr std::size_t kMaxSteps = 16;  // of a pre-tokenizer, a normalizer, a post-processor

std::string type_of(const Json& section) {
  const Json& type = section.is_object() ? member(section, "type") : section;
  return type.is_string() ? type.get<std::string>() : "";
}

[[noreturn]] void refuse_type(const std::string& what, const Json& section, const char* expected) {
  fail(Code::Model, "{}: {} is not implemented, expected {}", what,
       section.is_object() ? "type " + quote(type_of(section)) : section.type_name(), expected);
}

// A section and the parts of a Sequence, as one flat list; null is an empty one.
std::vector<const Json*> steps_of(const Json& section, const char* list, const std::string& what) {
  std::vector<const Json*> steps;
  if (section.is_null()) return steps;
  if (type_of(section) != "Sequence") return {&section};
  const Json& parts = member(section, list);
  if (!parts.is_array() || parts.size() > kMaxSteps) {
    fail(Code::Model, "{}: a Sequence without a list {} of at most {} entries", what, list, kMaxSteps);
  }
  for (const Json& part : parts) steps.push_back(&part);
  return steps;
}

// Byte fallback and Metaspace belong to another kind of tokenizer: say so before its parts are refused one by one.
void refuse_sentencepiece(const Json& root, const std::string& what) {
  auto found = [&](const std::string& where) {
    fail(
        Code::Model,
        "{}: {}: a SentencePiece-style tokenizer (Llama 1 and 2, Mistral, Gemma), which is not implemented; byte-level "
        "BPE (Qwen, Llama 3) is",
        what, where);
  };
  const Json& model = member(root, "model");
  if (model.is_object() && bool_of(model, "byte_fallback", false, what + ": model")) found("model.byte_fallback");
  if (type_of(model) == "Unigram") found("model.type 'Unigram'");
  for (const char* key : {"pre_tokenizer", "decoder"}) {
    for (const Json* step : steps_of(member(root, key), key[0] == 'p' ? "pretokenizers" : "decoders", what)) {
      const std::string type = type_of(*step);
      if (type == "Metaspace" || type == "ByteFallback") found(std::string(key) + " " + quote(type));
    }
  }
}

void read_normalizer(TokenizerParts& parts, const Json& section, const std::string& what) {
  for (const Json* step : steps_of(section, "normalizers", what)) {
    if (type_of(*step) != "NFC") refuse_type(what, *step, "NFC, null or a Sequence of them");
    parts.nfc = true;
  }
}

std::unique_ptr<Splitter> read_split(const Json& step, const std::string& what) {
  if (const std::string behavior = string_of(step, "behavior", "", what); behavior != "Isolated") {
    fail(Code::Model, "{}: Split with behavior {} is not implemented, expected 'Isolated'", what, quote(behavior));
  }
  if (bool_of(step, "invert", false, what)) fail(Code::Model, "{}: Split with invert is not implemented", what);
  const Json& pattern = member(step, "pattern");
  const Json* regex = pattern.is_object() ? &member(pattern, "Regex") : nullptr;
  if (!regex || !regex->is_string()) {
    fail(Code::Model, "{}: Split without pattern.Regex (a pattern of another kind is not implemented)", what);
  }
  return make_splitter(regex->get_ref<const std::string&>(), what);
}

void read_pre_tokenizer(TokenizerParts& parts, const Json& section, const std::string& what) {
  bool byte_level = false;
  for (const Json* step : steps_of(section, "pretokenizers", what)) {
    const std::string type = type_of(*step);
    if (byte_level || (type != "Split" && type != "ByteLevel")) {
      refuse_type(what, *step, "Split and, as the last one, ByteLevel");
    }
    if (type == "Split") {
      parts.pre_tokenizer.add(read_split(*step, what));
      continue;
    }
    byte_level = true;
    if (bool_of(*step, "add_prefix_space", false, what)) {
      fail(Code::Model, "{}: ByteLevel with add_prefix_space is not implemented", what);
    }
    if (bool_of(*step, "use_regex", true, what)) parts.pre_tokenizer.add(make_splitter(kGpt2Regex, what));
  }
  if (!byte_level) fail(Code::Model, "{}: no ByteLevel step: only byte-level tokenizers are implemented", what);
}

// TemplateProcessing's `single`: special tokens around the sequence A.
void read_template(TokenizerParts& parts, const Json& section, const std::string& what) {
  const Json& single = member(section, "single");
  const Json& special = member(section, "special_tokens");
  if (!single.is_array() || single.size() > 64 || !special.is_object()) {
    fail(Code::Model, "{}: TemplateProcessing needs the list single and the object special_tokens", what);
  }
  bool after = false;
  for (const Json& part : single) {
    if (part.is_object() && part.contains("Sequence")) {
      if (after) fail(Code::Model, "{}: TemplateProcessing repeats the sequence, which is not implemented", what);
      after = true;
      continue;
    }
    const Json& entry = part.is_object() ? member(part, "SpecialToken") : part;
    const std::string name = entry.is_object() ? string_of(entry, "id", "", what) : "";
    const auto token = special.find(name);
    const Json& ids = token != special.end() && token->is_object() ? member(*token, "ids")
                      : token == special.end()                     ? entry
                                                                   : *token;
    if (!ids.is_array() || ids.size() > 64) {
      fail(Code::Model, "{}: TemplateProcessing uses {}, for which special_tokens has no ids", what, quote(name));
    }
    for (const Json& id : ids) {
      const bool known =
          id.is_number_integer() && id >= 0 && id <= kMaxTokenId && parts.vocabulary.has(id.get<TokenId>());
      if (!known)
        fail(Code::Model, "{}: TemplateProcessing: {} has the id {}, which is no token", what, quote(name),
             quote(id.dump(), 40));
      (after ? parts.suffix : parts.prefix).push_back(id.get<TokenId>());
    }
  }
  if (!after) fail(Code::Model, "{}: TemplateProcessing without the sequence in single", what);
}

void read_post_processor(TokenizerParts& parts, const Json& section, const std::string& what) {
  for (const Json* step : steps_of(section, "processors", what)) {
    const std::string type = type_of(*step);
    if (type == "ByteLevel") continue;  // moves offsets only
    if (type != "TemplateProcessing" || !parts.prefix.empty() || !parts.suffix.empty()) {
      refuse_type(what, *step, "ByteLevel and one TemplateProcessing");
    }
    read_template(parts, *step, what);
  }
}

void check_model(const Json& model, const std::string& what) {
  if (!model.is_object()) fail(Code::Model, "{}: {}, expected an object", what, model.type_name());
  if (string_of(model, "type", "BPE", what) != "BPE") refuse_type(what, model, "'BPE'");
  if (!member(model, "unk_token").is_null()) fail(Code::Model, "{}: unk_token is not implemented, expected null", what);
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const std::string text = string_of(model, affix, "", what); !text.empty()) {
      fail(Code::Model, "{}: {} {} is not implemented, expected none", what, affix, quote(text));
    }
  }
  const Json& dropout = member(model, "dropout");
  if (!dropout.is_null() && dropout != 0) {
    fail(Code::Model, "{}: dropout {} is not implemented, expected null", what, quote(dropout.dump(), 40));
  }
}

void read_merges(TokenizerParts& parts, const Json& merges, const std::string& what) {
  if (!merges.is_array()) fail(Code::Model, "{}: {}, expected a list", what, merges.type_name());
  parts.bpe = Bpe(merges.size());
  std::size_t rank = 0;
  for (const Json& merge : merges) {
    if (merge.is_string()) {
      add_merge_line(parts, merge.get_ref<const std::string&>(), rank, what);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      add_merge(parts, merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>(), rank, what);
    } else {
      fail(Code::Model, "{}: merge {} is neither a string nor a pair of strings", what, rank);
    }
    ++rank;
  }
}

std::vector<AddedToken> read_added(const Json& list, const std::string& what) {
  std::vector<AddedToken> tokens;
  if (list.is_null()) return tokens;
  if (!list.is_array()) fail(Code::Model, "{}: {}, expected a list", what, list.type_name());
  for (const Json& entry : list) {
    const std::string where = what + "[" + std::to_string(tokens.size()) + "]";
    const Json& id = entry.is_object() ? member(entry, "id") : entry;
    if (!id.is_number_integer()) fail(Code::Model, "{}: no integer id", where);
    tokens.push_back(read_added_token(entry, id.get<std::int64_t>(), where));
  }
  return tokens;
}

}  // namespace

TokenizerParts parse_tokenizer_json(std::string_view text, const std::string& name) {
  const std::string what = printable(name);
  const Json root = io::parse_json(text, name);
  if (!root.is_object()) fail(Code::Model, "{}: {}, expected an object", what, root.type_name());
  refuse_sentencepiece(root, what);
  const Json& model = member(root, "model");
  check_model(model, what + ": model");
  TokenizerParts parts(read_vocabulary(member(model, "vocab"), what + ": model.vocab"));
  parts.byte_ids = parts.vocabulary.byte_ids();
  parts.ignore_merges = bool_of(model, "ignore_merges", false, what + ": model");
  read_merges(parts, member(model, "merges"), what + ": model.merges");
  add_added_tokens(parts, read_added(member(root, "added_tokens"), what + ": added_tokens"), what + ": added_tokens");
  read_normalizer(parts, member(root, "normalizer"), what + ": normalizer");
  read_pre_tokenizer(parts, member(root, "pre_tokenizer"), what + ": pre_tokenizer");
  read_post_processor(parts, member(root, "post_processor"), what + ": post_processor");
  if (type_of(member(root, "decoder")) != "ByteLevel")
    refuse_type(what + ": decoder", member(root, "decoder"), "ByteLevel");
  return parts;
}

}  // namespace glyd::text
