#include "compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include "base/error.h"
#include "common.h"
#include "runner/logits.h"

namespace glyd::tools {
namespace {

// Both sides round to bf16 between operations, but sum in different orders, so single values differ by a rounding and
// that spreads: measured on trained and random models the RMS of the differences stays below 2 % of a layer's RMS. A
// wrong operation gives tens of percent.
constexpr double kLayerTolerance = 0.05;  // RMS of the differences over the RMS of the values
constexpr double kLogitTolerance = 0.02;  // largest difference over the range of the row

// The worst token seen so far.
struct Difference {
  double largest = 0, rms = 0;  // as shares of the token's RMS, or of its range

  // NaN counts as infinitely far apart.
  void add(double largest_now, double rms_now) {
    const auto worse = [](double a, double b) { return std::isnan(b) ? HUGE_VAL : std::max(a, b); };
    largest = worse(largest, largest_now);
    rms = worse(rms, rms_now);
  }
};

struct Row {
  double largest = 0, sum = 0, reference_sum = 0;  // sums of squares
  double low = HUGE_VAL, high = -HUGE_VAL;         // of the reference
};

Row compare_row(std::span<const float> a, std::span<const float> reference) {
  Row row;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double r = reference[i], difference = std::abs(a[i] - r);
    row.largest = difference > row.largest || std::isnan(difference) ? difference : row.largest;
    row.sum += difference * difference;
    row.reference_sum += r * r;
    row.low = std::min(row.low, r);
    row.high = std::max(row.high, r);
  }
  return row;
}

// One step of the only sequence, whose blocks are 0, 1, 2, ...: tokens [begin, end), logits of the last.
runner::Batch single_sequence(const std::vector<text::TokenId>& ids, std::int64_t begin, std::int64_t end) {
  const auto narrow = [](std::int64_t n) { return static_cast<std::int32_t>(n); };
  runner::Batch batch;
  for (std::int64_t i = begin; i < end; ++i) {
    batch.token_ids.push_back(ids[static_cast<std::size_t>(i)]);
    batch.positions.push_back(narrow(i));
    batch.slot_mapping.push_back(narrow(i));
  }
  batch.query_start = {0, narrow(end - begin)};
  batch.context_lengths = {narrow(end)};
  batch.max_blocks = narrow((end + runner::kBlockSize - 1) / runner::kBlockSize);
  for (std::int32_t b = 0; b < batch.max_blocks; ++b) batch.block_tables.push_back(b);
  batch.logits_rows = {narrow(end - begin - 1)};
  return batch;
}

class Comparer {
 public:
  Comparer(runner::Runner& device, runner::Runner& reference, const Comparison& what)
      : device_(device), reference_(reference), what_(what), forbidden_(runner::forbidden_ids(what.allowed)) {}

  void run() {
    device_.set_trace([&](int layer, std::span<const float> hidden) {
      const auto at = static_cast<std::size_t>(layer + 1);
      traced_.resize(std::max(traced_.size(), at + 1));
      traced_[at].assign(hidden.begin(), hidden.end());
    });
    reference_.set_trace([&](int layer, std::span<const float> hidden) { compare_layer(layer, hidden); });

    std::vector<text::TokenId> ids = what_.prompt;
    std::int64_t computed = 0;
    const auto last = std::min(std::ssize(ids) + what_.tokens, what_.context);
    while (computed < std::ssize(ids)) {
      const std::int64_t end = std::min(std::ssize(ids), computed + what_.chunk);
      const text::TokenId next = step(single_sequence(ids, computed, end));
      computed = end;
      if (computed == std::ssize(ids) && computed < last) ids.push_back(next);
    }
    made_ = std::ssize(ids) - std::ssize(what_.prompt);
    device_.set_trace({});
    reference_.set_trace({});
  }

  ComparisonReport report() const {
    if (layers_.empty()) fail(Code::Runtime, "--check: {} shows no layers", device_.device_name());
    std::string text = fmt::format("{:<12} {:>10} {:>10}\n", "", "largest", "RMS"), first;
    const auto line = [&](const std::string& name, const Difference& d, bool good) {
      text +=
          fmt::format("{:<12} {:>10.6f} {:>10.6f}{}\n", name, d.largest, d.rms, good ? "" : "  beyond the tolerance");
      if (!good && first.empty()) first = name;
    };
    for (std::size_t i = 0; i < layers_.size(); ++i)
      line(i == 0 ? "embedding" : fmt::format("layer {}", i - 1), layers_[i], layers_[i].rms <= kLayerTolerance);
    line("logits", logits_, logits_.largest <= kLogitTolerance);
    text += fmt::format(
        "differences over the RMS of a token's values, logits over their range; {} prompt tokens, {} "
        "made, {} of {} choices equal\n",
        what_.prompt.size(), made_, same_, steps_);
    text += first.empty() ? "no layer differs beyond the tolerance\n"
                          : fmt::format("{} is the first that differs beyond the tolerance of {}\n", first,
                                        first == "logits" ? kLogitTolerance : kLayerTolerance);
    return {first.empty(), text};
  }

 private:
  // Both take the step; returns the id that the device chose.
  text::TokenId step(const runner::Batch& batch) {
    if (interrupted()) fail(Code::Interrupted, "interrupted");
    traced_.clear();
    std::vector<float> logits = device_.step(batch).logits;
    const std::vector<float> wanted = reference_.step(batch).logits;
    if (logits.size() != wanted.size())
      fail(Code::Runtime, "--check: rows of {} and {} logits", logits.size(), wanted.size());
    const Row row = compare_row(logits, wanted);
    const double range = std::max(row.high - row.low, 1e-30);
    logits_.add(row.largest / range, std::sqrt(row.sum / static_cast<double>(logits.size())) / range);

    std::vector<float> reference_logits = wanted;
    const std::int32_t chosen = runner::choose_id(logits, forbidden_);
    if (chosen < 0) fail(Code::Runtime, "--check: the logits of {} are no finite numbers", device_.device_name());
    same_ += chosen == runner::choose_id(reference_logits, forbidden_);
    ++steps_;
    return chosen;
  }

  void compare_layer(int layer, std::span<const float> hidden) {
    const auto at = static_cast<std::size_t>(layer + 1);
    if (at >= traced_.size()) return;
    const std::vector<float>& seen = traced_[at];
    if (seen.size() != hidden.size())
      fail(Code::Runtime, "--check: layer {} has {} and {} values", layer, seen.size(), hidden.size());
    layers_.resize(std::max(layers_.size(), at + 1));
    const auto width = static_cast<std::size_t>(what_.width);
    for (std::size_t begin = 0; begin < hidden.size(); begin += width) {
      const Row row = compare_row(std::span(seen).subspan(begin, width), hidden.subspan(begin, width));
      const double rms = std::sqrt(row.reference_sum / static_cast<double>(width));
      if (rms == 0 && row.largest == 0) continue;
      layers_[at].add(row.largest / rms, std::sqrt(row.sum / row.reference_sum));
    }
  }

  runner::Runner& device_;
  runner::Runner& reference_;
  const Comparison& what_;
  const std::vector<std::int32_t> forbidden_;
  std::vector<std::vector<float>> traced_;  // of the present step: embedding, layer 0, layer 1, ...
  std::vector<Difference> layers_;
  Difference logits_;
  std::int64_t made_ = 0, same_ = 0, steps_ = 0;
};

}  // namespace

ComparisonReport compare_runners(runner::Runner& device, runner::Runner& reference, const Comparison& what) {
  Comparer comparer(device, reference, what);
  comparer.run();
  return comparer.report();
}

}  // namespace glyd::tools
