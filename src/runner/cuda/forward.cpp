#include "runner/cuda/forward.h"

#include <algorithm>
#include <cmath>

#include "base/sizes.h"
#include "cuda/packing/packing.h"
#include "runner/cuda/check.h"

namespace glyd::runner {

Forward::Forward(const model::Config& config, const DeviceWeights& weights, const WorkspaceShape& shape,
                 const Workspace& work, std::uint16_t* keys, std::uint16_t* values, std::int64_t kv_blocks,
                 const Settings& settings, RankExchange* exchange, cudaStream_t stream)
    : config_(config),
      weights_(weights),
      shape_(shape),
      work_(work),
      input_(shape),
      keys_(keys),
      values_(values),
      kv_blocks_(kv_blocks),
      settings_(settings),
      exchange_(exchange),
      stream_(stream) {
  for (const Event& event : slice_free_) check(cudaEventRecord(event.get(), stream_), "an event");
  if (exchange_ != nullptr) cublas();  // takes memory: not in a step, where other ranks may wait for this one
}

cuda::Activations Forward::activations(const PassShape& pass, std::int64_t width) const {
  if (!own_products(pass)) return {work_.x, cuda::Layout::Rows, 0, round_up(width, 32)};
  return {work_.x, cuda::activation_layout(settings_.kernels, pass.tokens), cuda::activation_columns(pass.tokens), 0};
}

cuda::Product Forward::multiply(const DeviceMatrix& matrix, const cuda::Activations& x, const PassShape& pass,
                                const std::uint16_t* bias) {
  cuda::Product product;
  if (own_products(pass)) {
    auto* partials = static_cast<float*>(work_.products);
    launch(weights_.has_head() && &matrix == &weights_.head() ? Part::Head : Part::Products, "a product", [&] {
      return matrix.packed
                 ? cuda::multiply(settings_.kernels, *matrix.packed, matrix.partition, x, pass.tokens, partials,
                                  stream_)
                 : cuda::multiply(settings_.kernels, matrix.plain, matrix.partition, x, pass.tokens, partials, stream_);
    });
    product.partials = partials;
    product.rows = matrix.partition.stored_rows();
    product.split_stride = pass.tokens * product.rows;
    product.splits = matrix.splits;
    product.group_rows = static_cast<int>(cuda::kGroupRows);
  } else {
    product = multiply_long(matrix, x, pass, false);
  }
  product.bias = bias;
  return product;
}

// A product of which every rank has the sum over its own inputs: the whole sum. Nothing is rounded on the way.
cuda::Product Forward::multiply_shared(const DeviceMatrix& matrix, const cuda::Activations& x, const PassShape& pass,
                                       const std::uint16_t* bias) {
  if (!shares()) return multiply(matrix, x, pass, bias);
  cuda::Product own = own_products(pass) ? multiply(matrix, x, pass, bias) : multiply_long(matrix, x, pass, true);
  own.bias = bias;
  if (left_out_ == Part::Exchange) return own;
  return pass.kind == Pass::Long ? exchange_->sum_in_place(own, static_cast<float*>(work_.products), pass.tokens)
                                 : exchange_->sum(own, pass.tokens);
}

void Forward::unpack(const cuda::ResidentMatrix& matrix, std::int64_t first, std::int64_t rows, std::uint16_t* out,
                     std::int64_t stride) {
  cudaStream_t stream = unpack_stream_.get();
  if (settings_.kernels == cuda::KernelSet::Hopper && matrix.cols % codec::kGroupCols == 0) {
    auto known = slice_partitions_.find({rows, matrix.cols});
    if (known == slice_partitions_.end()) {
      const cuda::Partition partition = cuda::make_partition(rows, matrix.cols, settings_.multiprocessors);
      known = slice_partitions_.emplace(std::pair{rows, matrix.cols}, partition).first;
    }
    check(cuda::unpack_rows(matrix.part(first, rows), known->second, out, stride, stream), "unpacking");
  } else {
    check(cuda::unpack(matrix, first, rows, out, stride, stream), "unpacking");
  }
}

// Rows [tokens][rows] by cuBLAS, bf16 or (`shared`) fp32, a slice of the matrix's rows at a time. Packed slices are
// unpacked on a stream of their own, into one of two buffers while the other is multiplied. Plain weights go by the
// same slices, so both are the same calls.
cuda::Product Forward::multiply_long(const DeviceMatrix& matrix, const cuda::Activations& x, const PassShape& pass,
                                     bool shared) {
  auto* y = static_cast<std::uint8_t*>(work_.products);
  const std::int64_t y_size = shared ? sizeof(float) : sizeof(std::uint16_t);
  const std::int64_t y_stride = round_up(matrix.rows, 8);
  const bool slices = pass.kind == Pass::Long;
  const std::int64_t at_a_time = slices ? slice_rows(matrix.cols) : matrix.rows;
  const std::int64_t stride = matrix.packed ? round_up(matrix.cols, 32) : matrix.plain.stride;
  for (std::int64_t first = 0; first < matrix.rows; first += at_a_time) {
    const std::int64_t rows = std::min(at_a_time, matrix.rows - first);
    const std::uint16_t* weights = nullptr;
    const int buffer = slice_ ^= 1;
    if (matrix.packed) {
      check(cudaStreamWaitEvent(unpack_stream_.get(), slice_free_[buffer].get()), "waiting for a buffer");
      unpack(*matrix.packed, first, rows, work_.slices[buffer], stride);
      check(cudaEventRecord(slice_ready_[buffer].get(), unpack_stream_.get()), "an event");
      check(cudaStreamWaitEvent(stream_, slice_ready_[buffer].get()), "waiting for unpacked weights");
      weights = work_.slices[buffer];
    } else {
      weights = matrix.plain.data + first * stride;
    }
    const int products = pass.starts.empty() ? 1 : pass.sequences;
    for (int i = 0; i < products; ++i) {
      const int begin = pass.starts.empty() ? 0 : pass.starts[static_cast<std::size_t>(i)];
      const int end = pass.starts.empty() ? pass.tokens : pass.starts[static_cast<std::size_t>(i) + 1];
      if (left_out_ == Part::Products) continue;
      cublas().multiply(weights, rows, matrix.cols, stride, x.data + begin * x.stride, x.stride, end - begin,
                        y + (begin * y_stride + first) * y_size, y_stride, shared);
    }
    if (matrix.packed) check(cudaEventRecord(slice_free_[buffer].get(), stream_), "an event");
  }
  cuda::Product product;
  if (shared) {
    product.partials = static_cast<const float*>(work_.products);
  } else {
    product.values = static_cast<const std::uint16_t*>(work_.products);
  }
  product.rows = y_stride;
  return product;
}

void Forward::run(const PassShape& pass, const std::function<void(int layer)>& after_layer) {
  const int width = static_cast<int>(config_.hidden_size);
  const std::int32_t* ids = work_.input + input_.tokens;
  if (weights_.embed) {
    const DeviceMatrix& embed = *weights_.embed;
    launch(Part::Embedding, "the embedding", [&] {
      return embed.packed ? cuda::embed_packed(*embed.packed, ids, pass.tokens, work_.hidden, width, stream_)
                          : cuda::embed_plain(embed.plain.data, embed.plain.stride, ids, pass.tokens, width,
                                              work_.hidden, width, stream_);
    });
  }
  launch(Part::Embedding, "the table of rotations", [&] {
    return cuda::rope_table(work_.input + input_.positions, work_.frequencies, config_.rope.attention_factor,
                            pass.tokens, config_.rope.dim / 2, work_.rope, stream_);
  });
  if (after_layer && weights_.embed) after_layer(-1);
  const cuda::Product* before = nullptr;
  for (int i = 0; i < config_.layers; ++i) {
    layer(pass, weights_.layers[static_cast<std::size_t>(i)], i, before);
    before = &last_;
    if (after_layer) {  // the sum that the next layer's norm would have made
      launch(Part::Norms, "a sum", [&] {
        return cuda::rms_norm(work_.hidden, before, nullptr, nullptr, 0, pass.tokens, width, {}, stream_);
      });
      before = nullptr;
      after_layer(i);
    }
  }
  if (pass.kind == Pass::Decode && weights_.has_head()) {
    head(before, nullptr, pass.tokens);
  } else if (before != nullptr) {
    launch(Part::Norms, "a sum",
           [&] { return cuda::rms_norm(work_.hidden, before, nullptr, nullptr, 0, pass.tokens, width, {}, stream_); });
  }
}

void Forward::layer(const PassShape& pass, const DeviceLayer& w, int index, const cuda::Product* before) {
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const int width = static_cast<int>(config_.hidden_size);
  const std::int64_t inner = config_.intermediate_size, attended = std::int64_t{config_.heads} * config_.head_dim;

  const cuda::Activations x = activations(pass, width);
  launch(Part::Norms, "a norm", [&] {
    return cuda::rms_norm(work_.hidden, before, nullptr, w.input_norm, eps, pass.tokens, width, x, stream_);
  });
  const cuda::Product qkv = multiply(w.qkv, x, pass, w.qkv_bias);
  cuda::HeadsArguments heads;
  heads.q_norm = w.q_norm;
  heads.k_norm = w.k_norm;
  heads.eps = eps;
  heads.heads = config_.heads;
  heads.rotated = config_.rope.dim;
  heads.rope = work_.rope;
  heads.slots = work_.input + input_.slots;
  const std::int64_t layer_stride = kv_blocks_ * cuda::kCacheBlock * config_.kv_heads * config_.head_dim;
  const cuda::PagedCache cache{keys_ + index * layer_stride, values_ + index * layer_stride, config_.kv_heads,
                               config_.head_dim};
  launch(Part::Heads, "the heads", [&] { return cuda::split_heads(qkv, heads, pass.tokens, cache, work_.q, stream_); });
  const cuda::Activations mixed = activations(pass, attended);
  attend(pass, index, mixed);
  const cuda::Product o = multiply_shared(w.o, mixed, pass, w.o_bias);

  launch(Part::Norms, "a norm",
         [&] { return cuda::rms_norm(work_.hidden, &o, nullptr, w.post_norm, eps, pass.tokens, width, x, stream_); });
  const cuda::Product gate_up = multiply(w.gate_up, x, pass, w.gate_up_bias);
  const cuda::Activations activated = activations(pass, inner);
  launch(Part::Activation, "the activation",
         [&] { return cuda::swiglu(gate_up, pass.tokens, inner, activated, stream_); });
  last_ = multiply_shared(w.down, activated, pass, w.down_bias);
}

void Forward::attend(const PassShape& pass, int layer, const cuda::Activations& out) {
  const std::int64_t layer_stride = kv_blocks_ * cuda::kCacheBlock * config_.kv_heads * config_.head_dim;
  const std::int64_t width = std::int64_t{config_.heads} * config_.head_dim;
  const cuda::PagedCache cache{keys_ + layer * layer_stride, values_ + layer * layer_stride, config_.kv_heads,
                               config_.head_dim};
  const cuda::AttentionBatch batch{work_.input + input_.tables, input_.table_stride, work_.input + input_.lengths,
                                   work_.input + input_.query_start};
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)));
  if (pass.kind == Pass::Decode) {
    launch(Part::Attention, "attention", [&] {
      return cuda::attention_decode(work_.q, width, cache, batch, pass.tokens, config_.heads, scale, out,
                                    work_.attention, stream_);
    });
    return;
  }
  if (out.layout != cuda::Layout::Rows && width % codec::kGroupCols != 0) {
    const std::int64_t bytes = round_up(width, codec::kGroupCols) * out.columns * 2;
    check(cudaMemsetAsync(out.data, 0, static_cast<std::size_t>(bytes), stream_), "clearing activations");
  }
  launch(Part::Attention, "attention", [&] {
    return cuda::attention_prefill(work_.q, width, cache, batch, pass.sequences, pass.tokens, pass.longest,
                                   config_.heads, scale, out, stream_);
  });
}

