#pragma once
// The safetensors format: an 8-byte length, a JSON header, and tensor data without holes. Everything is checked at
// open.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"

namespace glyd::io {

enum class Dtype : std::uint8_t {
  Bool,
  U8,
  I8,
  F8E5M2,
  F8E4M3,
  F8E8M0,
  F8E4M3Fnuz,
  F8E5M2Fnuz,
  F4,
  F6E2M3,
  F6E3M2,
  I16,
  U16,
  F16,
  BF16,
  I32,
  U32,
  F32,
  I64,
  U64,
  F64,
  C64
};

const char* dtype_name(Dtype dtype);  // as the format spells it: "BF16"
int dtype_bits(Dtype dtype);          // of one element

struct Tensor {
  std::string name;
  Dtype dtype = Dtype::BF16;
  std::vector<std::uint64_t> shape;  // row-major; empty for a scalar
  std::uint64_t begin = 0, end = 0;  // bytes, from the start of the data area
};

// "[2, 3]"
std::string shape_text(std::span<const std::uint64_t> shape);

// An open file whose header passed every rule of the format. Errors are Error(Model), naming file and tensor.
class Safetensors {
 public:
  static Safetensors open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::vector<Tensor>& tensors() const { return tensors_; }  // in the order of their data
  const Tensor* find(std::string_view name) const;                 // null when absent
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  std::uint64_t data_begin() const { return data_begin_; }  // file offset of the data area: 8 + header length

  // Copies bytes [offset, offset + out.size()) of the tensor's data. Safe from several threads.
  void read(const Tensor& tensor, std::uint64_t offset, std::span<std::byte> out) const;

  // The header's bytes as they stand in the file (without the length word): what a byte-identical copy needs.
  std::string header_text() const;

 private:
  explicit Safetensors(File file) : file_(std::move(file)) {}
  void index_names();

  File file_;
  std::vector<Tensor> tensors_;
  std::vector<std::uint32_t> by_name_;  // indices into tensors_, sorted by name
  std::map<std::string, std::string> metadata_;
  std::uint64_t data_begin_ = 0;
};

}  // namespace glyd::io
