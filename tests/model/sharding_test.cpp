// Every row and column of every matrix is on the ranks that need it, once, in parts that fit together.
#include "model/sharding.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/sizes.h"
#include "support/errors.h"

namespace glyd::model {
namespace {

struct Shape {
  const char* name;
  std::int64_t hidden, heads, kv_heads, head_dim, inner, vocab;
};

const std::vector<Shape> kPublished{
    {"Qwen2.5-0.5B", 896, 14, 2, 64, 4864, 151936},    {"Qwen2.5-1.5B", 1536, 12, 2, 128, 8960, 151936},
    {"Qwen2.5-3B", 2048, 16, 2, 128, 11008, 151936},   {"Qwen2.5-7B", 3584, 28, 4, 128, 18944, 152064},
    {"Qwen2.5-14B", 5120, 40, 8, 128, 13824, 152064},  {"Qwen2.5-32B", 5120, 40, 8, 128, 27648, 152064},
    {"Qwen2.5-72B", 8192, 64, 8, 128, 29568, 152064},  {"Qwen3-0.6B", 1024, 16, 8, 128, 3072, 151936},
    {"Qwen3-1.7B", 2048, 16, 8, 128, 6144, 151936},    {"Qwen3-4B", 2560, 32, 8, 128, 9728, 151936},
    {"Qwen3-8B", 4096, 32, 8, 128, 12288, 151936},     {"Qwen3-14B", 5120, 40, 8, 128, 17408, 151936},
    {"Qwen3-32B", 5120, 64, 8, 128, 25600, 151936},    {"Llama-3.1-8B", 4096, 32, 8, 128, 14336, 128256},
    {"Llama-3.1-70B", 8192, 64, 8, 128, 28672, 128256}};

Config config_of(const Shape& s) {
  Config c;
  c.hidden_size = s.hidden;
  c.heads = static_cast<int>(s.heads);
  c.kv_heads = static_cast<int>(s.kv_heads);
  c.head_dim = static_cast<int>(s.head_dim);
  c.intermediate_size = s.inner;
  c.vocab_size = s.vocab;
  c.layers = 1;
  return c;
}

std::vector<Shard> shards_of(const Config& config, int ranks) {
  std::vector<Shard> shards;
  for (int rank = 0; rank < ranks; ++rank) shards.push_back(make_shard(config, rank, ranks));
  return shards;
}

// How often each of n things is in one of the ranges.
std::vector<int> counts(std::uint64_t n, const std::vector<Range>& ranges) {
  std::vector<int> count(n);
  for (const Range& range : ranges) {
    REQUIRE(range.begin <= range.end);
    REQUIRE(range.end <= n);
    for (std::uint64_t i = range.begin; i < range.end; ++i) ++count[i];
  }
  return count;
}

bool all_once(std::uint64_t n, const std::vector<Range>& ranges) {
  const std::vector<int> count = counts(n, ranges);
  return std::all_of(count.begin(), count.end(), [](int x) { return x == 1; });
}

// Everything that has to be true of the ranks of a model, whatever its shape.
void check_shards(const Config& c, const std::vector<Shard>& shards) {
  const LayerSpec layer = model_spec(c).layers.at(0);
  const std::uint64_t d = unsigned_of(c.head_dim), q_rows = unsigned_of(c.heads) * d,
                      kv_rows = unsigned_of(c.kv_heads) * d;
  const std::uint64_t hidden = unsigned_of(c.hidden_size), inner = unsigned_of(c.intermediate_size),
                      group = unsigned_of(c.heads / c.kv_heads);
  std::vector<Range> heads, kv_heads, qkv_q, o, gate_up, down, vocab;
  for (std::size_t r = 0; r < shards.size(); ++r) {
    const Shard& s = shards[r];
    CHECK(s.rank == static_cast<int>(r));
    CHECK(s.ranks == static_cast<int>(shards.size()));
    CHECK(s.layers == Range{0, unsigned_of(c.layers)});
    CHECK(s.first_stage());
    CHECK(s.last_stage());
    CHECK(s.adds_output_biases() == (r == 0));

    // The rank's own heads and kv heads stand to each other as the kernels expect.
    REQUIRE(s.heads.size() > 0);
    REQUIRE(s.kv_heads.size() > 0);
    REQUIRE(s.heads.size() % s.kv_heads.size() == 0);
    const std::uint64_t local_group = s.heads.size() / s.kv_heads.size();
    for (std::uint64_t h = 0; h < s.heads.size(); ++h)
      CHECK(s.kv_heads.begin + h / local_group == (s.heads.begin + h) / group);

    // q, k and v rows of these heads, in this order; the columns of o are the query heads'.
    REQUIRE(s.qkv.rows.size() == 3);
    CHECK(s.qkv.rows[0] == Range{s.heads.begin * d, s.heads.end * d});
    CHECK(s.qkv.rows[1] == Range{q_rows + s.kv_heads.begin * d, q_rows + s.kv_heads.end * d});
    CHECK(s.qkv.rows[2] == Range{q_rows + kv_rows + s.kv_heads.begin * d, q_rows + kv_rows + s.kv_heads.end * d});
    CHECK(s.qkv.row_count() == (s.heads.size() + 2 * s.kv_heads.size()) * d);
    CHECK(s.o.cols == s.qkv.rows[0]);

    REQUIRE(s.inner.size() > 0);
    REQUIRE(s.gate_up.rows.size() == 2);
    CHECK(s.gate_up.rows[0] == s.inner);
    CHECK(s.gate_up.rows[1] == Range{inner + s.inner.begin, inner + s.inner.end});
    CHECK(s.down.cols == s.inner);

    for (const MatrixPart* part : {&s.qkv, &s.gate_up, &s.lm_head}) CHECK(part->cols == Range{0, hidden});
    for (const MatrixPart* part : {&s.o, &s.down}) CHECK(part->rows == std::vector<Range>{{0, hidden}});
    CHECK(s.lm_head.rows == std::vector<Range>{s.vocab});
    CHECK(s.vocab.begin % 64 == 0);
    if (r > 0) CHECK(s.vocab.begin == shards[r - 1].vocab.end);  // gathered logits are in the vocabulary's order

    const Config local = shard_config(c, s);
    CHECK(unsigned_of(local.heads) == s.heads.size());
    CHECK(unsigned_of(local.kv_heads) == s.kv_heads.size());
    CHECK(unsigned_of(local.intermediate_size) == s.inner.size());
    CHECK(local.vocab_size == c.vocab_size);
    const LayerSpec local_layer = model_spec(local).layers.at(0);
    CHECK(local_layer.qkv.rows == s.qkv.row_count());
    CHECK(local_layer.o.cols == s.o.cols.size());
    CHECK(local_layer.gate_up.rows == s.gate_up.row_count());
    CHECK(local_layer.down.cols == s.down.cols.size());

    heads.push_back(s.heads);
    kv_heads.push_back(s.kv_heads);
    qkv_q.push_back(s.qkv.rows[0]);
    o.push_back(s.o.cols);
    gate_up.insert(gate_up.end(), s.gate_up.rows.begin(), s.gate_up.rows.end());
    down.push_back(s.down.cols);
    vocab.push_back(s.vocab);
  }
  CHECK(all_once(unsigned_of(c.heads), heads));
  CHECK(all_once(q_rows, qkv_q));
  CHECK(all_once(layer.o.cols, o));
  CHECK(all_once(layer.gate_up.rows, gate_up));
  CHECK(all_once(layer.down.cols, down));
  CHECK(all_once(unsigned_of(c.vocab_size), vocab));
  const std::vector<int> holders = counts(unsigned_of(c.kv_heads), kv_heads);
  const auto [fewest, most] = std::minmax_element(holders.begin(), holders.end());
  CHECK(*fewest >= 1);
  CHECK(*most - *fewest <= 1);
  if (shards.size() <= unsigned_of(c.kv_heads)) CHECK(*most == 1);
}

TEST_CASE("published shapes over 1, 2, 3, 4 and 8 ranks", "[model]") {
  for (const Shape& shape : kPublished) {
    for (const int ranks : {1, 2, 3, 4, 8}) {
      INFO(shape.name << " over " << ranks);
      const Config config = config_of(shape);
      const std::vector<Shard> shards = shards_of(config, ranks);
      check_shards(config, shards);
      for (const Shard& s : shards) {  // no packed unit of down is cut, and no row tile of gate, up and the head
        CHECK(s.inner.begin % 256 == 0);
        CHECK((s.inner.end % 256 == 0 || s.inner.end == unsigned_of(config.intermediate_size)));
        for (const Range& rows : s.gate_up.rows) CHECK(rows.begin % 16 == 0);
        CHECK(s.vocab.size() / 64 <= unsigned_of(config.vocab_size) / 64 / unsigned_of(ranks) + 1);
        CHECK(s.vocab.size() / 64 >= unsigned_of(config.vocab_size) / 64 / unsigned_of(ranks));
      }
    }
  }
}

TEST_CASE("small and odd shapes", "[model]") {
  for (const std::int64_t kv_heads : {1, 2, 3, 8}) {
    for (const std::int64_t group : {1, 2, 5, 8}) {
      for (const std::int64_t inner : {1, 7, 24, 100, 513, 2047}) {
        for (const std::int64_t vocab : {1, 17, 32, 129, 300}) {
          for (const int ranks : {1, 2, 3, 4, 5, 8}) {
            const Config config = config_of({"", 16, kv_heads * group, kv_heads, 6, inner, vocab});
            const bool enough_heads = ranks <= kv_heads || (ranks + kv_heads - 1) / kv_heads <= group;
            INFO("nkv " << kv_heads << " group " << group << " I " << inner << " V " << vocab << " over " << ranks);
            if (enough_heads && inner >= ranks) {
              check_shards(config, shards_of(config, ranks));
            } else {
              for (int rank = 0; rank < ranks; ++rank) CHECK_THROWS_AS(make_shard(config, rank, ranks), Error);
            }
          }
        }
      }
    }
  }
}

// Rows of hidden_size weights of all stages' ranks: layers, the whole embedding on each rank, the head.
std::vector<std::uint64_t> stage_sizes(const Config& c, const std::vector<Range>& layers, std::uint64_t ranks) {
  const std::uint64_t layer = unsigned_of(2 * (c.heads + c.kv_heads) * c.head_dim + 3 * c.intermediate_size);
  std::vector<std::uint64_t> sizes;
  for (const Range& range : layers) sizes.push_back(range.size() * layer);
  sizes.front() += unsigned_of(c.vocab_size) * ranks;
  sizes.back() += unsigned_of(c.vocab_size);
  return sizes;
}

// The fewest bytes that the largest stage can do with, by trying all ways to deal out `layers` from `stage` on.
std::uint64_t least(const Config& c, std::vector<Range> dealt, std::uint64_t layers, std::uint64_t stages,
                    std::uint64_t ranks) {
  const std::uint64_t begin = dealt.empty() ? 0 : dealt.back().end;
  if (dealt.size() + 1 == stages) {
    dealt.push_back({begin, layers});
    const auto sizes = stage_sizes(c, dealt, ranks);
    return *std::max_element(sizes.begin(), sizes.end());
  }
  std::uint64_t best = UINT64_MAX;
  for (std::uint64_t end = begin + 1; end + (stages - dealt.size() - 1) <= layers; ++end) {
    std::vector<Range> more = dealt;
    more.push_back({begin, end});
    best = std::min(best, least(c, more, layers, stages, ranks));
  }
  return best;
}

TEST_CASE("layers are dealt out to stages, the largest as small as can be", "[model]") {
  for (const std::int64_t vocab : {16, 500, 4000}) {
    for (const int layers : {1, 2, 3, 5, 9}) {
      for (const int stages : {1, 2, 3, 4, 7}) {
        for (const int ranks : {1, 2}) {
          Config config = config_of({"", 16, 4, 2, 8, 100, vocab});
          config.layers = layers;
          INFO("L " << layers << " V " << vocab << " in " << stages << " stages of " << ranks);
          if (stages > layers) {
            CHECK_THROWS_AS(make_shard(config, 0, ranks, stages), Error);
            continue;
          }
          std::vector<Range> dealt;
          for (int rank = 0; rank < ranks * stages; ++rank) {
            const Shard s = make_shard(config, rank, ranks, stages), alone = make_shard(config, rank % ranks, ranks);
            CHECK(s.stage == rank / ranks);
            CHECK(s.stages == stages);
            CHECK(s.rank == rank % ranks);
            CHECK(s.ranks == ranks);
            CHECK(s.first_stage() == (rank < ranks));
            CHECK(s.last_stage() == (rank >= ranks * (stages - 1)));
            CHECK(s.qkv.rows == alone.qkv.rows);
            CHECK(s.down.cols == alone.down.cols);
            CHECK(s.vocab == alone.vocab);
            CHECK(unsigned_of(shard_config(config, s).layers) == s.layers.size());
            if (s.rank == 0) {
              dealt.push_back(s.layers);
            } else {
              CHECK(s.layers == dealt.back());
            }
          }
          CHECK(dealt.front().begin == 0);
          CHECK(dealt.back().end == unsigned_of(layers));
          for (std::size_t i = 0; i < dealt.size(); ++i) {
            CHECK(dealt[i].begin < dealt[i].end);
            if (i > 0) CHECK(dealt[i].begin == dealt[i - 1].end);
          }
          const auto sizes = stage_sizes(config, dealt, unsigned_of(ranks));
          CHECK(*std::max_element(sizes.begin(), sizes.end()) ==
                least(config, {}, unsigned_of(layers), unsigned_of(stages), unsigned_of(ranks)));
        }
      }
    }
  }
}

TEST_CASE("a stage has its own layers, and the ends of the model where they belong", "[model]") {
  for (const bool tied : {false, true}) {
    Config config = config_of({"", 16, 4, 2, 8, 100, 32});
    config.layers = 5;
    config.tied_head = tied;
    const ModelSpec spec = model_spec(config);
    const ModelSpec alone = shard_spec(spec, make_shard(config, 0, 2));
    CHECK(alone.embed.members.size() == 1);
    CHECK(alone.layers.size() == 5);
    CHECK(alone.final_norm.size == 16);
    CHECK(alone.lm_head.members.size() == (tied ? 0 : 1));  // tied: rows of the embedding that is there
    std::vector<std::string> names;
    for (int stage = 0; stage < 3; ++stage) {
      const ModelSpec own = shard_spec(spec, make_shard(config, stage, 1, 3));
      CHECK(own.embed.members.size() == (stage == 0 ? 1 : 0));
      CHECK(own.final_norm.size == (stage == 2 ? 16 : 0));
      REQUIRE(own.lm_head.members.size() == (stage == 2 ? 1 : 0));
      if (stage == 2) CHECK(own.lm_head.members[0].tensor == (tied ? "model.embed_tokens.weight" : "lm_head.weight"));
      for (const LayerSpec& layer : own.layers) names.push_back(layer.down.name);
    }
    CHECK(names == std::vector<std::string>{"layers.0.down", "layers.1.down", "layers.2.down", "layers.3.down",
                                            "layers.4.down"});
  }
}

TEST_CASE("cuts known by hand", "[model]") {
  const auto shard = [](const char* name, int rank, int ranks) {
    const auto it =
        std::find_if(kPublished.begin(), kPublished.end(), [&](const Shape& s) { return s.name == std::string(name); });
    REQUIRE(it != kPublished.end());
    return make_shard(config_of(*it), rank, ranks);
  };
  CHECK(shard("Qwen2.5-72B", 0, 2).inner == Range{0, 58 * 256});
  CHECK(shard("Qwen2.5-72B", 1, 2).inner == Range{58 * 256, 29568});
  CHECK(shard("Qwen2.5-72B", 3, 8).heads == Range{24, 32});
  CHECK(shard("Qwen2.5-72B", 3, 8).kv_heads == Range{3, 4});
  CHECK(shard("Qwen2.5-0.5B", 1, 2).heads == Range{7, 14});
  CHECK(shard("Qwen2.5-1.5B", 2, 4).heads == Range{6, 9});  // two ranks hold a kv head, three query heads each
  CHECK(shard("Qwen2.5-1.5B", 2, 4).kv_heads == Range{1, 2});
  CHECK(shard("Qwen2.5-7B", 7, 8).heads == Range{24, 28});  // seven query heads in three and four
  CHECK(shard("Qwen2.5-7B", 6, 8).heads == Range{21, 24});
  CHECK(shard("Qwen3-32B", 0, 3).kv_heads == Range{0, 2});
  CHECK(shard("Qwen3-32B", 2, 3).kv_heads == Range{5, 8});
  CHECK(shard("Qwen3-8B", 1, 8).vocab == Range{18944, 37952});
}

std::string refusal(const Config& config, int rank, int ranks, int stages = 1) {
  return test::error_of(Code::Usage, [&] { make_shard(config, rank, ranks, stages); });
}

TEST_CASE("what cannot be split is named", "[model]") {
  const Config small = config_of({"", 16, 4, 2, 8, 24, 32});
  CHECK_THAT(refusal(small, 0, 8), Catch::Contains("-tp 8") && Catch::Contains("num_attention_heads is 4"));
  const Config narrow = config_of({"", 16, 8, 8, 8, 3, 32});
  CHECK_THAT(refusal(narrow, 0, 4), Catch::Contains("-tp 4") && Catch::Contains("intermediate_size is 3"));
  CHECK_THAT(refusal(small, 2, 2), Catch::Contains("no rank 2"));
  CHECK_THAT(refusal(small, 0, 0), Catch::Contains("-tp 0"));
  CHECK_THAT(refusal(small, 4, 2, 2), Catch::Contains("no rank 4"));
  CHECK_THAT(refusal(small, 0, 1, 0), Catch::Contains("-pp 0"));
  CHECK_THAT(refusal(small, 0, 2, 2), Catch::Contains("-pp 2") && Catch::Contains("num_hidden_layers is 1"));
}

}  // namespace
}  // namespace glyd::model
