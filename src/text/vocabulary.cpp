#include "text/vocabulary.h"

#include <cstring>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "text/unicode_classes.h"

namespace glyd::text {
namespace {

// Bytes that are printable characters of Latin-1 stand for themselves; the other 68, in order, for U+0100, U+0101, ...
bool stands_for_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr int kNoByte = -1;
constexpr std::size_t kSymbols = 0x100 + 68;

// The byte each code point below U+0144 stands for.
const std::array<int, kSymbols>& byte_of_symbol() {
  static const std::array<int, kSymbols> table = [] {
    std::array<int, kSymbols> bytes{};
    bytes.fill(kNoByte);
    std::size_t next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      bytes[stands_for_itself(byte) ? byte : next++] = static_cast<int>(byte);
    }
    return bytes;
  }();
  return table;
}

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

struct HashKey {
  std::uint64_t first, second;
};

const HashKey& hash_key() {
  static const HashKey key = [] {
    std::random_device device;
    auto word = [&] { return (static_cast<std::uint64_t>(device()) << 32) | device() | 1u; };
    return HashKey{word(), word()};
  }();
  return key;
}

}  // namespace

std::uint64_t keyed_hash(std::uint64_t value) {
  const HashKey& key = hash_key();
  return mix(value ^ key.first, key.second);
}

std::uint64_t keyed_hash(std::string_view bytes) {
  const HashKey& key = hash_key();
  std::uint64_t hash = key.first ^ bytes.size();
  while (bytes.size() >= 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data(), 8);
    hash = mix(hash ^ word, key.second);
    bytes.remove_prefix(8);
  }
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    word |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return mix(mix(hash ^ word, key.second), key.first);
}

bool bytes_of_symbols(std::string_view symbols, std::string& bytes) {
  const auto& table = byte_of_symbol();
  bytes.clear();
  for (std::size_t at = 0; at < symbols.size();) {
    const CodePoint c = decode_at(symbols, at);
    if (c.value >= kSymbols || table[c.value] == kNoByte) return false;
    bytes.push_back(static_cast<char>(table[c.value]));
    at += c.length;
  }
  return true;
}

Vocabulary::Vocabulary(std::string what, std::size_t count) : what_(std::move(what)) {
  std::size_t slots = 16;
  while (slots * 2 < count * 3) slots *= 2;
  slots_.resize(slots);
}

Vocabulary::Entry& Vocabulary::new_entry(std::int64_t id, std::string_view shown) {
  if (id < 0 || id > kMaxTokenId) {
    fail(Code::Model, "{}: token {} has the id {}, expected 0 to {}", what_, quote(shown), id, kMaxTokenId);
  }
  const auto index = static_cast<std::size_t>(id);
  if (index >= entries_.size()) entries_.resize(index + 1);
  if (entries_[index].present) {
    fail(Code::Model, "{}: id {} belongs to two tokens, {} and {}", what_, id, quote(bytes(static_cast<TokenId>(id))),
         quote(shown));
  }
  return entries_[index];
}

void Vocabulary::store(Entry& entry, std::string_view bytes) {
  entry.begin = static_cast<std::uint32_t>(arena_.size());
  entry.length = static_cast<std::uint32_t>(bytes.size()) & 0x7FFFFFFFu;
  entry.present = 1;
  arena_ += bytes;
}

void Vocabulary::grow() {
  std::vector<Slot> larger(slots_.size() * 2);
  for (const Slot& slot : slots_) {
    if (slot.id == kNoToken) continue;
    std::size_t place = slot.hash & (larger.size() - 1);
    while (larger[place].id != kNoToken) place = (place + 1) & (larger.size() - 1);
    larger[place] = slot;
  }
  slots_ = std::move(larger);
}

void Vocabulary::add(std::int64_t id, std::string_view symbols) {
  Entry& entry = new_entry(id, symbols);
  std::string bytes;
  if (!bytes_of_symbols(symbols, bytes)) {
    store(entry, symbols);
    unspellable_.emplace(symbols, static_cast<TokenId>(id));
    return;
  }
  store(entry, bytes);
  if (bytes.size() > longest_) longest_ = bytes.size();
  if (++used_ * 3 > slots_.size() * 2) grow();
  const auto hash = static_cast<std::uint32_t>(keyed_hash(std::string_view(bytes)));
  std::size_t place = hash & (slots_.size() - 1);
  while (slots_[place].id != kNoToken) place = (place + 1) & (slots_.size() - 1);
  slots_[place] = {hash, static_cast<TokenId>(id)};
}

void Vocabulary::add_literal(std::int64_t id, std::string_view content) {
  const TokenId same = find_symbols(content);
  if (same == kNoToken) {
    store(new_entry(id, content), content);
  } else if (same == id) {
    store(entries_[static_cast<std::size_t>(id)], content);
  } else {
    fail(Code::Model, "{}: the added token {} has the id {}, but the vocabulary has it as {}", what_, quote(content),
         id, same);
  }
}

TokenId Vocabulary::find(std::string_view bytes) const {
  const auto hash = static_cast<std::uint32_t>(keyed_hash(bytes));
  for (std::size_t place = hash & (slots_.size() - 1); slots_[place].id != kNoToken;
       place = (place + 1) & (slots_.size() - 1)) {
    if (slots_[place].hash == hash && this->bytes(slots_[place].id) == bytes) return slots_[place].id;
  }
  return kNoToken;
}

TokenId Vocabulary::find_symbols(std::string_view symbols) const {
  std::string bytes;
  if (bytes_of_symbols(symbols, bytes)) return find(bytes);
  const auto entry = unspellable_.find(symbols);
  return entry == unspellable_.end() ? kNoToken : entry->second;
}

std::array<TokenId, 256> Vocabulary::byte_ids() const {
  std::array<TokenId, 256> ids{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char character = static_cast<char>(byte);
    ids[byte] = find({&character, 1});
    if (ids[byte] == kNoToken) {
      fail(Code::Model, "{}: no token for the byte 0x{:02x}; a byte-level vocabulary has all 256", what_, byte);
    }
  }
  return ids;
}

std::string_view Vocabulary::bytes(TokenId id) const {
  if (!has(id)) return {};
  const Entry& entry = entries_[static_cast<std::size_t>(id)];
  return std::string_view(arena_).substr(entry.begin, entry.length);
}

}  // namespace glyd::text
