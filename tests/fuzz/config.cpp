// Parses the input as config.json and as generation_config.json. What is accepted is sane: positive sizes, finite
// frequencies, a specification that can be built.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "model/config.h"
#include "model/weights.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check(const glyd::model::Config& c) {
  require(c.vocab_size > 0 && c.hidden_size > 0 && c.intermediate_size > 0 && c.layers > 0 && c.max_positions > 0);
  require(c.kv_heads > 0 && c.heads % c.kv_heads == 0 && c.head_dim > 0 && c.head_dim % 2 == 0);
  require(c.rms_norm_eps > 0 && c.rope.dim > 0 && c.rope.dim <= c.head_dim && c.rope.dim % 2 == 0);
  require(std::isfinite(c.rope.attention_factor) && c.rope.attention_factor > 0);
  for (const double frequency : glyd::model::inverse_frequencies(c.rope))
    require(std::isfinite(frequency) && frequency > 0);
  const auto spec = glyd::model::model_spec(c);
  require(spec.layers.size() == static_cast<std::size_t>(c.layers));
}

template <class F>
void accept_or_refuse(F&& parse) {
  try {
    parse();
  } catch (const glyd::Error& e) {
    require(e.code() == glyd::Code::Model);
    require(std::string(e.what()).find('\n') == std::string::npos);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  glyd::log::set_level(glyd::log::Level::Off);
  const std::string text(reinterpret_cast<const char*>(data), size);
  accept_or_refuse([&] { check(glyd::model::parse_config(text, "config.json")); });
  accept_or_refuse([&] { glyd::model::parse_generation_config(text, "generation_config.json"); });
  return 0;
}
