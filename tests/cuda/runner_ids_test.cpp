// The ids that a CUDA runner chooses: those of its logits, or why there is none.

#include <algorithm>
#include <random>

#include "cuda/device.h"
#include "cuda/runner_models.h"
#include "runner/logits.h"
#include "support/fixtures.h"

using namespace glyd;
using namespace glyd::test;
using runner::WeightFormat;

namespace {

constexpr std::int32_t kVocab = 4096;
constexpr std::int32_t kNanToken = 7;

// The ids that the host would choose from these rows.
Ids chosen_by_host(Rows rows, const std::vector<bool>& allowed) {
  const std::vector<std::int32_t> forbidden = runner::forbidden_ids(allowed);
  Ids ids;
  for (auto& row : rows) ids.push_back(runner::choose_id(row, forbidden));
  return ids;
}

std::vector<bool> half_of_the_vocabulary() {
  std::vector<bool> allowed(kVocab);
  std::mt19937 random(11);
  for (std::size_t i = 0; i < allowed.size(); ++i) allowed[i] = random() % 2 == 0;
  return allowed;
}

// The model with NaN for token 7's embedding.
std::filesystem::path nan_model(const TempDir& dir, const std::string& model) {
  const auto path = dir.path() / model;
  copy_model(shipped_model(model), path);
  const std::int64_t width = model::load_config(path).hidden_size;
  std::string row;
  for (std::int64_t i = 0; i < width; ++i) row += "\xC0\x7F";  // 0x7FC0
  overwrite_tensor(path, "model.embed_tokens.weight", kNanToken * width * 2, row);
  return path;
}

std::vector<std::int32_t> greedy_ids(runner::Runner& runner, const std::vector<Part>& parts) {
  runner::Batch batch = make_batch(parts);
  batch.greedy.assign(batch.logits_rows.size(), 1);
  return runner.step(batch).ids;
}

}  // namespace

TEST_CASE("the ids a runner chooses are those of its logits", "[cuda][gpu][runner]") {
  GLYD_NEEDS_GPU();
  for (const std::string& model : kShippedModels) {
    for (const bool eager : {false, true}) {
      for (const auto& allowed : {std::vector<bool>{}, half_of_the_vocabulary()}) {
        INFO(model << (eager ? ", eager" : ", graphs") << (allowed.empty() ? "" : ", half of the vocabulary"));
        const auto runner = load_gpu(shipped_model(model), {.eager = eager, .allowed = allowed});
        std::vector<Ids> sequences, tables;
        for (std::int32_t s = 0; s < 33; ++s) {
          sequences.push_back(random_ids(4, kVocab, static_cast<unsigned>(s)));
          tables.push_back({40 - s});
        }
        for (const std::size_t size : {1, 2, 8, 9, 17, 33}) {
          for (const std::int32_t begin : {0, 3}) {  // prompts, then a token of each
            std::vector<Part> parts;
            for (std::size_t s = 0; s < size; ++s)
              parts.push_back({&sequences[s], &tables[s], begin, begin == 0 ? 3 : 4});
            INFO(size << " sequences from token " << begin);
            const Rows rows = run_step(*runner, parts);
            const Ids expected = chosen_by_host(rows, allowed);

            runner::Batch batch = make_batch(parts);
            batch.greedy.assign(rows.size(), 1);
            const runner::StepResult all = runner->step(batch);
            CHECK(all.ids == expected);
            CHECK(all.logits.empty());

            // Of every third row the logits.
            for (std::size_t i = 0; i < rows.size(); ++i) batch.greedy[i] = i % 3 == 0 ? 0 : 1;
            const runner::StepResult mixed = runner->step(batch);
            REQUIRE(mixed.ids.size() == rows.size());
            REQUIRE(mixed.logits.size() == (rows.size() + 2) / 3 * kVocab);
            Rows given, wanted;
            for (std::size_t i = 0; i < rows.size(); ++i) {
              CHECK(mixed.ids[i] == (i % 3 == 0 ? runner::kNoId : expected[i]));
              if (i % 3 != 0) continue;
              const auto at = mixed.logits.begin() + static_cast<std::ptrdiff_t>(i / 3) * kVocab;
              given.emplace_back(at, at + kVocab);
              wanted.push_back(rows[i]);
            }
            CHECK(difference(given, wanted) == "");
          }
        }
      }
    }
  }
}

