#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/log.h"
#include "base/text.h"

namespace glyd::model {
namespace {

constexpr double kMostPositions = 1 << 27;
constexpr double kLargest = 1e12;  // for thetas and factors: far beyond any use, far below overflow

// Adds `value` to the merged keys. Two values for one key contradict each other, but a kind of "default" gives way.
void merge(io::Json& merged, const std::string& key, const io::Json& value, const ConfigReader& reader) {
  if (value.is_null()) return;
  const std::string name = key == "type" ? "rope_type" : key;
  const auto it = merged.find(name);
  if (it == merged.end() || (name == "rope_type" && *it == "default")) {
    merged[name] = value;
  } else if (*it != value && !(name == "rope_type" && value == "default")) {
    fail(Code::Model, "{}: {} is given as {} and as {} in rope_parameters and rope_scaling; keep one of them",
         printable(reader.what()), quote(name), json_text(*it), json_text(value));
  }
}

// rope_parameters and rope_scaling as one flat object, the kind under "rope_type".
io::Json merged_parameters(const ConfigReader& reader) {
  io::Json merged = io::Json::object();
  for (const char* place : {"rope_parameters", "rope_scaling"}) {
    if (!reader.has(place)) continue;
    const io::Json* found = reader.find(place);
    if (!found->is_object()) reader.refuse(place, "expected an object or null");
    // Some files key the parameters by kind of layer; only full attention is implemented, so that one is read.
    const auto is_object = [](const io::Json& value) { return value.is_object(); };
    if (std::any_of(found->begin(), found->end(), is_object)) {
      const auto full = found->find("full_attention");
      if (full == found->end() || !full->is_object()) {
        reader.refuse(place, "expected the parameters themselves, or an entry full_attention that holds them");
      }
      found = &*full;
    }
    for (const auto& [key, value] : found->items()) merge(merged, key, value, reader);
  }
  return merged;
}

// A number that stands in the merged parameters or at the top level; both must agree.
double number_in_either(const ConfigReader& rope, const ConfigReader& top, const char* key, double low, double high,
                        double absent) {
  const auto inner = rope.number(key, low, high), outer = top.number(key, low, high);
  if (inner && outer && *inner != *outer) {
    fail(Code::Model, "{}: {} is {} and {} is {}; they must agree", printable(top.what()), top.name(key), *outer,
         rope.name(key), *inner);
  }
  return inner ? *inner : outer.value_or(absent);
}

double required_number(const ConfigReader& rope, const char* key, double low, double high) {
  const auto number = rope.number(key, low, high);
  if (!number) rope.refuse(key, "this rope_type needs it");
  return *number;
}

// 0.1 m ln(s) + 1: how much YaRN sharpens attention for a context stretched s times.
double yarn_scale(double s, double m) { return s <= 1 ? 1.0 : 0.1 * m * std::log(s) + 1.0; }

void read_yarn(const ConfigReader& rope, Config& config) {
  Rope& r = config.rope;
  r.factor = required_number(rope, "factor", 1, kLargest);
  const auto original = rope.integer("original_max_position_embeddings", 1, std::int64_t{1} << 27);
  const auto configured = static_cast<double>(config.max_positions);
  r.original_positions = original ? static_cast<double>(*original) : configured;
  r.beta_fast = rope.number("beta_fast", 1e-6, kLargest).value_or(32);
  r.beta_slow = rope.number("beta_slow", 1e-6, kLargest).value_or(1);
  if (r.beta_fast < r.beta_slow)
    rope.refuse("beta_fast", fmt::format("it may not be below beta_slow, {}", r.beta_slow));
  r.truncate = rope.boolean("truncate").value_or(true);

  const double mscale = rope.number("mscale", -kLargest, kLargest).value_or(0);
  const double mscale_all_dim = rope.number("mscale_all_dim", -kLargest, kLargest).value_or(0);
  if (const auto given = rope.number("attention_factor", 1e-6, 1e6)) {
    r.attention_factor = *given;
  } else if (mscale != 0 && mscale_all_dim != 0) {
    r.attention_factor = yarn_scale(r.factor, mscale) / yarn_scale(r.factor, mscale_all_dim);
    if (!(r.attention_factor > 0 && r.attention_factor <= 1e6)) {
      rope.refuse("mscale", fmt::format("with mscale_all_dim it gives an attention factor of {}", r.attention_factor));
    }
  } else {
    r.attention_factor = yarn_scale(r.factor, 1);
  }

  // The explicit factor counts, whatever max_position_embeddings says.
  const double context = std::floor(r.original_positions * r.factor);
  if (context > kMostPositions) {
    rope.refuse("factor", fmt::format("a context of {} x {} positions is beyond the limit of {}", r.original_positions,
                                      r.factor, kMostPositions));
  }
  if (original && r.original_positions * r.factor != configured) {
    log::warning("{}: YaRN factor {} x {} original positions is {}, max_position_embeddings says {}; the factor counts",
                 printable(rope.what()), r.factor, r.original_positions, context, configured);
  }
  config.max_positions = static_cast<std::int64_t>(context);
}

void read_llama3(const ConfigReader& rope, Rope& r) {
  r.factor = required_number(rope, "factor", 1, kLargest);
  r.low_freq_factor = required_number(rope, "low_freq_factor", 1e-6, kLargest);
  r.high_freq_factor = required_number(rope, "high_freq_factor", 1e-6, kLargest);
  r.original_positions = required_number(rope, "original_max_position_embeddings", 1, kMostPositions);
  if (r.high_freq_factor <= r.low_freq_factor) {
    rope.refuse("high_freq_factor", fmt::format("it must be above low_freq_factor, {}", r.low_freq_factor));
  }
}

}  // namespace

void read_rope(const ConfigReader& top, Config& config) {
  const io::Json merged = merged_parameters(top);
  const char* place = top.has("rope_parameters") ? "rope_parameters." : "rope_scaling.";
  const ConfigReader rope(merged, top.what(), place);

  Rope& r = config.rope;
  r.theta = number_in_either(rope, top, "rope_theta", 0, kLargest, 10000.0);
  if (r.theta <= 1) (rope.has("rope_theta") ? rope : top).refuse("rope_theta", "expected a number above 1");
  const double partial = number_in_either(rope, top, "partial_rotary_factor", 0, 1, 1.0);
  r.dim = static_cast<int>(std::floor(config.head_dim * partial));
  if (r.dim < 2 || r.dim % 2 != 0) {
    fail(Code::Model,
         "{}: partial_rotary_factor {} of head_dim {} rotates {} dimensions; expected an even number above 0",
         printable(top.what()), partial, config.head_dim, r.dim);
  }

  const std::string kind = rope.string("rope_type").value_or("default");
  if (kind == "default") {
    r.kind = Rope::Kind::Default;
  } else if (kind == "linear") {
    r.kind = Rope::Kind::Linear;
    r.factor = required_number(rope, "factor", 1, kLargest);
  } else if (kind == "yarn") {
    r.kind = Rope::Kind::Yarn;
    read_yarn(rope, config);
  } else if (kind == "llama3") {
    r.kind = Rope::Kind::Llama3;
    read_llama3(rope, r);
  } else {
    rope.refuse("rope_type",
                "this kind of position scaling is not supported; supported: default, linear, yarn, llama3");
  }
}

std::vector<double> inverse_frequencies(const Rope& rope) {
  std::vector<double> inv(static_cast<std::size_t>(rope.dim / 2));
  for (std::size_t i = 0; i < inv.size(); ++i) {
    inv[i] = std::pow(rope.theta, -2.0 * static_cast<double>(i) / rope.dim);
  }
  constexpr double kTwoPi = 2 * std::numbers::pi;
  switch (rope.kind) {
    case Rope::Kind::Default:
      break;
    case Rope::Kind::Linear:
      for (double& x : inv) x /= rope.factor;
      break;
    case Rope::Kind::Yarn: {
      // The pair that turns n times over the original context; pairs between the two ends are blended.
      const auto corr = [&](double n) {
        return rope.dim * std::log(rope.original_positions / (n * kTwoPi)) / (2 * std::log(rope.theta));
      };
      double low = corr(rope.beta_fast), high = corr(rope.beta_slow);
      if (rope.truncate) low = std::floor(low), high = std::ceil(high);
      low = std::max(low, 0.0), high = std::min(high, rope.dim - 1.0);
      if (low == high) high += 0.001;
      for (std::size_t i = 0; i < inv.size(); ++i) {
        const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
        inv[i] = inv[i] / rope.factor * ramp + inv[i] * (1 - ramp);
      }
      break;
    }
    case Rope::Kind::Llama3:
      for (double& x : inv) {
        const double turns = rope.original_positions * x / kTwoPi;  // over the original context: o / wavelength
        if (turns < rope.low_freq_factor) {
          x /= rope.factor;
        } else if (turns <= rope.high_freq_factor) {
          const double s = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
          x = (1 - s) * x / rope.factor + s * x;
        }
      }
      break;
  }
  return inv;
}

}  // namespace glyd::model
