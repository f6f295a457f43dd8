// Plain bf16 weights times activations, sm_90a: the instances of multiply_hopper.cuh that read weights as they are. Bit
// for bit the packed product, and the measure of what decoding costs.

#include "cuda/products/multiply_hopper.cuh"

namespace glyd::cuda {

cudaError_t multiply_plain_hopper(const PlainMatrix& weights, const Partition& partition, const Activations& x,
                                  int tokens, float* partials, cudaStream_t stream) {
  return multiply_hopper(weights, partition, x, tokens, partials, 0, stream);
}

}  // namespace glyd::cuda
