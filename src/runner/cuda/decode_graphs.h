#pragma once
// Decode passes as CUDA graphs: captured once for a number of tokens, launched as a whole from then on.

#include <cuda_runtime_api.h>

#include "runner/cuda/check.h"

namespace glyd::runner {

// Numbers of tokens that decode passes are captured for; a batch runs in the next larger one.
inline int graph_size(int tokens) {
  int step = 1;
  for (int n = 8; n < tokens; n *= 2) step *= 2;  // up to 8: every number; 16: even ones; 32: multiples of 4; ...
  return (tokens + step - 1) / step * step;
}

class Graph {
 public:
  // Captures what `launch` puts into the stream.
  template <class Launch>
  Graph(cudaStream_t stream, const Launch& launch) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing a step");
    try {
      launch();
    } catch (...) {
      cudaGraph_t broken = nullptr;
      cudaStreamEndCapture(stream, &broken);
      cudaGraphDestroy(broken);
      throw;
    }
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream, &graph), "capturing a step");
    const cudaError_t error = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    check(error, "capturing a step");
  }
  ~Graph() { cudaGraphExecDestroy(graph_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  // Takes the memory that launching needs.
  void upload(cudaStream_t stream) const {
    check(cudaGraphUpload(graph_, stream), "a step");
    check(cudaStreamSynchronize(stream), "a step");
  }
  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(graph_, stream), "a step"); }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

// A decode pass of one size. How its logits lie depends on the size, so what finishes them is captured with it.
struct DecodeGraphs {
  template <class Launch, class Finish>
  DecodeGraphs(cudaStream_t stream, const Launch& launch, const Finish& finish)
      : pass(stream, launch), finish_logits(stream, finish) {}
  Graph pass, finish_logits;
};

}  // namespace glyd::runner
