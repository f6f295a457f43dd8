#include "model/rope.h"

#include <catch2/catch.hpp>

#include "base/log.h"
#include "support/errors.h"
#include "support/fixtures.h"

using namespace glyd;
using Catch::Matchers::Contains;
using io::Json;
using model::Config;
using model::Rope;

namespace {

Config parse(const Json& changes, const char* type = "qwen3") {
  log::set_level(log::Level::Error);  // one test below is about the warning; the others need not show it
  return model::parse_config(test::tiny_config(type, changes).dump(), "c.json");
}

std::string refusal(const Json& changes) {
  const std::string said = test::error_of(Code::Model, [&] { parse(changes); });
  if (!said.empty()) CHECK_THAT(said, Catch::Matchers::StartsWith("c.json: "));
  return said;
}

Rope yarn_rope() {
  Rope rope;
  rope.kind = Rope::Kind::Yarn;
  rope.theta = 1e6;
  rope.dim = 128;
  rope.factor = 4;
  rope.original_positions = 32768;
  return rope;
}

const Json kYarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};

}  // namespace

TEST_CASE("plain inverse frequencies are powers of theta", "[model]") {
  Rope rope;
  rope.dim = 8;
  const std::vector<double> inv = model::inverse_frequencies(rope);
  REQUIRE(inv.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) CHECK(inv[i] == Approx(std::pow(10.0, -static_cast<double>(i))).epsilon(1e-14));
  rope.kind = Rope::Kind::Linear;
  rope.factor = 4;
  CHECK(model::inverse_frequencies(rope)[1] == Approx(0.025).epsilon(1e-14));
}

TEST_CASE("YaRN's golden table", "[model]") {
  const std::vector<double> inv = model::inverse_frequencies(yarn_rope());
  REQUIRE(inv.size() == 64);
  const std::pair<std::size_t, double> golden[] = {{0, 1.0},
                                                   {22, 8.659643234e-03},
                                                   {23, 6.978305849e-03},
                                                   {24, 5.375321491e-03},
                                                   {28, 1.848276565e-03},
                                                   {32, 6.029411765e-04},
                                                   {39, 6.490394321e-05},
                                                   {40, 4.445698525e-05},
                                                   {63, 3.102344402e-07}};
  for (const auto& [i, value] : golden) {
    INFO(i);
    CHECK(inv[i] == Approx(value).epsilon(1e-9));
  }
}

TEST_CASE("llama3's golden table", "[model]") {
  Rope rope;
  rope.kind = Rope::Kind::Llama3;
  rope.theta = 5e5;
  rope.dim = 128;
  rope.factor = 8;
  rope.original_positions = 8192;
  const std::vector<double> inv = model::inverse_frequencies(rope);
  const std::pair<std::size_t, double> golden[] = {{28, 3.211445995e-03}, {29, 2.166570764e-03}, {30, 1.371893568e-03},
                                                   {31, 8.567514129e-04}, {32, 5.248461610e-04}, {33, 3.126937504e-04},
                                                   {34, 1.785078128e-04}, {35, 9.556212354e-05}, {63, 3.068925989e-07}};
  for (const auto& [i, value] : golden) {
    INFO(i);
    CHECK(inv[i] == Approx(value).epsilon(1e-9));
  }
}

TEST_CASE("the tables of the specification's tiny models T6 and T8", "[model]") {
  const Config t6 = parse({{"head_dim", 16}, {"rope_scaling", kYarn}}, "qwen2");
  const double yarn[] = {1,      0.237170824512628,    0.05,    0.00790569415042095,
                         0.0025, 0.000790569415042095, 0.00025, 0.0000790569415042095};
  const std::vector<double> inv6 = model::inverse_frequencies(t6.rope);
  REQUIRE(inv6.size() == 8);
  for (std::size_t i = 0; i < 8; ++i) CHECK(inv6[i] == Approx(yarn[i]).epsilon(1e-13));
  CHECK(t6.rope.attention_factor == Approx(1.138629436111989).epsilon(1e-15));

  const Config t8 = parse({{"head_dim", 16},
                           {"rope_scaling",
                            {{"rope_type", "llama3"},
                             {"factor", 8},
                             {"low_freq_factor", 1},
                             {"high_freq_factor", 4},
                             {"original_max_position_embeddings", 64}}}},
                          "llama");
  const double llama3[] = {1,       0.244384599435398,    0.0130422560438205, 0.00395284707521047,
                           0.00125, 0.000395284707521047, 0.000125,           0.0000395284707521047};
  const std::vector<double> inv8 = model::inverse_frequencies(t8.rope);
  REQUIRE(inv8.size() == 8);
  for (std::size_t i = 0; i < 8; ++i) CHECK(inv8[i] == Approx(llama3[i]).epsilon(1e-13));
  CHECK(t8.rope.attention_factor == 1.0);
  CHECK(t8.max_positions == 256);
}

