// Packed weights times activations, sm_90a: the instances of multiply_hopper.cuh that decode on the way; for 65 to 112
// tokens multiply_wide.cu.

#include "cuda/products/multiply_hopper.cuh"

namespace glyd::cuda {

cudaError_t multiply_packed_wide(const ResidentMatrix&, const Partition&, const Activations&, int, float*,
                                 cudaStream_t);

cudaError_t multiply_packed_hopper(const ResidentMatrix& weights, const Partition& partition, const Activations& x,
                                   int tokens, float* partials, cudaStream_t stream) {
  if (is_wide(x.columns)) return multiply_packed_wide(weights, partition, x, tokens, partials, stream);
  return multiply_hopper(weights, partition, x, tokens, partials, weights.slot_bytes(), stream);
}

}  // namespace glyd::cuda
