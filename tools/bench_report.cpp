#include "bench_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "commit.h"
#include "common.h"
#include "io/json.h"

namespace glyd::tools {
namespace {

using io::OrderedJson;

// What follows from a point's runs.
struct Figures {
  Spread prompt, generation, step;
  double bytes_per_second = 0;  // of weights, in generation steps
  double share = 0;             // of the read bandwidth; 0: unknown

  Figures(const BenchRecord& record, const SeriesRecord& series, const BenchPoint& point)
      : prompt(spread(point.runs, &BenchRun::prompt_rate)),
        generation(spread(point.runs, &BenchRun::generation_rate)),
        step(spread(point.runs, &BenchRun::step_seconds)) {
    if (step.mean > 0) bytes_per_second = static_cast<double>(series.bytes_per_step) / step.mean;
    if (record.read_bandwidth > 0) share = bytes_per_second / record.read_bandwidth;
  }
};

// Two series at the same number of sequences: the rate of one over the other's, run by run.
struct Ratio {
  std::int64_t parallel = 0;
  std::string series, over;
  Spread generation, prompt;
};

Spread ratio_of(const BenchPoint& a, const BenchPoint& b, double BenchRun::*member) {
  std::vector<double> values;
  for (std::size_t i = 0; i < std::min(a.runs.size(), b.runs.size()); ++i) {
    if (b.runs[i].*member > 0) values.push_back(a.runs[i].*member / (b.runs[i].*member));
  }
  return spread(values);
}

std::vector<Ratio> ratios(const BenchRecord& record) {
  std::vector<Ratio> all;
  for (std::size_t i = 0; i < record.series.size(); ++i) {
    for (std::size_t j = i + 1; j < record.series.size(); ++j) {
      const SeriesRecord &a = record.series[i], &b = record.series[j];
      for (std::size_t p = 0; p < std::min(a.points.size(), b.points.size()); ++p) {
        all.push_back({a.points[p].parallel, a.name(), b.name(),
                       ratio_of(a.points[p], b.points[p], &BenchRun::generation_rate),
                       ratio_of(a.points[p], b.points[p], &BenchRun::prompt_rate)});
      }
    }
  }
  return all;
}

// ---- JSON ----

OrderedJson or_null(double value) { return value > 0 ? OrderedJson(value) : OrderedJson(); }
OrderedJson or_null(std::uint64_t value) { return value > 0 ? OrderedJson(value) : OrderedJson(); }

OrderedJson spread_json(const Spread& s) {
  return s.mean > 0 ? OrderedJson{{"mean", s.mean}, {"sd", s.deviation}} : OrderedJson();
}

OrderedJson rates_json(const std::vector<BenchRun>& runs, double BenchRun::*member) {
  OrderedJson rates = OrderedJson::array();
  for (const BenchRun& run : runs) rates.push_back(or_null(run.*member));
  return rates;
}

OrderedJson point_json(const BenchRecord& record, const SeriesRecord& series, const BenchPoint& point) {
  const Figures f(record, series, point);
  OrderedJson profile = OrderedJson::object();
  for (const auto& [part, seconds] : point.step_profile) profile[part] = seconds;
  return {{"npl", point.parallel},
          {"generation_tokens_per_s", spread_json(f.generation)},
          {"generation_tokens_per_s_a_sequence", or_null(f.generation.mean / static_cast<double>(point.parallel))},
          {"generation_runs", rates_json(point.runs, &BenchRun::generation_rate)},
          {"step_ms", or_null(f.step.mean * 1e3)},
          {"weight_gb_per_s", or_null(f.bytes_per_second * 1e-9)},
          {"bandwidth_share", or_null(f.share)},
          {"prompt_tokens_per_s", spread_json(f.prompt)},
          {"prompt_runs", rates_json(point.runs, &BenchRun::prompt_rate)},
          {"ids_hash", point.ids_hash},
          {"logits_hash", point.logits_hash},
          {"repeatable", point.repeatable},
          {"step_profile_s", profile}};
}

OrderedJson memory_json(const SeriesRecord& s) {
  return {{"planned_weights", s.plan.weights},
          {"planned_kv_cache", s.plan.kv_cache},
          {"planned_workspace", s.plan.workspace},
          {"planned", or_null(s.plan.total())},
          {"available", or_null(s.plan.available)},
          {"most_kv_tokens", or_null(static_cast<std::uint64_t>(s.plan.most_kv_blocks * runner::kBlockSize))},
          {"used", or_null(s.memory_used)},
          {"nvidia_smi_used", s.driver_memory_used ? OrderedJson(*s.driver_memory_used) : OrderedJson()}};
}

OrderedJson series_json(const BenchRecord& record, const SeriesRecord& s) {
  OrderedJson stages = OrderedJson::object(), points = OrderedJson::array();
  for (const auto& [name, seconds] : s.load_stages) stages[name] = seconds;
  for (const BenchPoint& point : s.points) points.push_back(point_json(record, s, point));
  return {{"name", s.name()},
          {"weights", weights_name(s.weights)},
          {"gemm", gemm_name(s.gemm)},
          {"refused", s.refusal ? OrderedJson(*s.refusal) : OrderedJson()},
          {"weight_bytes", or_null(s.weight_bytes)},
          {"bytes_per_step", or_null(s.bytes_per_step)},
          {"memory_bytes", memory_json(s)},
          {"load_s", or_null(s.load_seconds)},
          {"load_stages_s", stages},
          {"results", points}};
}

OrderedJson options_json(const BenchRecord& record) {
  const BenchOptions& o = record.options;
  return {{"npl", o.parallel},
          {"prompt", o.prompt},
          {"generated", o.generated},
          {"depth", o.depth},
          {"repetitions", o.repeats},
          {"seed", o.seed},
          {"prompt_chunk", record.chunk},
          {"by_turns", record.by_turns},
          {"tensor_parallel", o.device.tensor_parallel},
          {"pipeline_parallel", o.device.pipeline_parallel},
          {"gpu_memory_bytes", or_null(o.device.memory_limit)},
          {"gpu_memory_share", or_null(o.device.memory_share)},
          {"enforce_eager", o.device.eager},
          {"batch_invariant", o.device.batch_invariant}};
}

std::string whole_json(const BenchRecord& record) {
  OrderedJson facts = OrderedJson::object(), series = OrderedJson::array(), compared = OrderedJson::array();
  for (const auto& [name, value] : record.device_facts) facts[name] = to_valid_utf8(value);
  for (const SeriesRecord& s : record.series) series.push_back(series_json(record, s));
  for (const Ratio& r : ratios(record)) {
    compared.push_back({{"npl", r.parallel},
                        {"series", r.series},
                        {"over", r.over},
                        {"generation", spread_json(r.generation)},
                        {"prompt", spread_json(r.prompt)}});
  }
  const OrderedJson json = {{"glyd_version", GLYD_VERSION},
                            {"commit", commit()},
                            {"date", record.date},
                            {"model",
                             {{"name", to_valid_utf8(record.options.model)},
                              {"architecture", to_valid_utf8(record.config.architecture)},
                              {"parameters", record.parameters},
                              {"random_weights", record.options.random_weights}}},
                            {"device",
                             {{"id", record.options.device.device},
                              {"name", to_valid_utf8(record.device)},
                              {"read_bandwidth_gb_per_s", or_null(record.read_bandwidth * 1e-9)},
                              {"facts", facts}}},
                            {"options", options_json(record)},
                            {"process_memory_bytes", or_null(record.process_memory)},
                            {"series", series},
                            {"ratios", compared}};
  return json.dump(2) + "\n";
}

// ---- a line for each series and number of sequences ----

std::vector<OrderedJson> flat_rows(const BenchRecord& record) {
  std::string facts;
  for (const auto& [name, value] : record.device_facts)
    facts += fmt::format("{}{}={}", facts.empty() ? "" : "; ", name, to_valid_utf8(value));
  const BenchOptions& o = record.options;
  std::vector<OrderedJson> rows;
  const auto add = [&](const SeriesRecord& s, const BenchPoint& point) {
    const Figures f(record, s, point);
    rows.push_back({{"glyd_version", GLYD_VERSION},
                    {"commit", commit()},
                    {"date", record.date},
                    {"model", to_valid_utf8(o.model)},
                    {"parameters", record.parameters},
                    {"random_weights", o.random_weights},
                    {"device", to_valid_utf8(record.device)},
                    {"device_facts", facts},
                    {"read_bandwidth_gb_per_s", or_null(record.read_bandwidth * 1e-9)},
                    {"prompt", o.prompt},
                    {"generated", o.generated},
                    {"depth", o.depth},
                    {"repetitions", o.repeats},
                    {"seed", o.seed},
                    {"by_turns", record.by_turns},
                    {"weights", weights_name(s.weights)},
                    {"gemm", gemm_name(s.gemm)},
                    {"npl", point.parallel},
                    {"generation_tokens_per_s", or_null(f.generation.mean)},
                    {"generation_tokens_per_s_sd", f.generation.deviation},
                    {"step_ms", or_null(f.step.mean * 1e3)},
                    {"weight_gb_per_s", or_null(f.bytes_per_second * 1e-9)},
                    {"bandwidth_share", or_null(f.share)},
                    {"prompt_tokens_per_s", or_null(f.prompt.mean)},
                    {"prompt_tokens_per_s_sd", f.prompt.deviation},
                    {"weight_bytes", or_null(s.weight_bytes)},
                    {"bytes_per_step", or_null(s.bytes_per_step)},
                    {"memory_planned", or_null(s.plan.total())},
                    {"memory_used", or_null(s.memory_used)},
                    {"nvidia_smi_used", s.driver_memory_used ? OrderedJson(*s.driver_memory_used) : OrderedJson()},
                    {"load_s", or_null(s.load_seconds)},
                    {"ids_hash", point.ids_hash},
                    {"logits_hash", point.logits_hash},
                    {"repeatable", point.repeatable},
                    {"refused", s.refusal ? OrderedJson(*s.refusal) : OrderedJson()}});
  };
  for (const SeriesRecord& s : record.series) {
    for (const BenchPoint& point : s.points) add(s, point);
    if (s.points.empty()) add(s, {});
  }
  return rows;
}

std::string json_lines(const BenchRecord& record) {
  std::string text;
  for (const OrderedJson& row : flat_rows(record)) text += row.dump() + "\n";
  return text;
}

// RFC 4180: texts in double quotes, doubled inside.
std::string csv_field(const OrderedJson& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) return value.dump();
  std::string text = "\"";
  for (const char c : value.get<std::string>()) text += c == '"' ? std::string("\"\"") : std::string(1, c);
  return text + "\"";
}

std::string csv(const BenchRecord& record) {
  std::string text;
  for (const OrderedJson& row : flat_rows(record)) {
    std::vector<std::string> names, fields;
    for (const auto& [name, value] : row.items()) {
      names.push_back(name);
      fields.push_back(csv_field(value));
    }
    if (text.empty()) text = fmt::format("{}\n", fmt::join(names, ","));
    text += fmt::format("{}\n", fmt::join(fields, ","));
  }
  return text;
}

// ---- tables ----

// A Markdown table whose columns also line up as plain text: the first to the left, numbers to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> head) { add(std::move(head)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

