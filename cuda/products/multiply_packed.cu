// Packed weights times activations, sm_90a: the instances of multiply_hopper.cuh that decode on the way.

#include "cuda/products/multiply_hopper.cuh"

namespace glyd::cuda {

cudaError_t multiply_packed_hopper(const ResidentMatrix& weights, const Partition& partition, const Activations& x,
                                   int tokens, float* partials, cudaStream_t stream) {
  return multiply_hopper(weights, partition, x, tokens, partials, weights.slot_bytes(), stream);
}

}  // namespace glyd::cuda
