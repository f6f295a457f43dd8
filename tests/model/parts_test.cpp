// What a rank reads of a checkpoint: its own rows and columns, from plain and packed files; packed ones as they are
// where no unit is cut.
#include <catch2/catch.hpp>
#include <random>
#include <utility>
#include <vector>

#include "base/error.h"
#include "codec/matrices.h"
#include "codec/unpack.h"
#include "model/checkpoint.h"
#include "model/packing.h"
#include "model/sharding.h"
#include "support/fixtures.h"

namespace glyd::model {
namespace {

// A model of two layers, plain and packed.
class Models {
 public:
  explicit Models(const io::Json& changes) {
    io::Json all = {{"vocab_size", 300}, {"hidden_size", 64}};
    all.update(changes);
    const auto plain = dir_.path() / "plain", packed = dir_.path() / "packed";
    std::filesystem::create_directory(plain);
    test::write_formula_model(plain, test::tiny_config("qwen3", all));
    models_.push_back(Checkpoint::open(plain));
    ThreadPool pool(1);
    Progress silent;
    pack_model(models_[0], packed, {}, pool, silent);
    models_.push_back(Checkpoint::open(packed));
  }
  const Checkpoint& plain() const { return models_[0]; }
  const Checkpoint& packed() const { return models_[1]; }

 private:
  test::TempDir dir_;
  std::vector<Checkpoint> models_;
};

const io::Json kAligned = {
    {"num_attention_heads", 16}, {"num_key_value_heads", 4}, {"head_dim", 64}, {"intermediate_size", 1104}};
const io::Json kOdd = {
    {"num_attention_heads", 8}, {"num_key_value_heads", 2}, {"head_dim", 40}, {"intermediate_size", 300}};

std::vector<Bf16> part_of(const Checkpoint& c, const MatrixSpec& matrix, const MatrixPart& part) {
  std::vector<Bf16> whole(matrix.rows * matrix.cols), out;
  c.read_rows(matrix, 0, matrix.rows, whole);
  for (const Range& range : part.rows)
    for (std::uint64_t r = range.begin; r < range.end; ++r)
      out.insert(out.end(), whole.begin() + static_cast<std::ptrdiff_t>(r * matrix.cols + part.cols.begin),
                 whole.begin() + static_cast<std::ptrdiff_t>(r * matrix.cols + part.cols.end));
  return out;
}

std::vector<std::pair<const MatrixSpec*, MatrixPart>> parts(const ModelSpec& spec, const Shard& shard) {
  std::vector<std::pair<const MatrixSpec*, MatrixPart>> all{{&spec.embed, whole(spec.embed)},
                                                            {&spec.lm_head, shard.lm_head}};
  for (const LayerSpec& l : spec.layers)
    all.insert(all.end(), {{&l.qkv, shard.qkv}, {&l.o, shard.o}, {&l.gate_up, shard.gate_up}, {&l.down, shard.down}});
  return all;
}

TEST_CASE("a rank's rows and columns, from plain and packed files", "[model][parts]") {
  for (const io::Json& changes : {kAligned, kOdd}) {
    const Models models(changes);
    std::mt19937 random(1);
    for (const int ranks : {1, 2, 3, 4, 8}) {
      for (int rank = 0; rank < ranks; ++rank) {
        for (const auto& [matrix, part] :
             parts(models.plain().spec(), make_shard(models.plain().config(), rank, ranks))) {
          INFO(matrix->name << ", rank " << rank << " of " << ranks);
          const std::uint64_t rows = part.row_count(), cols = part.cols.size();
          const std::vector<Bf16> want = part_of(models.plain(), *matrix, part);
          for (const Checkpoint* c : {&models.plain(), &models.packed()}) {
            std::vector<Bf16> got(rows * cols);
            c->read_part(*matrix, part, 0, rows, got);
            CHECK(got == want);
            const std::uint64_t first = random() % (rows + 1), count = random() % (rows - first + 1);
            std::vector<Bf16> some(count * cols);
            c->read_part(*matrix, part, first, count, some);
            CHECK(std::equal(some.begin(), some.end(), want.begin() + static_cast<std::ptrdiff_t>(first * cols)));
            std::vector<Bf16> more((rows + 1) * cols);
            CHECK_THROWS_AS(c->read_part(*matrix, part, 0, rows + 1, more), Error);
            CHECK_THROWS_AS(c->read_part(*matrix, part, rows + 1, 0, {}), Error);
          }
        }
      }
    }
  }
}

std::vector<std::byte> stored_bytes(const Checkpoint& c, const MatrixSpec& matrix) {
  const codec::PackedTensor* stored = c.packed(matrix);
  REQUIRE(stored);
  std::vector<std::byte> bytes(stored->bytes());
  stored->read_packed(0, bytes);
  return bytes;
}

TEST_CASE("a rank's packed parts are cut out of the packed matrices", "[model][parts]") {
  ThreadPool pool(1);
  for (const io::Json& changes : {kAligned, kOdd}) {
    const Models models(changes);
    int cut = 0, taken = 0;
    for (const int ranks : {1, 2, 4}) {
      for (int rank = 0; rank < ranks; ++rank) {
        for (const auto& [matrix, part] :
             parts(models.plain().spec(), make_shard(models.plain().config(), rank, ranks))) {
          INFO(matrix->name << ", rank " << rank << " of " << ranks);
          CHECK_FALSE(models.plain().packed_part(*matrix, part));
          const auto got = models.packed().packed_part(*matrix, part);
          REQUIRE(got.has_value() == test::is_of_units({matrix->rows, matrix->cols}, part.rows, part.cols));
          ++(got ? taken : cut);
          if (!got) continue;
          const std::vector<std::byte> bytes = got->read();
          CHECK(got->bytes() == bytes.size());
          const codec::Unpacker unpacker(bytes, "part");
          REQUIRE(unpacker.grid().rows == part.row_count());
          REQUIRE(unpacker.grid().cols == part.cols.size());
          std::vector<Bf16> weights(part.row_count() * part.cols.size());
          unpacker.unpack(weights, pool);
          CHECK((weights == part_of(models.plain(), *matrix, part)));  // in brackets: not printed
          if (part.row_count() == matrix->rows && part.cols.size() == matrix->cols)
            CHECK((bytes == stored_bytes(models.packed(), *matrix)));
        }
      }
    }
    if (changes == kAligned) CHECK(cut == 0);  // heads and the inner size are shared out between units
    CHECK(taken > 0);
  }
}

}  // namespace
}  // namespace glyd::model