  std::string text() const {
    if (rows_.size() < 2) return "";
    std::string out = "\n";
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      out += line([&](std::size_t c, std::size_t width) {
        return c == 0 ? fmt::format(" {:<{}} ", rows_[r][c], width) : fmt::format(" {:>{}} ", rows_[r][c], width);
      });
      if (r > 0) continue;
      out += line([](std::size_t c, std::size_t width) {
        return c == 0 ? std::string(width + 2, '-') : std::string(width + 1, '-') + ":";
      });
    }
    return out;
  }

 private:
  template <class Cell>
  std::string line(const Cell& cell) const {
    std::string out = "|";
    for (std::size_t c = 0; c < rows_[0].size(); ++c) {
      std::size_t width = 0;
      for (const auto& row : rows_) width = std::max(width, row[c].size());
      out += cell(c, width) + "|";
    }
    return out + "\n";
  }

  std::vector<std::vector<std::string>> rows_;
};

std::string with_deviation(const Spread& s, int digits) {
  if (s.mean == 0) return "-";
  const std::string mean = fmt::format("{:.{}f}", s.mean, digits);
  return s.count < 2 ? mean : fmt::format("{} +- {:.{}f}", mean, s.deviation, digits);
}

std::string rate(const Spread& s) { return with_deviation(s, s.mean < 100 ? 2 : 1); }

