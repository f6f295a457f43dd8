// Opens the input as a safetensors file. Whatever it holds: an Error or a file whose tensors tile its data area.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "io/safetensors.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check(const glyd::io::Safetensors& file, std::uint64_t size) {
  std::uint64_t at = 0;
  for (const glyd::io::Tensor& tensor : file.tensors()) {
    require(tensor.begin == at && tensor.end >= tensor.begin);
    require(file.find(tensor.name) == &tensor);
    std::string data(tensor.end - tensor.begin, '\0');
    file.read(tensor, 0, std::as_writable_bytes(std::span(data.data(), data.size())));
    at = tensor.end;
  }
  require(file.data_begin() + at == size);
  require(file.header_text().size() + 8 == file.data_begin());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const int fd = ::memfd_create("fuzz", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(fd);
  require(fd >= 0 && ::ftruncate(fd, 0) == 0);
  require(::pwrite(fd, data, size, 0) == static_cast<ssize_t>(size));
  try {
    check(glyd::io::Safetensors::open(path), size);
  } catch (const glyd::Error& e) {
    require(e.code() == glyd::Code::Model);
    require(std::string(e.what()).find('\n') == std::string::npos);
  }
  return 0;
}
