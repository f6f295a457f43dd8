#include "cuda/runner_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

#include "io/json.h"
#include "model/checkpoint.h"
#include "support/fixtures.h"

namespace glyd::test {

void copy_model(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
}

void overwrite_tensor(const std::filesystem::path& dir, const std::string& tensor, std::int64_t offset,
                      const std::string& bytes) {
  constexpr std::size_t kLength = 8;  // of the number that says how long the header is
  const auto path = dir / "model.safetensors";
  std::string file = read_file(path);
  std::size_t header_bytes = 0;
  for (std::size_t i = 0; i < kLength; ++i)
    header_bytes |= static_cast<std::size_t>(static_cast<unsigned char>(file[i])) << (8 * i);
  const io::Json header = io::parse_json(file.substr(kLength, header_bytes), path.string());
  const auto range = header.at(tensor)["data_offsets"].get<std::vector<std::int64_t>>();
  const std::int64_t at = (offset < 0 ? range[1] : range[0]) + offset;
  if (at < range[0] || at + std::ssize(bytes) > range[1]) throw std::out_of_range(tensor + " has no such bytes");
  file.replace(kLength + header_bytes + static_cast<std::size_t>(at), bytes.size(), bytes);
  write_file(path, file);
}

std::unique_ptr<runner::Runner> gpu_runner(const GpuSetup& setup) {
  runner::Options options;
  options.device = setup.device;
  options.tensor_parallel = setup.tensor_parallel;
  options.pipeline_parallel = setup.pipeline_parallel;
  const int ranks = setup.tensor_parallel * setup.pipeline_parallel;
  for (int i = 0; setup.device.empty() && i < ranks; ++i) options.device += i == 0 ? "cuda:0" : ",cuda:0";
  options.weights = setup.weights;
  options.eager = setup.eager;
  options.gemm = setup.gemm;
  options.batch_invariant = setup.batch_invariant;
  options.max_sequences = setup.max_sequences;
  options.kv_blocks = setup.kv_blocks;
  options.context = setup.context;
  options.memory_limit = setup.memory_limit;
  options.allowed = setup.allowed;
  return runner::make_runner(options);
}

std::unique_ptr<runner::Runner> load_gpu(const std::filesystem::path& model, const GpuSetup& setup) {
  auto runner = gpu_runner(setup);
  Progress silent;
  runner->load(model::Checkpoint::open(model), silent);
  return runner;
}

KernelsFromEnvironment::KernelsFromEnvironment(const char* name) { ::setenv("GLYD_KERNELS", name, 1); }
KernelsFromEnvironment::~KernelsFromEnvironment() { ::unsetenv("GLYD_KERNELS"); }

std::string difference(const Rows& a, const Rows& b) {
  if (a.size() != b.size()) return fmt::format("{} rows and {}", a.size(), b.size());
  for (std::size_t row = 0; row < a.size(); ++row) {
    if (a[row].size() != b[row].size())
      return fmt::format("row {}: {} values and {}", row, a[row].size(), b[row].size());
    for (std::size_t i = 0; i < a[row].size(); ++i) {
      const float x = a[row][i], y = b[row][i];
      const bool same_bits = x == y && std::signbit(x) == std::signbit(y);
      if (!same_bits || !std::isfinite(x)) return fmt::format("row {}, id {}: {:a} and {:a}", row, i, x, y);
    }
  }
  return {};
}

Distance distance(const Rows& rows, const Rows& reference) {
  if (rows.size() != reference.size()) return {HUGE_VAL, HUGE_VAL};
  Distance worst;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const auto [low, high] = std::minmax_element(reference[row].begin(), reference[row].end());
    const double range = static_cast<double>(*high - *low);
    double largest = 0, squares = 0;
    for (std::size_t i = 0; i < reference[row].size(); ++i) {
      const double apart = std::abs(static_cast<double>(rows[row].at(i)) - static_cast<double>(reference[row][i]));
      largest = std::isnan(apart) ? HUGE_VAL : std::max(largest, apart);
      squares += apart * apart;
    }
    const double rms = std::sqrt(squares / static_cast<double>(reference[row].size()));
    worst.largest = std::max(worst.largest, largest / range);
    worst.rms = std::isnan(rms) ? HUGE_VAL : std::max(worst.rms, rms / range);
  }
  return worst;
}

}  // namespace glyd::test
