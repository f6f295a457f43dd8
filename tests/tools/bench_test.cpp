// glyd-bench's JSON: complete, the same in every run, equal hashes for packed and plain weights.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "io/json.h"
#include "process.h"
#include "support/fixtures.h"

namespace glyd::test {
namespace {

using io::Json;

struct Shape {
  explicit Shape(const Json& changes = Json::object()) {
    write_file(dir.path() / "config.json", tiny_config("qwen3", changes).dump());
  }
  // Runs glyd-bench with made-up weights.
  Outcome bench(std::vector<std::string> arguments) const {
    Invocation invocation;
    invocation.argv = {"glyd-bench", dir.path().string(), "--random-weights", "-p", "20", "-n", "6", "-r", "3"};
    invocation.argv.insert(invocation.argv.end(), arguments.begin(), arguments.end());
    invocation.directory = dir.path();
    return run(invocation);
  }
  Json json(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"-o", "json"});
    const Outcome outcome = bench(arguments);
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    return io::parse_json(outcome.out, "glyd-bench");
  }
  TempDir dir;
};

// Large enough that packing shrinks it.
const Json kWide = {{"intermediate_size", 512}, {"vocab_size", 512}};

TEST_CASE("a benchmark's JSON holds every series and number of sequences, packed equal to plain", "[tools]") {
  const Shape shape(kWide);
  const Json j = shape.json({"--weights", "packed,bf16", "-npl", "1,4"});
  CHECK(j["model"]["random_weights"] == true);
  CHECK(j["model"]["parameters"].get<int>() > 8192);
  CHECK(j["device"]["id"] == "cpu");
  CHECK(j["device"]["read_bandwidth_gb_per_s"].get<double>() > 0);
  CHECK(j["options"]["by_turns"] == true);
  CHECK(j["commit"].get<std::string>().size() >= 7);
  REQUIRE(j["series"].size() == 2);
  const Json &packed = j["series"][0], &plain = j["series"][1];
  CHECK(packed["name"] == "packed");
  CHECK(plain["name"] == "bf16");
  CHECK(packed["weight_bytes"].get<int>() < plain["weight_bytes"].get<int>());
  CHECK(plain["bytes_per_step"].get<int>() <= plain["weight_bytes"].get<int>());
  CHECK(plain["weight_bytes"].get<int>() <= plain["memory_bytes"]["planned_weights"].get<int>());
  for (std::size_t p = 0; p < 2; ++p) {
    const Json &a = packed["results"].at(p), &b = plain["results"].at(p);
    const double parallel = a["npl"];
    CHECK(parallel == (p == 0 ? 1 : 4));
    CHECK(a["ids_hash"] == b["ids_hash"]);
    CHECK(a["logits_hash"] == b["logits_hash"]);
    for (const Json* r : {&a, &b}) {
      CHECK((*r)["repeatable"] == true);
      CHECK((*r)["generation_runs"].size() == 3);
      CHECK((*r)["prompt_runs"].size() == 3);
      const double rate = (*r)["generation_tokens_per_s"]["mean"];
      CHECK(rate > 0);
      CHECK((*r)["generation_tokens_per_s_a_sequence"].get<double>() == Approx(rate / parallel));
      double sum = 0;
      for (const Json& run : (*r)["generation_runs"]) sum += run.get<double>();
      CHECK(rate == Approx(sum / 3));
      // Mean of rates and mean of times are not reciprocals of each other, but near on the same three runs.
      CHECK((*r)["step_ms"].get<double>() >= Approx(1e3 * parallel / rate));
    }
  }
  CHECK(packed["results"][0]["ids_hash"] != packed["results"][1]["ids_hash"]);
  REQUIRE(j["ratios"].size() == 2);
  CHECK(j["ratios"][1]["npl"] == 4);
  CHECK(j["ratios"][1]["series"] == "packed");
  CHECK(j["ratios"][1]["over"] == "bf16");
  double ratio = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    ratio += packed["results"][1]["generation_runs"][i].get<double>() /
             plain["results"][1]["generation_runs"][i].get<double>() / 3;
  }
  CHECK(j["ratios"][1]["generation"]["mean"].get<double>() == Approx(ratio));
}

TEST_CASE("the same seed gives the same hashes, another seed, depth or prompt gives others", "[tools]") {
  const Shape shape;
  const auto hashes = [&](std::vector<std::string> arguments) {
    const Json result = shape.json(arguments)["series"][0]["results"][0];
    return std::pair(result["ids_hash"].get<std::string>(), result["logits_hash"].get<std::string>());
  };
  const auto first = hashes({});
  CHECK(first.first.size() == 16);
  CHECK(hashes({"-r", "1", "-t", "1"}) == first);
  CHECK(hashes({"-s", "2"}) != first);
  CHECK(hashes({"-d", "30"}) != first);
  // Depth and prompt are one context: where it is cut changes what is measured, not what is made.
  CHECK(hashes({"-d", "8", "-p", "12"}) == first);
}

TEST_CASE("series that do not fit together run one after the other, with the same outcome", "[tools]") {
  if (kSanitized) return;  // no limit on memory
  const Shape shape(Json{{"intermediate_size", 90000}});
  const std::vector<std::string> both = {"--weights", "packed,bf16", "-r", "1", "-n", "2"};
  const Outcome outcome = shape.bench(both);
  CHECK(outcome.exit_code == 0);
  CHECK_THAT(outcome.err, Catch::Contains("they run one after the other"));
  CHECK_THAT(outcome.out, Catch::Contains("they do not fit together") && Catch::Contains("packed / bf16"));
  const Json j = shape.json(both);
  CHECK(j["options"]["by_turns"] == false);
  CHECK(j["series"][0]["results"][0]["ids_hash"] == j["series"][1]["results"][0]["ids_hash"]);
}

}  // namespace
}  // namespace glyd::test
