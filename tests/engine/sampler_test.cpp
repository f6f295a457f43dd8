#include "engine/sampler.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "support/errors.h"

using namespace glyd;
using namespace glyd::engine;
using Catch::Contains;
using text::TokenId;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int kDraws = 40000;

Sampler all_allowed(std::size_t vocab) { return Sampler(std::vector<bool>(vocab, true)); }

TokenId sample(std::vector<float> logits, const SamplingParams& params, std::int64_t step = 0) {
  return all_allowed(logits.size()).sample(logits, params, {}, {}, step);
}

// How often each id comes up in kDraws steps.
std::vector<int> count(const std::vector<float>& logits, const SamplingParams& params) {
  const Sampler sampler = all_allowed(logits.size());
  std::vector<int> counts(logits.size());
  for (int step = 0; step < kDraws; ++step) {
    auto copy = logits;
    ++counts[static_cast<std::size_t>(sampler.sample(copy, params, {}, {}, step))];
  }
  return counts;
}

std::set<TokenId> support(const std::vector<float>& logits, const SamplingParams& params) {
  const auto counts = count(logits, params);
  std::set<TokenId> ids;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) ids.insert(static_cast<TokenId>(i));
  }
  return ids;
}

// Within five standard deviations of a binomial; exactly none where the probability is 0.
void check_distribution(const std::vector<int>& counts, const std::vector<double>& probabilities) {
  REQUIRE(counts.size() == probabilities.size());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double p = probabilities[i], sigma = std::sqrt(kDraws * p * (1 - p));
    CAPTURE(i, counts[i], kDraws * p);
    CHECK(std::abs(counts[i] - kDraws * p) <= 5 * sigma);
  }
}

std::vector<float> logs(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

// The logits after one call that picks greedily: penalties are applied in place.
std::vector<float> penalised(std::vector<float> logits, SamplingParams params, const std::vector<TokenId>& prompt,
                             const std::vector<TokenId>& output) {
  params.temperature = 0;
  all_allowed(logits.size()).sample(logits, params, prompt, output, 0);
  return logits;
}

}  // namespace

TEST_CASE("temperature 0 takes the largest logit, the lowest id on ties, whatever else is set", "[sampler]") {
  CHECK(sample({1, 3, 2}, {.temperature = 0}) == 1);
  CHECK(sample({1, 3, 2, 3, 3}, {.temperature = 0}) == 1);
  CHECK(sample({-5, -5, -5}, {.temperature = 0}) == 0);
  CHECK(sample({-kInf, -1e30f, -kInf}, {.temperature = 0}) == 1);
  CHECK(sample({1, 3, 2, 3}, {.temperature = 0, .top_k = 3, .top_p = 0.9, .min_p = 0.1, .seed = 9}) == 1);
}

TEST_CASE("the random numbers are those of SplitMix64", "[sampler]") {
  // The published generator's first outputs for seed 0; mixing leaves the seed 0 as it is.
  CHECK(random_bits(0, 0) == 0xe220a8397b1dcdafu);
  CHECK(random_bits(0, 1) == 0x6e789e6aa1b965f4u);
  CHECK(random_bits(0, 2) == 0x06c45d188009454fu);
  // Unmixed, a seed one increment on would be the same stream one step ahead.
  CHECK(random_bits(0x9e3779b97f4a7c15u, 0) != random_bits(0, 1));
}

TEST_CASE("random numbers of neighbouring seeds and steps are independent", "[sampler]") {
  // Each pair of top bits (2 x 3 bits) must come up equally often: chi-square with 63 degrees of freedom, 99.99 % at
  // 112.
  for (const int seed_step : {0, 1}) {
    std::vector<int> counts(64);
    const int n = 64000;
    for (int i = 0; i < n; ++i) {
      const auto k = static_cast<std::uint64_t>(i);
      const auto a = seed_step ? random_bits(k, 5) : random_bits(77, k);
      const auto b = seed_step ? random_bits(k + 1, 5) : random_bits(77, k + 1);
      ++counts[(a >> 61) * 8 + (b >> 61)];
    }
    double chi2 = 0;
    for (const int c : counts) chi2 += (c - n / 64.0) * (c - n / 64.0) / (n / 64.0);
    CHECK(chi2 < 112);
    CHECK(chi2 > 25);  // nor suspiciously even
  }
}

