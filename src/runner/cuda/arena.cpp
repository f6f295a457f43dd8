#include "runner/cuda/arena.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/sizes.h"
#include "runner/cuda/check.h"

namespace glyd::runner {
namespace {

constexpr std::uint64_t kAlignment = 256;
constexpr std::uint64_t kPiece = 32 << 20;  // memory is asked for in pieces of at least this size

// The driver's functions, found at run time: the program does not link the driver.
template <class Function>
Function* driver(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result), name);
  if (found == nullptr) fail(Code::Runtime, "CUDA: the driver has no {}; update it (CUDA 12 or newer)", name);
  return reinterpret_cast<Function*>(found);
}

struct Driver {
  decltype(cuMemAddressReserve)* reserve = driver<decltype(cuMemAddressReserve)>("cuMemAddressReserve");
  decltype(cuMemAddressFree)* free_addresses = driver<decltype(cuMemAddressFree)>("cuMemAddressFree");
  decltype(cuMemCreate)* create = driver<decltype(cuMemCreate)>("cuMemCreate");
  decltype(cuMemRelease)* release = driver<decltype(cuMemRelease)>("cuMemRelease");
  decltype(cuMemMap)* map = driver<decltype(cuMemMap)>("cuMemMap");
  decltype(cuMemUnmap)* unmap = driver<decltype(cuMemUnmap)>("cuMemUnmap");
  decltype(cuMemSetAccess)* set_access = driver<decltype(cuMemSetAccess)>("cuMemSetAccess");
  decltype(cuMemGetAllocationGranularity)* granularity =
      driver<decltype(cuMemGetAllocationGranularity)>("cuMemGetAllocationGranularity");
};

const Driver& the_driver() {
  static const Driver driver;
  return driver;
}

CUmemAllocationProp on_device(int device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

}  // namespace

Arena::Arena(std::uint64_t capacity) {
  check(cudaGetDevice(&device_), "cudaGetDevice");
  check(cudaFree(nullptr), "starting CUDA");  // makes the device's context
  const CUmemAllocationProp properties = on_device(device_);
  std::size_t granularity = 0;
  if (the_driver().granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS)
    fail(Code::Runtime, "CUDA: the driver tells no allocation granularity; update it");
  granularity_ = granularity;
  capacity_ = round_up(capacity, granularity_);
  CUdeviceptr base = 0;
  if (the_driver().reserve(&base, capacity_, 0, 0, 0) != CUDA_SUCCESS)
    fail(Code::Memory, "CUDA: the driver reserved no addresses for {:.1f} GB", static_cast<double>(capacity) * 1e-9);
  base_ = base;
}

void* Arena::take(std::uint64_t bytes, const char* what) {
  const std::uint64_t begin = used_, end = begin + round_up(std::max<std::uint64_t>(bytes, 1), kAlignment);
  if (end < begin || end > capacity_) {
    fail(Code::Memory,
         "{}: {:.2f} GB more do not fit the {:.2f} GB planned for the GPU: the weights take more packed than such "
         "weights usually do; use --weights bf16, or a directory packed by glyd-pack if this one is not",
         what, static_cast<double>(bytes) * 1e-9, static_cast<double>(capacity_) * 1e-9);
  }
  if (end > committed_) {
    const std::uint64_t more =
        std::min(round_up(std::max(end - committed_, kPiece), granularity_), capacity_ - committed_);
    const CUmemAllocationProp properties = on_device(device_);
    CUmemGenericAllocationHandle handle = 0;
    if (the_driver().create(&handle, more, &properties, 0) != CUDA_SUCCESS) {
      fail(Code::Memory, "{}: the GPU has no {:.2f} GB left; close other programs on it or lower --gpu-memory", what,
           static_cast<double>(more) * 1e-9);
    }
    CUmemAccessDesc access{};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (the_driver().map(base_ + committed_, more, 0, handle, 0) != CUDA_SUCCESS) {
      the_driver().release(handle);
      fail(Code::Runtime, "{}: the driver did not map GPU memory", what);
    }
    pieces_.emplace_back(handle, more);
    if (the_driver().set_access(base_ + committed_, more, &access, 1) != CUDA_SUCCESS)
      fail(Code::Runtime, "{}: the driver gave no access to GPU memory", what);
    committed_ += more;
  }
  used_ = end;
  return reinterpret_cast<void*>(base_ + begin);
}

void Arena::release() {
  if (base_ == 0) return;
  if (committed_ > 0) the_driver().unmap(base_, committed_);
  for (const auto& [handle, bytes] : pieces_) the_driver().release(handle);
  the_driver().free_addresses(base_, capacity_);
  base_ = capacity_ = used_ = committed_ = 0;
  pieces_.clear();
}

Arena::~Arena() { release(); }

Arena& Arena::operator=(Arena&& other) noexcept {
  if (this == &other) return *this;
  release();
  base_ = std::exchange(other.base_, 0);
  capacity_ = std::exchange(other.capacity_, 0);
  used_ = std::exchange(other.used_, 0);
  committed_ = std::exchange(other.committed_, 0);
  granularity_ = other.granularity_;
  device_ = other.device_;
  pieces_ = std::exchange(other.pieces_, {});
  return *this;
}

}  // namespace glyd::runner