TEST_CASE("YaRN's attention factor: given, from mscale, or computed", "[model]") {
  const auto with = [](Json extra) {
    Json yarn = kYarn;
    yarn.update(extra);
    return parse({{"rope_scaling", yarn}}).rope.attention_factor;
  };
  CHECK(with({{"factor", 2}}) == Approx(1.069314718).epsilon(1e-9));
  CHECK(with({{"factor", 8}}) == Approx(1.207944154).epsilon(1e-9));
  CHECK(with({{"factor", 1}}) == 1.0);
  CHECK(with({{"attention_factor", 1.5}}) == 1.5);
  CHECK(with({{"attention_factor", nullptr}}) == Approx(1.138629436111989));
  // (0.1 * 0.5 * ln 4 + 1) / (0.1 * 1 * ln 4 + 1)
  CHECK(with({{"mscale", 0.5}, {"mscale_all_dim", 1.0}}) ==
        Approx(1.0693147180559945 / 1.138629436111989).epsilon(1e-14));
  CHECK(with({{"mscale", 0.5}}) == Approx(1.138629436111989));
  CHECK(with({{"mscale", 0.5}, {"mscale_all_dim", 0}}) == Approx(1.138629436111989));
}

TEST_CASE("old and new spellings of the same scaling give the same tables", "[model]") {
  Json legacy = kYarn, parameters = kYarn;
  legacy["type"] = legacy["rope_type"], legacy.erase("rope_type");
  parameters["rope_theta"] = 10000.0;
  Json changed = {{"rope_parameters", parameters}};
  const Config expected = parse({{"rope_scaling", kYarn}});
  REQUIRE(expected.rope.kind == Rope::Kind::Yarn);
  CHECK(expected.max_positions == 256);  // 64 * 4
  const Json variants[] = {
      {{"rope_scaling", legacy}},
      {{"rope_parameters", parameters}},
      {{"rope_parameters", parameters}, {"rope_scaling", legacy}},
      {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 10000}}}, {"rope_scaling", kYarn}},
      {{"rope_parameters", kYarn}, {"rope_scaling", {{"rope_type", "default"}}}},
      {{"rope_parameters", {{"full_attention", parameters}, {"sliding_attention", {{"rope_type", "default"}}}}}}};
  for (const Json& variant : variants) {
    INFO(variant.dump());
    const Config c = parse(variant);
    CHECK(c.rope.kind == Rope::Kind::Yarn);
    CHECK(model::inverse_frequencies(c.rope) == model::inverse_frequencies(expected.rope));
    CHECK(c.rope.attention_factor == expected.rope.attention_factor);
    CHECK(c.max_positions == 256);
  }
  for (const Json& plain : {Json(nullptr), Json::object(), Json{{"rope_type", "default"}}, Json{{"type", nullptr}}}) {
    INFO(plain.dump());
    CHECK(parse({{"rope_scaling", plain}}).rope.kind == Rope::Kind::Default);
  }
}

TEST_CASE("theta is looked for in both places, and they must agree", "[model]") {
  const auto theta = [](Json changes) {
    Json config = test::tiny_config("qwen3");
    config.erase("rope_theta");
    config.update(changes);
    return model::parse_config(config.dump(), "c.json").rope.theta;
  };
  CHECK(theta(Json::object()) == 10000.0);
  CHECK(theta({{"rope_theta", 5e5}}) == 5e5);
  CHECK(theta({{"rope_parameters", {{"rope_theta", 5e6}}}}) == 5e6);
  CHECK(theta({{"rope_theta", 1000000}, {"rope_parameters", {{"rope_theta", 1000000.0}}}}) == 1e6);
  CHECK_THAT(refusal({{"rope_parameters", {{"rope_theta", 5e6}}}}),
             Contains("rope_theta") && Contains("10000") && Contains("5000000"));
}