TEST_CASE("ids come up as often as the softmax says", "[sampler]") {
  const std::vector<double> p = {0.5, 0.25, 0.125, 0.1, 0.025};
  check_distribution(count(logs(p), {.seed = 1}), p);
  SECTION("an offset of all logits changes nothing") {
    auto logits = logs(p);
    for (float& l : logits) l += 50;
    check_distribution(count(logits, {.seed = 2}), p);
  }
  SECTION("temperature divides the logits") {
    // Temperature 0.5 squares the probabilities, 2 takes their root.
    for (const double t : {0.5, 2.0}) {
      std::vector<double> q;
      for (const double x : p) q.push_back(std::pow(x, 1 / t));
      const double sum = std::accumulate(q.begin(), q.end(), 0.0);
      for (double& x : q) x /= sum;
      check_distribution(count(logs(p), {.temperature = t, .seed = 3}), q);
    }
  }
}

TEST_CASE("top-k keeps exactly k ids, renormalised, the lowest on ties", "[sampler]") {
  const std::vector<double> p = {0.1, 0.4, 0.2, 0.3};
  check_distribution(count(logs(p), {.top_k = 2, .seed = 4}), {0, 4.0 / 7, 0, 3.0 / 7});
  check_distribution(count(logs(p), {.top_k = 1, .seed = 4}), {0, 1, 0, 0});
  check_distribution(count(logs(p), {.top_k = 4, .seed = 4}), p);
  check_distribution(count(logs(p), {.top_k = 1000000, .seed = 4}), p);
  check_distribution(count(logs(p), {.top_k = 0, .seed = 4}), p);
  CHECK(support({1, 2, 2, 1, 2, 2}, {.top_k = 3}) == std::set<TokenId>{1, 2, 4});
  CHECK(support({2, 2, 2, 2}, {.top_k = 2}) == std::set<TokenId>{0, 1});
  CHECK(support({-kInf, 5, -kInf, 4}, {.top_k = 3}) == std::set<TokenId>{1, 3});
}

TEST_CASE("top-p keeps the smallest head that reaches p, at least one id", "[sampler]") {
  const std::vector<float> even(4, 0.0f);
  CHECK(support(even, {.top_p = 0.5}) == std::set<TokenId>{0, 1});  // reached exactly
  CHECK(support(even, {.top_p = 0.51}) == std::set<TokenId>{0, 1, 2});
  CHECK(support(even, {.top_p = 1e-12}) == std::set<TokenId>{0});
  CHECK(support(even, {.top_p = 1 - 1e-9}) == std::set<TokenId>{0, 1, 2, 3});
  CHECK(support(even, {.top_p = 1}) == std::set<TokenId>{0, 1, 2, 3});
  const std::vector<double> p = {0.1, 0.4, 0.2, 0.3};
  check_distribution(count(logs(p), {.top_p = 0.65, .seed = 5}), {0, 4.0 / 7, 0, 3.0 / 7});
  check_distribution(count(logs(p), {.top_p = 0.35, .seed = 5}), {0, 1, 0, 0});
  check_distribution(count(logs(p), {.top_p = 0.75, .seed = 5}), {0, 4.0 / 9, 2.0 / 9, 3.0 / 9});
  // After the temperature: at 1000 the four are almost even, so half takes two.
  CHECK(support(logs(p), {.temperature = 1000, .top_p = 0.49}) == std::set<TokenId>{1, 3});
}

TEST_CASE("top-p is computed on what top-k left", "[sampler]") {
  const auto logits = logs({0.4, 0.3, 0.2, 0.1});
  CHECK(support(logits, {.top_p = 0.5}) == std::set<TokenId>{0, 1});
  CHECK(support(logits, {.top_k = 2, .top_p = 0.5}) == std::set<TokenId>{0});  // 0.4 of 0.7
}

