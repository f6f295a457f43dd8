#pragma once
// SHA-256, the checksum that sha256sum and model hubs show.

#include <openssl/sha.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/progress.h"
#include "io/file.h"

namespace glyd::io {

using Digest = std::array<std::uint8_t, 32>;

class Sha256 {
 public:
  Sha256();
  void update(std::span<const std::byte> bytes);
  Digest finish();  // once

  static Digest of(std::string_view text);

 private:
  SHA256_CTX context_;
};

// Of bytes [begin, end) of a file. `progress` advances by what was read. Throws Error(Model) when it cannot be read.
Digest sha256_of_range(const File& file, std::uint64_t begin, std::uint64_t end, Progress& progress);

std::string to_hex(const Digest& digest);  // 64 digits, lower case
std::optional<Digest> from_hex(std::string_view hex);

}  // namespace glyd::io
