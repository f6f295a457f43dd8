#include "device_options.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/text.h"

namespace glyd::tools {
namespace {

// "48GB" and "46GiB" are bytes, "0.9" and "90%" a share of the GPU's memory.
void take_gpu_memory(const std::string& text, const std::string& option, DeviceOptions& o) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  const std::string unit(rest, end);
  const double share = unit == "%" ? number / 100 : number;
  if (error == std::errc{} && (unit.empty() || unit == "%") && share > 0 && share <= 1) {
    o.memory_share = share;
    return;
  }
  const auto bytes = unit.empty() || unit == "%" ? std::nullopt : parse_size(text);
  if (!bytes) {
    fail(Code::Usage, "{}: {} is neither a size such as 48GB or 44GiB nor a share such as 0.9", option, quote(text));
  }
  o.memory_limit = *bytes;
}

// One, or a GPU for each rank: "cuda:0,cuda:2".
void check_device_name(const std::string& device, const std::string& option) {
  if (device == "cpu" || device == "cuda") return;
  for (std::size_t begin = 0; begin <= device.size();) {
    const std::size_t end = std::min(device.size(), device.find(',', begin));
    const std::string one = device.substr(begin, end - begin);
    if (!one.starts_with("cuda:"))
      fail(Code::Usage, "{}: {} is not one of: cpu, cuda, cuda:N (or several: cuda:0,cuda:1)", option, quote(device));
    const auto index = parse_count(one.substr(5));
    if (!index || *index < 0 || *index > 1023)
      fail(Code::Usage, "{}: {} names no GPU; write cuda:0", option, quote(device));
    begin = end + 1;
  }
}

}  // namespace

runner::Options DeviceOptions::runner_options() const {
  runner::Options o;
  o.device = device;
  o.threads = threads;
  o.tensor_parallel = tensor_parallel;
  o.pipeline_parallel = pipeline_parallel;
  o.activations = activations;
  o.memory_limit = memory_limit;
  o.memory_share = memory_share;
  o.eager = eager;
  o.batch_invariant = batch_invariant;
  return o;
}

void DeviceArguments::declare(CommandLine& line) {
  line.text(
      "--device", "DEVICE", device_,
      "cpu, cuda or cuda:N, or a GPU for each rank: cuda:0,cuda:2; default: a GPU where there is one, else the CPU");
  line.count("-t,--threads", "N", 1, 1024, threads_, "CPU threads; default: all of the machine");
  line.choice("--activations", {"fp32", "bf16"}, activations_,
              "precision between products on the CPU; bf16 rounds where a GPU would");
  line.text("--gpu-memory", "SIZE", gpu_memory_,
            "most memory to take on a GPU: a size, 48GB, or a share of all it has, 0.9; default: 0.92");
  line.flag("--enforce-eager", eager_, "start every kernel of a GPU's step on its own: no CUDA graphs");
  line.flag("--batch-invariant", batch_invariant_,
            "on a GPU: a prompt's results too depend on nothing else in its step, at some cost in speed");
  line.count("-tp,--tensor-parallel-size", "N", 1, runner::kMaxRanks, tensor_parallel_,
             "ranks to split each layer over: GPUs, or threads of the CPU");
  line.count("-pp,--pipeline-parallel-size", "N", 1, runner::kMaxRanks, pipeline_parallel_,
             "stages to deal the layers out to, each of -tp ranks");
}

DeviceOptions DeviceArguments::resolve(const CommandLine& line, bool runs) const {
  DeviceOptions o;
  if (device_) check_device_name(*device_, line.name("--device"));
  if (gpu_memory_) take_gpu_memory(*gpu_memory_, line.name("--gpu-memory"), o);
  o.device_named = device_.has_value();
  o.device = device_ ? *device_ : runs ? runner::default_device() : "cpu";
  if (runs && gpu_memory_ && !o.on_gpu()) {
    fail(Code::Usage, "{}: needs a GPU, and {}", line.name("--gpu-memory"),
         o.device_named ? line.name("--device") + " is cpu"
                        : "this build or machine has none; --list-devices shows what there is");
  }
  o.threads = static_cast<int>(threads_.value_or(0));
  o.tensor_parallel = static_cast<int>(tensor_parallel_.value_or(1));
  o.pipeline_parallel = static_cast<int>(pipeline_parallel_.value_or(1));
  o.activations = activations_ == "bf16" ? runner::Activations::Bf16 : runner::Activations::Fp32;
  o.eager = eager_;
  o.batch_invariant = batch_invariant_;
  return o;
}

std::vector<std::string> split_list(const std::string& text, const std::string& option) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    if (part.empty()) fail(Code::Usage, "{}: {} has an empty part; write a list such as A,B", option, quote(text));
    if (std::find(parts.begin(), parts.end(), part) == parts.end()) parts.push_back(part);
    begin = end + 1;
  }
  return parts;
}

const char* weights_name(runner::WeightFormat format) {
  switch (format) {
    case runner::WeightFormat::Packed:
      return "packed";
    case runner::WeightFormat::Bf16:
      return "bf16";
    case runner::WeightFormat::AsStored:
      break;
  }
  return "as stored";
}

const char* gemm_name(runner::Gemm gemm) { return gemm == runner::Gemm::Cublas ? "cublas" : "auto"; }

runner::WeightFormat parse_weights(const std::string& word, const std::string& option) {
  if (word == "packed") return runner::WeightFormat::Packed;
  if (word == "bf16") return runner::WeightFormat::Bf16;
  fail(Code::Usage, "{}: {} is not one of: bf16, packed", option, quote(word));
}

runner::Gemm parse_gemm(const std::string& word, const std::string& option) {
  if (word == "auto") return runner::Gemm::Auto;
  if (word == "cublas") return runner::Gemm::Cublas;
  fail(Code::Usage, "{}: {} is not one of: auto, cublas", option, quote(word));
}

}  // namespace glyd::tools
