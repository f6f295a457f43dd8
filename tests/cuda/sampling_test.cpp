// Sampling on the GPU against engine::Sampler and against the definition: candidates cut in the order of likelihood,
// drawn in the order of ids. Weights are exp() of two libraries, so a row whose answer hangs on less than a millionth
// of the total is left out.

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <random>

#include "cuda/device.h"
#include "cuda/host_product.h"
#include "cuda/pointwise/pointwise.h"
#include "engine/sampler.h"

namespace glyd::test {
namespace {

using engine::SamplingParams;
using text::TokenId;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr double kClose = 1e-6;

struct Row {
  SamplingParams params;
  std::vector<TokenId> prompt, output;
  std::int64_t step = 0;
};

struct Expected {
  TokenId id = 0;
  std::size_t kept_by_rank = 0;  // by top-k and top-p, before min-p
  bool close = false;            // a boundary is too close to call
};

bool within(double a, double b, double total) { return std::abs(a - b) < kClose * total; }

// `logits`: masked, penalties applied.
Expected expected(const std::vector<float>& logits, const SamplingParams& params, std::int64_t step) {
  std::vector<TokenId> order;
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (logits[i] != -kInfinity) order.push_back(static_cast<TokenId>(i));
  const auto logit = [&](TokenId id) { return logits[static_cast<std::size_t>(id)]; };
  std::sort(order.begin(), order.end(),
            [&](TokenId a, TokenId b) { return logit(a) > logit(b) || (logit(a) == logit(b) && a < b); });
  Expected result;
  if (params.temperature == 0) {
    result.id = order[0];
    return result;
  }
  const auto weight = [&](TokenId id) {
    return std::exp(std::max((static_cast<double>(logit(id)) - logit(order[0])) / params.temperature, -1000.0));
  };
  const auto total = [&](const std::vector<TokenId>& ids) {
    return std::accumulate(ids.begin(), ids.end(), 0.0, [&](double sum, TokenId id) { return sum + weight(id); });
  };
  if (params.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(params.top_k)));
  if (params.top_p < 1) {
    const double all = total(order), target = params.top_p * all;
    double reached = 0;
    std::size_t kept = 0;
    while (kept < order.size() && reached < target) {
      reached += weight(order[kept++]);
      result.close = result.close || within(reached, target, all);
    }
    order.resize(std::max<std::size_t>(kept, 1));
  }
  result.kept_by_rank = order.size();
  std::erase_if(order, [&](TokenId id) {
    result.close = result.close || (weight(id) != 1 && within(weight(id), params.min_p, params.min_p));
    return weight(id) < params.min_p;
  });
  std::sort(order.begin(), order.end());
  const double all = total(order);
  const double uniform =
      static_cast<double>(engine::random_bits(params.seed, static_cast<std::uint64_t>(step)) >> 11) * 0x1p-53;
  double reached = 0;
  bool chosen = false;
  for (const TokenId id : order) {
    reached += weight(id);
    result.close = result.close || (within(reached, uniform * all, all) && id != order.back());
    if (!chosen && uniform * all < reached) chosen = true, result.id = id;
  }
  return result;
}

class Device {
 public:
  Device(const HostProduct& product, const std::vector<bool>& allowed, std::int64_t vocab, const std::vector<Row>& rows)
      : product_(product), allowed_(std::vector<std::uint8_t>(allowed.begin(), allowed.end())), vocab_(vocab) {
    std::vector<cuda::RowSampling> parameters;
    std::vector<cuda::TouchedId> touched;
    for (const Row& row : rows) {
      const SamplingParams& p = row.params;
      cuda::RowSampling r;
      r.temperature = p.temperature, r.top_k = p.top_k, r.top_p = p.top_p, r.min_p = p.min_p;
      r.repetition_penalty = p.repetition_penalty, r.frequency_penalty = p.frequency_penalty;
      r.presence_penalty = p.presence_penalty;
      r.random = engine::random_bits(p.seed, static_cast<std::uint64_t>(row.step));
      std::map<TokenId, int> counts;
      for (const TokenId id : row.prompt) counts[id] += 0;
      for (const TokenId id : row.output) counts[id] += 1;
      r.touched = static_cast<std::int32_t>(touched.size());
      for (const auto& [id, count] : counts) touched.push_back({id, count});
      r.touched_end = static_cast<std::int32_t>(touched.size());
      parameters.push_back(r);
    }
    parameters_.emplace(parameters);
    touched_.emplace(at_least_one(touched));
  }

  std::vector<std::int32_t> sample(int first, int tokens) {
    DeviceBuffer<std::int32_t> ids(static_cast<std::size_t>(tokens));
    DeviceBuffer<std::uint8_t> workspace(cuda::sample_workspace(tokens, vocab_));
    CUDA_REQUIRE(cuda::sample(product_.from(first), allowed_.data(), parameters_->data() + first, touched_->data(),
                              tokens, vocab_, ids.data(), workspace.data(), nullptr));
    return ids.to_host();
  }

