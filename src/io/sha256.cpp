// OpenSSL's block function alone: its newer interface would load configuration files and plug-ins at run time.
#define OPENSSL_SUPPRESS_DEPRECATED
#include "io/sha256.h"

#include <algorithm>
#include <vector>

namespace glyd::io {
namespace {

constexpr std::uint64_t kPiece = 1 << 20;

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

Sha256::Sha256() { SHA256_Init(&context_); }

void Sha256::update(std::span<const std::byte> bytes) { SHA256_Update(&context_, bytes.data(), bytes.size()); }

Digest Sha256::finish() {
  Digest digest;
  SHA256_Final(digest.data(), &context_);
  return digest;
}

Digest Sha256::of(std::string_view text) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(text)));
  return hash.finish();
}

Digest sha256_of_range(const File& file, std::uint64_t begin, std::uint64_t end, Progress& progress) {
  Sha256 hash;
  std::vector<std::byte> buffer(std::min(kPiece, end - begin));
  for (std::uint64_t at = begin; at < end; at += buffer.size()) {
    const auto piece = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), end - at));
    file.read_at(at, piece);
    hash.update(piece);
    progress.advance(piece.size());
  }
  return hash.finish();
}

std::string to_hex(const Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const std::uint8_t byte : digest) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

std::optional<Digest> from_hex(std::string_view hex) {
  Digest digest;
  if (hex.size() != 2 * digest.size()) return std::nullopt;
  for (std::size_t i = 0; i < digest.size(); ++i) {
    const int high = hex_value(hex[2 * i]), low = hex_value(hex[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    digest[i] = static_cast<std::uint8_t>(high << 4 | low);
  }
  return digest;
}

}  // namespace glyd::io