std::string number_or_dash(double value, const char* unit, int digits) {
  return value > 0 ? fmt::format("{:.{}f}{}", value, digits, unit) : "-";
}

std::string bytes_or_dash(std::uint64_t bytes) { return bytes > 0 ? in_bytes(bytes) : "-"; }

std::string speed_table(const BenchRecord& record) {
  Table table({"weights", "sequences", "generation t/s", "a sequence", "ms a step", "weights GB/s", "of bandwidth",
               "prompt t/s", "ids", "logits"});
  for (const SeriesRecord& s : record.series) {
    for (const BenchPoint& p : s.points) {
      const Figures f(record, s, p);
      table.add({s.name(), fmt::format("{}", p.parallel), rate(f.generation),
                 number_or_dash(f.generation.mean / static_cast<double>(p.parallel), "", 2),
                 number_or_dash(f.step.mean * 1e3, "", 3), number_or_dash(f.bytes_per_second * 1e-9, "", 1),
                 number_or_dash(f.share * 100, " %", 0), rate(f.prompt), p.ids_hash + (p.repeatable ? "" : " (varies)"),
                 p.logits_hash});
    }
  }
  return table.text();
}

std::string memory_table(const BenchRecord& record) {
  Table table({"weights", "bytes", "read a step", "planned", "used", "nvidia-smi", "KV room", "load s", "of that"});
  for (const SeriesRecord& s : record.series) {
    if (s.refusal) continue;
    std::vector<std::string> stages;
    for (const auto& [name, seconds] : s.load_stages) stages.push_back(fmt::format("{} {:.2f}", name, seconds));
    table.add({s.name(), in_bytes(s.weight_bytes), in_bytes(s.bytes_per_step), bytes_or_dash(s.plan.total()),
               bytes_or_dash(s.memory_used), s.driver_memory_used ? in_bytes(*s.driver_memory_used) : "-",
               s.plan.most_kv_blocks > 0 ? fmt::format("{} tokens", s.plan.most_kv_blocks * runner::kBlockSize) : "-",
               fmt::format("{:.2f}", s.load_seconds), fmt::format("{}", fmt::join(stages, ", "))});
  }
  return table.text();
}

