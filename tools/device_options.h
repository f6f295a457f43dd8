#pragma once
// Options about the device that every command which runs a model shares.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "command_line.h"
#include "runner/runner.h"

namespace glyd::tools {

struct DeviceOptions {
  std::string device;         // as runner::Options has it
  bool device_named = false;  // by the user; else the machine's own choice
  int threads = 0;
  int tensor_parallel = 1, pipeline_parallel = 1;
  runner::Activations activations = runner::Activations::Fp32;
  std::uint64_t memory_limit = 0;
  double memory_share = 0;
  bool eager = false, batch_invariant = false;

  bool on_gpu() const { return device != "cpu"; }
  runner::Options runner_options() const;
};

// Declares the options and, once the command line has been read, puts them together.
class DeviceArguments {
 public:
  void declare(CommandLine& line);
  // `runs`: a model will be run, so the machine is asked what it has where no device is named. Throws Error(Usage)
  // naming option and value.
  DeviceOptions resolve(const CommandLine& line, bool runs = true) const;

 private:
  std::optional<std::string> device_, gpu_memory_;
  std::optional<std::int64_t> threads_, tensor_parallel_, pipeline_parallel_;
  std::string activations_ = "fp32";
  bool eager_ = false, batch_invariant_ = false;
};

// "packed,bf16" as its parts, in order, each once. `option` opens the messages. Throws Error(Usage) for an empty part.
std::vector<std::string> split_list(const std::string& text, const std::string& option);

const char* weights_name(runner::WeightFormat format);  // "packed"
const char* gemm_name(runner::Gemm gemm);               // "cublas"
// Throw Error(Usage) for another word; `option` opens the message.
runner::WeightFormat parse_weights(const std::string& word, const std::string& option);
runner::Gemm parse_gemm(const std::string& word, const std::string& option);

}  // namespace glyd::tools