TEST_CASE("a row that is not finite is said to be, and touches no other", "[cuda][gpu][runner]") {
  GLYD_NEEDS_GPU();
  const TempDir dir;
  const auto path = nan_model(dir, "tiny-austen-qwen2");  // its head is another matrix
  for (const WeightFormat weights : {WeightFormat::Bf16, WeightFormat::Packed}) {
    INFO((weights == WeightFormat::Packed ? "packed" : "plain"));
    const auto runner = load_gpu(path, {.weights = weights});
    const Ids good = random_ids(70, kNanToken, 1), other = random_ids(70, kNanToken, 2), bad(70, kNanToken);
    const Ids tables[] = {blocks_from(10, 70), blocks_from(20, 70), blocks_from(30, 70)}, fresh = blocks_from(50, 70);
    for (const std::int32_t end : {1, 20, 70}) {  // the longest prompts by cuBLAS
      INFO(end << " tokens of each");
      const std::vector<Part> parts{
          {&good, &tables[0], 0, end}, {&bad, &tables[1], 0, end}, {&other, &tables[2], 0, end}};
      const std::vector<std::int32_t> ids = greedy_ids(*runner, parts);
      REQUIRE(std::ssize(ids) == 3 * end);
      for (std::int32_t i = 0; i < 3 * end; ++i)
        CHECK((ids[static_cast<std::size_t>(i)] == runner::kNotFinite) == (i / end == 1));
      if (3 * end > 128) continue;
      Rows rows = run_step(*runner, parts);
      rows.erase(rows.begin() + end, rows.begin() + 2 * end);
      Rows expected = run_step(*runner, {{&good, &fresh, 0, end}});
      for (auto& row : run_step(*runner, {{&other, &fresh, 0, end}})) expected.push_back(std::move(row));
      CHECK(difference(rows, expected) == "");
    }

    // Its keys and values stay in the blocks; who gets these next must not see them.
    const auto prompt_and_decode = [&](const Ids& table) {
      Rows rows = run_step(*runner, {{&good, &table, 0, 10}});
      for (std::int32_t i = 10; i < 40; ++i) rows.push_back(run_step(*runner, {{&good, &table, i, i + 1}})[0]);
      return rows;
    };
    CHECK(difference(prompt_and_decode(tables[1]), prompt_and_decode(fresh)) == "");
  }
}

TEST_CASE("logits of ids that are not allowed may be anything", "[cuda][gpu][runner]") {
  GLYD_NEEDS_GPU();
  const TempDir dir;
  const auto path = nan_model(dir, "tiny-austen");  // its head is the embedding
  const Ids ids = random_ids(20, kNanToken, 3), table = blocks_from(0, 20);
  const std::vector<Part> parts{{&ids, &table, 0, 20}};
  std::vector<bool> allowed(kVocab, true);
  CHECK(greedy_ids(*load_gpu(path, {.allowed = allowed}), parts) == Ids(20, runner::kNotFinite));
  allowed[kNanToken] = false;
  const Ids expected = greedy_ids(*load_gpu(shipped_model("tiny-austen"), {.allowed = allowed}), parts);
  CHECK(*std::min_element(expected.begin(), expected.end()) >= 0);
  CHECK(greedy_ids(*load_gpu(path, {.allowed = allowed}), parts) == expected);
  allowed.assign(kVocab, false);
  CHECK(greedy_ids(*load_gpu(path, {.allowed = allowed}), parts) == Ids(20, runner::kAllMasked));
}
