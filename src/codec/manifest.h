#pragma once
// glyd.json: what a packed directory holds, and what its original looked like to the last byte (docs/format.md).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/sha256.h"

namespace glyd::codec {

inline constexpr char kManifestName[] = "glyd.json";
inline constexpr char kPackedEnding[] = ".glyd";  // of the U8 tensor that holds a packed matrix, after the matrix' name

struct Manifest {
  struct Member {
    std::string tensor;  // of the original, BF16 of [rows, cols]
    std::uint64_t rows = 0;
  };
  struct Matrix {
    std::string name;
    std::uint64_t rows = 0, cols = 0;
    std::uint64_t bytes = 0;       // of the packed matrix
    std::uint64_t exceptions = 0;  // weights outside the code
    std::vector<Member> members;   // their rows one after another are the matrix
    double bits_a_weight() const;
  };
  struct Checksum {
    std::string name;
    io::Digest sha256{};
  };
  struct WeightFile {
    std::string name, header;  // the header's text; what stands before it (its length) and behind it (data) follows
    std::uint64_t bytes = 0;
    io::Digest sha256{};
    std::vector<Checksum> tensors;  // of the bytes of every tensor in the file
  };
  struct OtherFile {
    std::string name;
    std::uint64_t bytes = 0;
    io::Digest sha256{};
  };

  std::string glyd_version;  // that packed
  std::vector<Matrix> matrices;
  std::vector<WeightFile> files;
  std::vector<OtherFile> others;     // copied as they are
  std::optional<std::string> index;  // text of the original model.safetensors.index.json
};

// The JSON text, with a checksum of itself: equal manifests give equal text. Throws Error(Model) when a name is not
// UTF-8 or the text becomes too long to be read again.
std::string manifest_text(const Manifest& manifest);

// Reads and checks all that can be checked without the other files: version, checksum, plain file names, no name twice,
// members' rows that add up. `what` (a path) opens every message. Throws Error(Model).
Manifest parse_manifest(std::string_view text, const std::string& what);

Manifest load_manifest(const std::filesystem::path& dir);  // dir / glyd.json

}  // namespace glyd::codec