 private:
  DeviceProduct product_;
  DeviceBuffer<std::uint8_t> allowed_;
  std::int64_t vocab_;
  std::optional<DeviceBuffer<cuda::RowSampling>> parameters_;
  std::optional<DeviceBuffer<cuda::TouchedId>> touched_;
};

std::vector<float> logits_of(const HostProduct& product, std::int64_t row, std::int64_t vocab) {
  std::vector<float> logits;
  for (std::int64_t id = 0; id < vocab; ++id) logits.push_back(product.at(row, id));
  return logits;
}

template <class T, std::size_t N>
T pick(std::mt19937& random, const std::array<T, N>& from) {
  return from[random() % N];
}

Row random_row(std::mt19937& random, std::int64_t vocab) {
  Row row;
  SamplingParams& p = row.params;
  p.temperature = pick(random, std::array{0.0, 0.2, 0.7, 1.0, 1.0, 1.5, 3.0});
  p.top_k = pick(random, std::array{0, 0, 1, 5, 20, 50, 1000, 2000, 5000, static_cast<int>(vocab)});
  p.top_p = pick(random, std::array{1.0, 1.0, 0.95, 0.8, 0.3, 1e-6});
  p.min_p = pick(random, std::array{0.0, 0.0, 0.05, 0.3, 1.0});
  if (random() % 2 == 0) {
    p.repetition_penalty = pick(random, std::array{1.0, 1.1, 1.5, 0.8});
    p.frequency_penalty = pick(random, std::array{0.0, 0.3, -0.2});
    p.presence_penalty = pick(random, std::array{0.0, 0.5, -1.0});
  }
  p.seed = random();
  row.step = static_cast<std::int64_t>(random() % 1000);
  const auto ids = [&](std::size_t most) {
    std::vector<TokenId> list(random() % most);
    for (TokenId& id : list) id = static_cast<TokenId>(random() % static_cast<unsigned>(vocab));
    if (list.size() > 3) list[2] = list[0], list[3] = list[0];
    return list;
  };
  row.prompt = ids(300), row.output = ids(200);
  return row;
}

struct Tally {
  int compared = 0, close = 0, left_to_host = 0;
};

void check_rows(std::mt19937& random, std::int64_t vocab, int tokens, Kind kind, float deviation, Tally& tally) {
  const HostProduct product(random, kind, tokens, (vocab + 7) / 8 * 8, 3, 64, deviation);
  std::vector<bool> allowed(static_cast<std::size_t>(vocab), true);
  for (std::int64_t id = vocab - vocab / 50; id < vocab; ++id) allowed[static_cast<std::size_t>(id)] = false;
  std::vector<Row> rows;
  for (int i = 0; i < tokens; ++i) rows.push_back(random_row(random, vocab));
  Device device(product, allowed, vocab, rows);
  const auto found = device.sample(0, tokens);
  const engine::Sampler sampler(allowed);

  for (int i = 0; i < tokens; ++i) {
    const Row& row = rows[static_cast<std::size_t>(i)];
    const SamplingParams& p = row.params;
    const std::int32_t id = found[static_cast<std::size_t>(i)];
    INFO("row " << i << " of " << tokens << ", vocabulary " << vocab << ", deviation " << deviation << ", temperature "
                << p.temperature << ", top-k " << p.top_k << ", top-p " << p.top_p << ", min-p " << p.min_p
                << ", penalties " << p.repetition_penalty << " " << p.frequency_penalty << " " << p.presence_penalty);
    std::vector<float> penalised = logits_of(product, i, vocab);
    SamplingParams greedy = p;
    greedy.temperature = 0;
    sampler.sample(penalised, greedy, row.prompt, row.output, row.step);  // applies them in place
    const Expected want = expected(penalised, p, row.step);
    CHECK(device.sample(i, 1)[0] == id);  // alone: the same
    if (id == cuda::kTooManyCandidates) {
      ++tally.left_to_host;
      CHECK((p.top_k > 2048 || want.kept_by_rank >= 1024));
    } else if (want.close) {
      ++tally.close;
    } else {
      ++tally.compared;
      CHECK(id == want.id);
    }

    std::vector<float> logits = logits_of(product, i, vocab);
    const TokenId by_engine = sampler.sample(logits, p, row.prompt, row.output, row.step);
    if (!want.close) CHECK(by_engine == want.id);
    if (!want.close && id != cuda::kTooManyCandidates) CHECK(id == by_engine);
  }
}

TEST_CASE("sample chooses as the engine's sampler does", "[cuda][gpu][pointwise][sampling]") {
  GLYD_NEEDS_GPU();
  std::mt19937 random(11);
  Tally tally;
  for (const float deviation : {0.01f, 1.0f, 3.0f, 10.0f}) {
    for (const Kind kind : {Kind::Partials, Kind::Values}) {  // bf16 values: many ties
      check_rows(random, 1000, 64, kind, deviation, tally);
      check_rows(random, 1003, 33, Kind::Partials, deviation, tally);
      check_rows(random, 20000, 48, kind, deviation, tally);
    }
  }
  check_rows(random, 151936, 20, Kind::Partials, 1.5f, tally);
  check_rows(random, 600000, 4, Kind::Partials, 1.5f, tally);
  INFO("compared " << tally.compared << ", too close " << tally.close << ", left to the host " << tally.left_to_host);
  CHECK(tally.compared > 700);
  CHECK(tally.close < 80);
  CHECK(tally.left_to_host < 250);
  WARN("compared " << tally.compared << ", too close " << tally.close << ", left to the host " << tally.left_to_host);
}

TEST_CASE("sample at the edges", "[cuda][gpu][pointwise][sampling]") {
  GLYD_NEEDS_GPU();
  std::mt19937 random(12);
  constexpr std::int64_t kVocab = 6000;
  constexpr int kRows = 12;
  HostProduct product(random, Kind::Partials, kRows, kVocab, 1, 8);
  std::vector<bool> allowed(kVocab, true);
  allowed[100] = false;
  std::vector<Row> rows(kRows);
  const auto fill = [&](int row, float value, std::int64_t from = 0) {
    for (std::int64_t id = from; id < kVocab; ++id) product.set(row, id, value);
  };
  for (int i = 0; i < kRows; ++i) rows[static_cast<std::size_t>(i)].params.seed = static_cast<std::uint64_t>(i);
  product.set(0, 5999, kNaN);
  product.set(1, 0, kInfinity);
  rows[1].params.temperature = 0;
  fill(2, -kInfinity), product.set(2, 100, 3);  // only a forbidden one
  product.set(3, 100, kNaN);                    // forbidden: no matter
  rows[3].params.top_k = 1;
  fill(4, 1), rows[4].params.top_k = 5;  // thousands of ties
  fill(5, -kInfinity, 1500), rows[5].params.top_k = 3;
  for (int id = 0; id < 1500; ++id) product.set(5, id, id == 7 ? -2.0f : -1.5f);
  fill(6, -kInfinity), product.set(6, 4321, -3e38f);
  rows[7].params.temperature = 1e-300;
  product.set(7, 2222, 3e38f), product.set(7, 2223, -3e38f);
  fill(8, -kInfinity), product.set(8, 10, -3e38f), product.set(8, 11, 3e38f);
  rows[8].params.temperature = 1e300;
  product.set(9, 42, kNaN), rows[9].prompt = {42}, rows[9].params.repetition_penalty = 2;
  fill(10, -5), product.set(10, 77, 3e38f), rows[10].output = {77}, rows[10].params.repetition_penalty = 1e-30;
  product.set(11, 1234, 50), product.set(11, 1235, 50), rows[11].params.min_p = 1;
  const auto found = Device(product, allowed, kVocab, rows).sample(0, kRows);
  const auto largest = [&](int row) {
    auto logits = logits_of(product, row, kVocab);
    return engine::Sampler(allowed).sample(logits, {.temperature = 0}, {}, {}, 0);
  };
  CHECK(found[0] == -1);
  CHECK(found[1] == -1);
  CHECK(found[2] == -2);
  CHECK(found[3] == largest(3));
  CHECK(found[4] == cuda::kTooManyCandidates);
  CHECK((found[5] >= 0 && found[5] <= 2));
  CHECK(found[6] == 4321);
  CHECK(found[7] == 2222);
  CHECK((found[8] == 10 || found[8] == 11));
  CHECK(found[9] == -1);
  CHECK(found[10] == 77);
  CHECK((found[11] == 1234 || found[11] == 1235));
}

TEST_CASE("sample draws ids as often as the softmax says", "[cuda][gpu][pointwise][sampling]") {
  GLYD_NEEDS_GPU();
  std::mt19937 random(13);
  constexpr int kRows = 2000, kVocab = 2048;
  HostProduct product(random, Kind::Partials, kRows, kVocab, 1, 8);
  std::vector<Row> rows(kRows);
  for (int row = 0; row < kRows; ++row) {
    for (int id = 0; id < kVocab; ++id)
      product.set(row, id, id % 512 == 3 ? std::log(1.0f + static_cast<float>(id / 512)) : -50);
    rows[static_cast<std::size_t>(row)].params.seed = 5;
    rows[static_cast<std::size_t>(row)].params.top_p = row % 2 == 0 ? 1 : 0.999;
    rows[static_cast<std::size_t>(row)].step = row;
  }
  std::array<int, 4> counts{};
  for (const std::int32_t id : Device(product, std::vector<bool>(kVocab, true), kVocab, rows).sample(0, kRows)) {
    REQUIRE(id % 512 == 3);
    ++counts[static_cast<std::size_t>(id / 512)];
  }
  for (int i = 0; i < 4; ++i) {
    const double p = (1 + i) / 10.0;
    CHECK(std::abs(counts[static_cast<std::size_t>(i)] - kRows * p) < 5 * std::sqrt(kRows * p * (1 - p)));
  }
}

}  // namespace
}  // namespace glyd::test
