#include "runner/cuda/nccl.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"

namespace glyd::runner {

// The part of NCCL 2's binary interface that is used, so that building needs no header of it.
struct Nccl::Functions {
  using Comm = void*;
  int (*get_version)(int*) = nullptr;
  const char* (*get_error)(int) = nullptr;
  int (*init_all)(Comm*, int, const int*) = nullptr;
  int (*destroy)(Comm) = nullptr;
  int (*abort)(Comm) = nullptr;
  int (*all_gather)(const void*, void*, std::size_t, int type, Comm, cudaStream_t) = nullptr;
  int (*send)(const void*, std::size_t, int type, int peer, Comm, cudaStream_t) = nullptr;
  int (*receive)(void*, std::size_t, int type, int peer, Comm, cudaStream_t) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  static constexpr int kBytes = 0, kFloat = 7;  // ncclInt8, ncclFloat32

  void check(int result, const char* what) const {
    if (result == 0) return;
    fail(Code::Runtime, "NCCL: {} failed: {}; NCCL_DEBUG=WARN says more", what, get_error(result));
  }

  Functions() {
    void* library = nullptr;
    for (const char* name : {"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2"}) {
      if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) {
      fail(Code::Runtime,
           "NCCL is missing (libnccl.so.2), which is needed where GPUs do not reach each other's memory or "
           "GLYD_ALL_REDUCE=nccl asks for it; install it or put its folder on LD_LIBRARY_PATH");
    }
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr) fail(Code::Runtime, "NCCL: the library has no {}; install NCCL 2.7 or newer", name);
    };
    find(get_version, "ncclGetVersion");
    find(get_error, "ncclGetErrorString");
    find(init_all, "ncclCommInitAll");
    find(destroy, "ncclCommDestroy");
    find(abort, "ncclCommAbort");
    find(all_gather, "ncclAllGather");
    find(send, "ncclSend");
    find(receive, "ncclRecv");
    find(group_start, "ncclGroupStart");
    find(group_end, "ncclGroupEnd");
  }
};

Nccl::Nccl(const std::vector<int>& devices) : devices_(devices), communicators_(devices.size()) {
  // Multicast over NVLink would be of no use here, and has put GPUs that others share out of service.
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  static const Functions functions;  // the library stays open: its threads do not survive a dlclose()
  functions_ = &functions;
  functions_->check(functions_->get_version(&version_), "ncclGetVersion");
  connect();
}

Nccl::~Nccl() {
  for (void* communicator : communicators_) {
    if (communicator != nullptr) functions_->destroy(communicator);
  }
}

void Nccl::abort(int rank) {
  void*& communicator = communicators_[static_cast<std::size_t>(rank)];
  if (communicator != nullptr) functions_->abort(communicator);
  communicator = nullptr;
}

void Nccl::connect() {
  if (std::find(communicators_.begin(), communicators_.end(), nullptr) == communicators_.end()) return;
  for (std::size_t rank = 0; rank < communicators_.size(); ++rank) abort(static_cast<int>(rank));
  functions_->check(functions_->init_all(communicators_.data(), static_cast<int>(devices_.size()), devices_.data()),
                    "ncclCommInitAll");
}

void Nccl::all_gather(int rank, const float* part, float* all, std::int64_t count, cudaStream_t stream) {
  functions_->check(functions_->all_gather(part, all, static_cast<std::size_t>(count), Functions::kFloat,
                                           communicators_[static_cast<std::size_t>(rank)], stream),
                    "ncclAllGather");
}

void Nccl::send(int rank, int to, const void* data, std::uint64_t bytes, cudaStream_t stream) {
  functions_->check(
      functions_->send(data, bytes, Functions::kBytes, to, communicators_[static_cast<std::size_t>(rank)], stream),
      "ncclSend");
}

void Nccl::receive(int rank, int from, void* data, std::uint64_t bytes, cudaStream_t stream) {
  functions_->check(
      functions_->receive(data, bytes, Functions::kBytes, from, communicators_[static_cast<std::size_t>(rank)], stream),
      "ncclRecv");
}

void Nccl::group_start() { functions_->check(functions_->group_start(), "ncclGroupStart"); }
void Nccl::group_end() { functions_->check(functions_->group_end(), "ncclGroupEnd"); }

}  // namespace glyd::runner