TEST_CASE("min-p drops what is less likely than its share of the likeliest", "[sampler]") {
  const auto logits = logs({0.4, 0.3, 0.2, 0.1});
  CHECK(support(logits, {.min_p = 0.0}) == std::set<TokenId>{0, 1, 2, 3});
  CHECK(support(logits, {.min_p = 0.24}) == std::set<TokenId>{0, 1, 2, 3});
  CHECK(support(logits, {.min_p = 0.26}) == std::set<TokenId>{0, 1, 2});
  CHECK(support(logits, {.min_p = 0.6}) == std::set<TokenId>{0, 1});
  CHECK(support(logits, {.min_p = 1}) == std::set<TokenId>{0});
  CHECK(support({3, 1, 3}, {.min_p = 1}) == std::set<TokenId>{0, 2});
  // After top-p: with min-p first only {0.4, 0.3} would be left, and 0.4 of 0.7 reaches 0.55.
  CHECK(support(logits, {.top_p = 0.55, .min_p = 0.6}) == std::set<TokenId>{0, 1});
  check_distribution(count(logits, {.top_p = 0.95, .min_p = 0.6, .seed = 6}), {4.0 / 7, 3.0 / 7, 0, 0});
}

TEST_CASE("on a large vocabulary the selections are those of a full sort", "[sampler]") {
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0, 2);
  const std::size_t vocab = 5000;
  const Sampler sampler = all_allowed(vocab);
  for (const SamplingParams params :
       {SamplingParams{.top_k = 50}, SamplingParams{.top_p = 0.6}, SamplingParams{.min_p = 0.02},
        SamplingParams{.temperature = 0.7, .top_k = 300, .top_p = 0.9, .min_p = 0.001}}) {
    std::vector<float> logits(vocab);
    for (float& l : logits) l = std::round(normal(random) * 8) / 8;  // many ties
    std::vector<std::size_t> order(vocab);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
    if (params.top_k > 0) order.resize(static_cast<std::size_t>(params.top_k));
    std::vector<double> p;
    for (const std::size_t id : order) p.push_back(std::exp(static_cast<double>(logits[id]) / params.temperature));
    const double total = std::accumulate(p.begin(), p.end(), 0.0);
    std::size_t keep = 0;
    for (double sum = 0; keep < p.size() && sum < params.top_p; ++keep) sum += p[keep] / total;
    while (keep > 1 && p[keep - 1] < params.min_p * p[0]) --keep;
    const std::set<std::size_t> expected(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(keep));
    REQUIRE(expected.size() > 10);
    REQUIRE(expected.size() < vocab);

    std::set<std::size_t> seen;
    int likeliest = 0;
    const int draws = 2000;
    for (int step = 0; step < draws; ++step) {
      auto copy = logits;
      const auto id = static_cast<std::size_t>(sampler.sample(copy, params, {}, {}, step));
      REQUIRE(expected.count(id) == 1);
      seen.insert(id);
      likeliest += id == order[0];
    }
    // And they are all in use: what the least likely have between them is drawn, the likeliest as often as it should.
    const double kept = std::accumulate(p.begin(), p.begin() + static_cast<std::ptrdiff_t>(keep), 0.0);
    const double q = p[0] / kept;
    CHECK(std::abs(likeliest - draws * q) <= 5 * std::sqrt(draws * q * (1 - q)) + 1e-9);
    CHECK(seen.size() > std::min<std::size_t>(expected.size() / 2, 500));
  }
}

TEST_CASE("the kept ids are laid end to end in ascending order", "[sampler]") {
  const std::vector<double> p = {0.1, 0.25, 0.02, 0.35, 0.05, 0.2, 0.03};
  const std::vector<TokenId> kept = {1, 3, 5};
  for (const SamplingParams params : {SamplingParams{.top_k = 3}, SamplingParams{.top_p = 0.75},
                                      SamplingParams{.min_p = 0.5}, SamplingParams{.top_k = 4, .min_p = 0.5}}) {
    for (std::uint64_t step = 0; step < 500; ++step) {
      double target = static_cast<double>(random_bits(params.seed, step) >> 11) * 0x1p-53 * 0.8;
      TokenId expected = kept.back();
      for (const TokenId id : kept) {
        if (target < p[static_cast<std::size_t>(id)]) {
          expected = id;
          break;
        }
        target -= p[static_cast<std::size_t>(id)];
      }
      CHECK(sample(logs(p), params, static_cast<std::int64_t>(step)) == expected);
    }
  }
}

