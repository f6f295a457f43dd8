// Runs every tests/cases/*.json: a model described, command lines, what each must print. Adding a case is adding a
// file.

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <set>
#include <sstream>

#include "base/text.h"
#include "case_model.h"
#include "io/json.h"
#include "process.h"
#include "support/fixtures.h"

namespace glyd::test {
namespace {

namespace fs = std::filesystem;
using io::Json;

constexpr std::size_t kLongestErrorLine = 700;  // bytes

std::string filled(std::string text, const fs::path& model, const fs::path& scratch) {
  const auto replace = [&](const std::string& what, const std::string& by) {
    for (std::size_t at; (at = text.find(what)) != std::string::npos;) text.replace(at, what.size(), by);
  };
  replace("{model}", model.string());
  replace("{tmp}", scratch.string());
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// A failure says so in one line that a person can act on, and nothing else comes out.
void check_error(const Outcome& outcome, const Json& expect) {
  if (!expect.contains("stdout") && !expect.contains("stdout_contains") && !expect.contains("lines"))
    CHECK(outcome.out.empty());
  std::vector<std::string> errors;
  for (const std::string& line : lines_of(outcome.err)) {
    if (line.starts_with("error: ")) errors.push_back(line);
  }
  REQUIRE(errors.size() == 1);
  CHECK(errors[0].size() <= kLongestErrorLine);
  CHECK(printable(errors[0]) == errors[0]);
  for (const Json& part : expect.value("error", Json::array())) {
    INFO("the error line should contain " << part);
    CHECK(errors[0].find(part.get<std::string>()) != std::string::npos);
  }
}

void check_logits(const std::string& out, const Json& expect) {
  std::vector<std::pair<int, double>> rows;
  for (const std::string& line : lines_of(out)) {
    std::istringstream stream(line);
    std::pair<int, double> row;
    REQUIRE((stream >> row.first >> row.second));
    rows.push_back(row);
  }
  REQUIRE_FALSE(rows.empty());
  CHECK(std::is_sorted(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.second > b.second; }));
  const double tolerance = expect.value("tolerance", 1e-5);
  double sum = 0;
  for (const auto& row : rows) sum += row.second;
  if (expect.contains("logits_sum")) CHECK(std::abs(sum - expect.at("logits_sum").get<double>()) < 32 * tolerance);
  if (expect.contains("first_id")) CHECK(rows[0].first == expect.at("first_id"));
  if (expect.contains("first_logit"))
    CHECK(std::abs(rows[0].second - expect.at("first_logit").get<double>()) < tolerance);
  const Json wanted = expect.value("logits", Json::array());
  for (std::size_t id = 0; id < wanted.size(); ++id) {
    INFO("logit of id " << id);
    const auto row =
        std::find_if(rows.begin(), rows.end(), [&](const auto& r) { return r.first == static_cast<int>(id); });
    REQUIRE(row != rows.end());
    CHECK(std::abs(row->second - wanted[id].get<double>()) < tolerance);
  }
}

void check_run(const Json& run, const Outcome& outcome, const std::vector<Outcome>& earlier) {
  static const std::set<std::string> known = {"exit",    "error",       "stdout",   "stdout_contains", "stdout_lacks",
                                              "lines",   "ids",         "id_count", "stderr_contains", "stderr",
                                              "logits",  "logits_sum",  "first_id", "first_logit",     "tolerance",
                                              "same_as", "differs_from"};
  const Json& expect = run.at("expect");
  for (const auto& [key, value] : expect.items()) {
    INFO("unknown expectation " << key);
    REQUIRE(known.contains(key));
  }
  CHECK_FALSE(outcome.timed_out);
  CHECK(outcome.signal == 0);
  CHECK(outcome.exit_code == expect.value("exit", 0));
  if (expect.value("exit", 0) != 0 && !expect.contains("stderr")) check_error(outcome, expect);
  if (expect.contains("stdout")) CHECK(outcome.out == expect.at("stdout").get<std::string>());
  if (expect.contains("stderr")) CHECK(outcome.err == expect.at("stderr").get<std::string>());
  for (const Json& part : expect.value("stdout_contains", Json::array()))
    CHECK_THAT(outcome.out, Catch::Contains(part.get<std::string>()));
  for (const Json& part : expect.value("stdout_lacks", Json::array()))
    CHECK_THAT(outcome.out, !Catch::Contains(part.get<std::string>()));
  for (const Json& part : expect.value("stderr_contains", Json::array()))
    CHECK_THAT(outcome.err, Catch::Contains(part.get<std::string>()));
  if (expect.contains("lines")) CHECK(lines_of(outcome.out).size() == expect.at("lines").get<std::size_t>());
  if (expect.contains("ids"))
    CHECK(outcome.out == fmt::format("{}\n", fmt::join(expect.at("ids").get<std::vector<int>>(), " ")));
  if (expect.contains("id_count")) {
    std::istringstream stream(outcome.out);
    CHECK(std::distance(std::istream_iterator<int>(stream), {}) == expect.at("id_count").get<std::ptrdiff_t>());
  }
  if (expect.contains("logits") || expect.contains("first_id")) check_logits(outcome.out, expect);
  if (expect.contains("same_as")) CHECK(outcome.out == earlier.at(expect.at("same_as")).out);
  if (expect.contains("differs_from")) CHECK(outcome.out != earlier.at(expect.at("differs_from")).out);
}

void run_case(const Json& description) {
  const TempDir scratch;
  const fs::path model = scratch.path() / "model";
  fs::create_directory(model);
  make_case_model(model, description.value("model", Json::object()));
  std::vector<Outcome> outcomes;
  for (const Json& run : description.at("runs")) {
    for (const auto& [key, value] : run.items()) {
      INFO("unknown key " << key);
      REQUIRE(std::set<std::string>{"run", "why", "stdin", "env", "stdout_to", "expect"}.contains(key));
    }
    Invocation invocation;
    for (const Json& argument : run.at("run")) invocation.argv.push_back(filled(argument, model, scratch.path()));
    const Json environment = run.value("env", Json::object());
    for (const auto& [name, value] : environment.items()) {
      invocation.environment[name] = filled(value, model, scratch.path());
    }
    invocation.input = run.value("stdin", "");
    invocation.output_to = run.value("stdout_to", "");
    invocation.directory = scratch.path();
    const Outcome outcome = test::run(invocation);
    INFO("run " << outcomes.size() << ": " << fmt::format("{}", fmt::join(invocation.argv, " ")));
    INFO("stdout: " << quote(outcome.out, 1000));
    INFO("stderr: " << outcome.err);
    check_run(run, outcome, outcomes);
    outcomes.push_back(outcome);
  }
}

TEST_CASE("case files", "[tools][cases]") {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(tests_dir() / "cases")) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  REQUIRE_FALSE(files.empty());
  for (const fs::path& file : files) {
    const Json cases = io::parse_json(read_file(file), file.string());
    for (const Json& description : cases) {
      DYNAMIC_SECTION(file.stem().string() << ": " << description.at("name").get<std::string>()) {
        run_case(description);
      }
    }
  }
}

}  // namespace
}  // namespace glyd::test