TEST_CASE("part of a head may be rotated", "[model]") {
  CHECK(parse({{"head_dim", 8}, {"partial_rotary_factor", 0.5}}).rope.dim == 4);
  CHECK(parse({{"head_dim", 8}, {"rope_parameters", {{"partial_rotary_factor", 0.25}}}}).rope.dim == 2);
  CHECK_THAT(refusal({{"head_dim", 8}, {"partial_rotary_factor", 0.4}}),
             Contains("partial_rotary_factor") && Contains("3 dimensions"));
  CHECK_THAT(refusal({{"partial_rotary_factor", 0}}), Contains("partial_rotary_factor"));
  CHECK_THAT(refusal({{"partial_rotary_factor", 2}}), Contains("partial_rotary_factor"));
}

TEST_CASE("linear scaling divides positions", "[model]") {
  const Config c = parse({{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}});
  CHECK(c.rope.kind == Rope::Kind::Linear);
  CHECK(c.rope.factor == 2.0);
  CHECK(c.max_positions == 256);
}

TEST_CASE("the context of YaRN is original * factor, the explicit factor wins", "[model]") {
  const Config qwen3 =
      parse({{"max_position_embeddings", 40960},
             {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}}}});
  CHECK(qwen3.max_positions == 131072);
  CHECK(qwen3.rope.factor == 4.0);
  const Config derived = parse({{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}}});
  CHECK(derived.rope.original_positions == 256);
  CHECK(derived.max_positions == 1024);
}

TEST_CASE("scaling that is damaged or not implemented is refused with its key", "[model]") {
  const auto scaled = [](const Json& scaling) { return refusal({{"rope_scaling", scaling}}); };
  for (const char* kind : {"dynamic", "longrope", "mrope", "su", "Yarn", ""}) {
    INFO(kind);
    CHECK_THAT(scaled({{"rope_type", kind}, {"factor", 2}}),
               Contains("rope_type is \"" + std::string(kind) + "\"") && Contains("yarn"));
  }
  for (const char* kind : {"linear", "yarn", "llama3"}) {
    INFO(kind);
    CHECK_THAT(scaled({{"rope_type", kind}}), Contains("rope_scaling.factor is missing"));
    CHECK_THAT(scaled({{"rope_type", kind}, {"factor", "4"}}), Contains("rope_scaling.factor is \"4\""));
    CHECK_THAT(scaled({{"rope_type", kind}, {"factor", 0.5}}), Contains("rope_scaling.factor is 0.5"));
  }
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8},
                       {"low_freq_factor", 1},
                       {"high_freq_factor", 4},
                       {"original_max_position_embeddings", 64}};
  CHECK(scaled(llama3).empty());
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    INFO(key);
    Json part = llama3;
    part.erase(key);
    CHECK_THAT(scaled(part), Contains(std::string(key) + " is missing"));
  }
  Json flat = llama3;
  flat["high_freq_factor"] = 1;
  CHECK_THAT(scaled(flat), Contains("high_freq_factor is 1") && Contains("above low_freq_factor"));
  CHECK_THAT(scaled("yarn"), Contains("rope_scaling is \"yarn\"") && Contains("object"));
  CHECK_THAT(scaled({{"rope_type", 4}}), Contains("rope_type is 4"));
  CHECK_THAT(scaled({{"rope_type", "yarn"}, {"type", "linear"}, {"factor", 2}}),
             Contains("'rope_type'") && Contains("\"linear\"") && Contains("\"yarn\""));
  CHECK_THAT(refusal({{"rope_parameters", {{"rope_type", "yarn"}, {"factor", 2}}}, {"rope_scaling", {{"factor", 4}}}}),
             Contains("'factor' is given as 2 and as 4"));
  CHECK_THAT(refusal({{"rope_parameters", {{"sliding_attention", {{"rope_type", "default"}}}}}}),
             Contains("full_attention"));
  CHECK_THAT(refusal({{"rope_theta", 1}}), Contains("rope_theta is 1"));
  CHECK_THAT(refusal({{"rope_theta", "1e6"}}), Contains("rope_theta"));
  Json slow = kYarn;
  slow["beta_fast"] = 0.5;
  CHECK_THAT(scaled(slow), Contains("beta_fast"));
  Json far = kYarn;
  far["factor"] = 1e9;
  CHECK_THAT(scaled(far), Contains("rope_scaling.factor") && Contains("beyond the limit"));
}