TEST_CASE("the repetition penalty divides positive and multiplies negative logits, once an id", "[sampler]") {
  const SamplingParams params{.repetition_penalty = 1.1};
  const auto l = penalised({2, -2, 2, -2, 0, -kInf, 5}, params, {0, 1, 0, 1, 0, 5}, {0, 2, 2, 4});
  CHECK(l[0] == Approx(1.818182));
  CHECK(l[1] == Approx(-2.2));
  CHECK(l[2] == Approx(1.818182));
  CHECK(l[3] == -2);
  CHECK(l[4] == 0);
  CHECK(l[5] == -kInf);
  CHECK(l[6] == 5);
  // It decides: the penalised first id loses.
  std::vector<float> logits = {2, 1.9f};
  const std::vector<TokenId> prompt = {0};
  CHECK(all_allowed(2).sample(logits, {.temperature = 0, .repetition_penalty = 1.1}, prompt, {}, 0) == 1);
}

TEST_CASE("frequency and presence penalties count output tokens only", "[sampler]") {
  const std::vector<TokenId> prompt = {0, 0, 3}, output = {1, 2, 1, 1};
  const std::vector<float> logits = {1, 1, 1, 1};
  CHECK(penalised(logits, {.frequency_penalty = 0.5}, prompt, output) == std::vector<float>{1, -0.5, 0.5, 1});
  CHECK(penalised(logits, {.presence_penalty = 0.25}, prompt, output) == std::vector<float>{1, 0.75, 0.75, 1});
  CHECK(penalised(logits, {.frequency_penalty = 0.5, .presence_penalty = 0.25}, prompt, output) ==
        std::vector<float>{1, -0.75, 0.25, 1});
  CHECK(penalised(logits, {.frequency_penalty = -1}, prompt, output) == std::vector<float>{1, 4, 2, 1});
}

TEST_CASE("the repetition penalty comes before the other penalties", "[sampler]") {
  const auto l = penalised({2, 0}, {.repetition_penalty = 1.1, .frequency_penalty = 0.5}, {}, {0});
  CHECK(l[0] == Approx(1.818182 - 0.5));
}

TEST_CASE("extreme penalties leave finite numbers", "[sampler]") {
  const auto l = penalised({1e30f, -1e30f, 3e38f, 1, -kInf},
                           {.repetition_penalty = 1e-300, .frequency_penalty = 1e308, .presence_penalty = -1e308},
                           {0, 1}, {2, 2, 3, 4, 4});
  for (std::size_t i = 0; i < 4; ++i) CHECK(std::isfinite(l[i]));
  CHECK(l[4] == -kInf);
  for (const float x : penalised({1e30f, -1e30f, 0}, {.repetition_penalty = 1e300}, {0, 1, 2}, {}))
    CHECK(std::isfinite(x));
  for (const float x : penalised({0, 1}, {.presence_penalty = -1e308}, {}, {0, 1, 1})) CHECK(std::isfinite(x));
}

TEST_CASE("padding ids are never sampled, whatever their logits", "[sampler]") {
  std::vector<bool> allowed(200, true);
  for (std::size_t i = 150; i < 200; ++i) allowed[i] = false;
  allowed[0] = false;
  const Sampler sampler(allowed);
  for (const float padding : {0.0f, 1e30f, kInf, kNan}) {
    std::set<TokenId> seen;
    for (int step = 0; step < 10000; ++step) {
      std::vector<float> logits(200, 0.0f);
      for (std::size_t i = 0; i < 200; ++i) {
        if (!allowed[i]) logits[i] = padding;
      }
      seen.insert(sampler.sample(logits, {.seed = 8}, {}, {}, step));
    }
    CHECK(seen.size() == 149);  // every other id comes up
    CHECK(*seen.begin() == 1);
    CHECK(*seen.rbegin() == 149);
  }
  std::vector<float> logits(200, 0.0f);
  CHECK(sampler.sample(logits, {.temperature = 0}, {}, {}, 0) == 1);
}