std::string ratio_table(const BenchRecord& record) {
  Table table({"ratio", "sequences", "generation", "prompt"});
  for (const Ratio& r : ratios(record))
    table.add({r.series + " / " + r.over, fmt::format("{}", r.parallel), with_deviation(r.generation, 3),
               with_deviation(r.prompt, 3)});
  return table.text();
}

std::string profile_table(const BenchRecord& record) {
  Table table({"weights", "sequences", "part of the last step", "ms"});
  for (const SeriesRecord& s : record.series) {
    for (const BenchPoint& p : s.points) {
      for (const auto& [part, seconds] : p.step_profile)
        table.add({s.name(), fmt::format("{}", p.parallel), part, fmt::format("{:.3f}", seconds * 1e3)});
    }
  }
  return table.text();
}

std::string markdown(const BenchRecord& record) {
  const BenchOptions& o = record.options;
  std::string text =
      fmt::format("{}{}, {}, {} parameters\n", printable(o.model), o.random_weights ? " with random weights" : "",
                  printable(record.config.architecture), with_commas(record.parameters));
  text += printable(record.device);
  for (const auto& [name, value] : record.device_facts) text += fmt::format(", {} {}", name, printable(value));
  if (record.read_bandwidth > 0) text += fmt::format(", reads {:.1f} GB/s", record.read_bandwidth * 1e-9);
  text += fmt::format("\nglyd {}, commit {}, {}\n", GLYD_VERSION, commit(), record.date);
  text += fmt::format("prompts of {} tokens, {} made{}, {} run{}{}, seed {}\n", o.prompt, o.generated,
                      o.depth > 0 ? fmt::format(" behind {} of context", o.depth) : "", o.repeats,
                      o.repeats == 1 ? "" : "s",
                      record.series.size() < 2 ? ""
                      : record.by_turns        ? " of each by turns"
                                               : " of each, one series after the other: they do not fit together",
                      o.seed);
  for (const SeriesRecord& s : record.series) {
    if (s.refusal) text += fmt::format("{} did not run: {}\n", s.name(), *s.refusal);
  }
  text += speed_table(record) + ratio_table(record) + memory_table(record) + profile_table(record);
  if (!o.device.on_gpu()) text += fmt::format("\nThe process held {} at most.\n", in_bytes(record.process_memory));
  return text;
}

}  // namespace

std::string bench_report(const BenchRecord& record) {
  switch (record.options.format) {
    case BenchFormat::Json:
      return whole_json(record);
    case BenchFormat::JsonLines:
      return json_lines(record);
    case BenchFormat::Csv:
      return csv(record);
    case BenchFormat::Markdown:
      break;
  }
  return markdown(record);
}

}  // namespace glyd::tools