// The rows are few: the own product takes them also behind a long pass, each a column of its own.
void Forward::head(const cuda::Product* before, const std::int32_t* rows, int count) {
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const int width = static_cast<int>(config_.hidden_size);
  const DeviceMatrix& matrix = weights_.head();
  const PassShape pass{Pass::Decode, count, count, 0, {}};
  const cuda::Activations x = activations(pass, width);
  launch(Part::Norms, "the last norm", [&] {
    return cuda::rms_norm(work_.hidden, before, rows, weights_.final_norm, eps, count, width, x, stream_);
  });
  if (matrix.rows == 0) {
    logits_ = {};  // this rank has no part of the head
  } else if (own_products(pass)) {
    logits_ = multiply(matrix, x, pass, nullptr);
  } else {
    const std::int64_t stride = round_up(matrix.rows, 8);
    if (left_out_ != Part::Head)
      cublas().multiply(matrix.plain.data, matrix.rows, matrix.cols, matrix.plain.stride, x.data, x.stride, count,
                        work_.products, stride, true);
    logits_ = {};
    logits_.partials = static_cast<const float*>(work_.products);
    logits_.rows = stride;
  }
  if (shares() && left_out_ != Part::Exchange) logits_ = exchange_->gather_logits(logits_, count);
}

void Forward::head_of_rows(int first, int count) { head(nullptr, work_.input + input_.rows + first, count); }

Cublas& Forward::cublas() {
  if (!cublas_) cublas_ = std::make_unique<Cublas>(stream_, work_.cublas, kCublasBytes);
  return *cublas_;
}

void Forward::choose(int rows) {
  if (!has_logits() || left_out_ == Part::Exchange) return;  // a rank's own logits are a part of them
  launch(Part::Choice, "the choice of tokens", [&] {
    return cuda::arg_max(logits_, work_.allowed, rows, config_.vocab_size, work_.ids, work_.choice, stream_);
  });
}

void Forward::finish_logits(int rows) {
  if (!has_logits()) return;
  check(cuda::finish_logits(logits_, rows, config_.vocab_size, work_.logits, stream_), "the logits");
}

}  // namespace glyd::runner