TEST_CASE("a NaN, +inf or empty row is an error that names the step and the token", "[sampler]") {
  CHECK_THROWS_WITH(sample({0, kNan, 0}, {}, 17), Contains("step 17") && Contains("token 1") && Contains("nan"));
  CHECK_THROWS_WITH(sample({0, 0, kInf}, {.temperature = 0}, 4),
                    Contains("step 4") && Contains("token 2") && Contains("inf"));
  CHECK_THROWS_WITH(sample({-kInf, -kInf}, {}, 5), Contains("step 5") && Contains("2 tokens"));
  for (std::size_t at = 0; at < 40; ++at) {
    for (const float bad : {kNan, kInf}) {
      std::vector<float> row(40, 0.0f);
      row[at] = bad;
      CHECK_THROWS_WITH(sample(row, {}), Contains(fmt::format("token {} ", at)));
    }
    std::vector<float> row(40, 0.0f);
    row[at] = 1;
    CHECK(sample(row, {.temperature = 0}) == static_cast<TokenId>(at));
  }
  std::vector<float> logits = {1, 2};
  CHECK_THROWS_WITH(Sampler({false, false}).sample(logits, {}, {}, {}, 6), Contains("step 6"));
  CHECK_FALSE(test::error_of(Code::Runtime, [] { sample({kNan}, {}); }).empty());
}

TEST_CASE("extreme logits and temperatures give the sensible limit", "[sampler]") {
  CHECK(support({1e30f, -1e30f, -kInf}, {}) == std::set<TokenId>{0});
  CHECK(support({-kInf, -3e38f, -kInf}, {.top_p = 0.5}) == std::set<TokenId>{1});
  CHECK(support({3e38f, 3e38f, -3e38f}, {}) == std::set<TokenId>{0, 1});
  CHECK(support({1, 1.0001f, 1}, {.temperature = 1e-300}) == std::set<TokenId>{1});
  CHECK(support({1, 1.0001f, 1}, {.temperature = 5e-324, .top_k = 2, .min_p = 0.5}) == std::set<TokenId>{1});
  check_distribution(count({1, 5, 9}, {.temperature = 1e300, .seed = 12}), {1.0 / 3, 1.0 / 3, 1.0 / 3});
  check_distribution(count({-kInf, 0, 0}, {.seed = 13}), {0, 0.5, 0.5});
}

TEST_CASE("a draw depends on logits, parameters, seed and step alone", "[sampler]") {
  const std::vector<float> logits(100, 0.0f);
  const Sampler sampler = all_allowed(100);
  std::vector<TokenId> forward, backward;
  for (int step = 0; step < 50; ++step) forward.push_back(sample(logits, {.seed = 21}, step));
  for (int step = 49; step >= 0; --step) {
    auto neighbour = logits, own = logits;
    sampler.sample(neighbour, {.seed = 99}, {}, {}, step);
    backward.push_back(sampler.sample(own, {.seed = 21}, {}, {}, step));
  }
  std::reverse(backward.begin(), backward.end());
  CHECK(forward == backward);
  CHECK(std::set(forward.begin(), forward.end()).size() > 20);
  std::vector<TokenId> other;
  for (int step = 0; step < 50; ++step) other.push_back(sample(logits, {.seed = 22}, step));
  CHECK(forward != other);
}

TEST_CASE("values out of range are refused by name", "[sampler]") {
  const double nan = std::nan(""), inf = HUGE_VAL;
  CHECK_NOTHROW(check({}));
  CHECK_NOTHROW(check({.temperature = 0, .top_k = 1, .top_p = 1, .min_p = 1, .repetition_penalty = 0.5}));
  for (const double t : {-0.1, nan, inf}) CHECK_THROWS_WITH(check({.temperature = t}), Contains("temperature is"));
  CHECK_THROWS_WITH(check({.top_k = -1}), Contains("top-k is -1"));
  for (const double p : {0.0, -1.0, 1.5, nan}) CHECK_THROWS_WITH(check({.top_p = p}), Contains("top-p is"));
  for (const double p : {-0.1, 1.1, nan}) CHECK_THROWS_WITH(check({.min_p = p}), Contains("min-p is"));
  for (const double r : {0.0, -1.0, nan, inf})
    CHECK_THROWS_WITH(check({.repetition_penalty = r}), Contains("repeat-penalty is"));
  for (const double x : {nan, inf, -inf}) {
    CHECK_THROWS_WITH(check({.frequency_penalty = x}), Contains("frequency-penalty is"));
    CHECK_THROWS_WITH(check({.presence_penalty = x}), Contains("presence-penalty is"));
  }
  try {
    check({.top_k = -1});
  } catch (const Error& e) {
    CHECK(e.code() == Code::Usage);
  }
}
