#include "model/packed_weights.h"

#include "base/bf16.h"
#include "base/error.h"
#include "base/text.h"

namespace glyd::model {

PackedWeights::PackedWeights(const std::filesystem::path& dir, const Find& find)
    : manifest_(codec::load_manifest(dir)) {
  const std::string origin = printable((dir / codec::kManifestName).native());
  for (const codec::Manifest::Matrix& matrix : manifest_.matrices) {
    const std::string name = matrix.name + codec::kPackedEnding;
    const auto [file, stored] = find(name);
    if (stored == nullptr) {
      fail(Code::Model, "{}: the packed matrix {} is not among the weights; the directory is incomplete", origin,
           quote(name));
    }
    const auto& packed = matrices_.emplace_back(std::make_unique<codec::PackedTensor>(*file, *stored));
    const codec::UnitGrid& grid = packed->grid();
    if (grid.rows != matrix.rows || grid.cols != matrix.cols || packed->bytes() != matrix.bytes) {
      fail(Code::Model, "{}: {} x {} in {} bytes, {} says {} x {} in {}; the files do not belong together",
           packed->what(), grid.rows, grid.cols, packed->bytes(), origin, matrix.rows, matrix.cols, matrix.bytes);
    }
    stored_.insert(name);
    std::uint64_t row = 0;
    for (const codec::Manifest::Member& part : matrix.members) {
      if (find(part.tensor).second != nullptr) {
        fail(Code::Model, "{}: tensor {} is stored plain and is part of the packed matrix {} too", origin,
             quote(part.tensor), quote(name));
      }
      const std::uint64_t bytes = part.rows * matrix.cols * sizeof(Bf16);
      members_[part.tensor] = {
          file, {part.tensor, io::Dtype::BF16, {part.rows, matrix.cols}, 0, bytes}, packed.get(), row};
      row += part.rows;
    }
  }
}

}  // namespace glyd::model
