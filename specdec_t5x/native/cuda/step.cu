// The step of a draft as a custom call of XLA's: see step.cuh.
#include <string>

#include "step_launch.cuh"
#include "xla/ffi/api/ffi.h"

namespace specdec {

namespace ffi = xla::ffi;

static ffi::Error Step(cudaStream_t stream, ffi::Buffer<ffi::S32> tokens,
                       ffi::Buffer<ffi::S32> index, ffi::Buffer<ffi::BF16> weights,
                       ffi::Buffer<ffi::BF16> embedding, ffi::Buffer<ffi::BF16> norms,
                       ffi::Buffer<ffi::F32> biases, ffi::Buffer<ffi::PRED> mask,
                       ffi::Buffer<ffi::F32> noise, ffi::Buffer<ffi::U32> scratch,
                       ffi::RemainingArgs caches,
                       ffi::Result<ffi::Buffer<ffi::S32>> chosen,
                       ffi::Result<ffi::Buffer<ffi::F32>> logits,
                       ffi::Result<ffi::Buffer<ffi::BF16>> features,
                       ffi::Result<ffi::Buffer<ffi::U32>> scratch_out,
                       ffi::RemainingRets caches_out, int64_t hidden, int64_t gated,
                       float scale, float temperature, int64_t ring) {
  StepShape shape;
  shape.rows = tokens.element_count();
  shape.width = embedding.dimensions()[1];
  shape.heads = weights.dimensions()[0];
  const int cluster = weights.dimensions()[1];
  shape.layers = caches.size() / 4;
  shape.hidden = hidden;
  shape.vocab = embedding.dimensions()[0];
  shape.inputs = mask.dimensions()[1];
  shape.steps = chosen->dimensions()[0];
  shape.gated = gated;
  shape.distances = biases.dimensions()[1];
  const int blocks = shape.heads * cluster;
  shape.tiles = (shape.vocab + 16 * blocks - 1) / (16 * blocks);
  shape.chunks = weights.dimensions()[2];
  shape.ring = ring;
  shape.scale = scale;
  shape.temperature = temperature;
  if (shape.rows > kMostRows || shape.layers > kMostLayers || shape.heads > kMostHeads ||
      scratch.untyped_data() != scratch_out->untyped_data()) {
    return ffi::Error::InvalidArgument("specdec_step: unsupported shapes");
  }
  StepArrays arrays = {};
  arrays.tokens = tokens.typed_data();
  arrays.index = index.typed_data();
  arrays.weights = reinterpret_cast<const bf16*>(weights.untyped_data());
  arrays.embedding = reinterpret_cast<const bf16*>(embedding.untyped_data());
  arrays.norms = reinterpret_cast<const bf16*>(norms.untyped_data());
  arrays.biases = biases.typed_data();
  arrays.mask = reinterpret_cast<const unsigned char*>(mask.untyped_data());
  // Without noise a token is the logits' argmax.
  arrays.noise = noise.element_count() ? noise.typed_data() : nullptr;
  arrays.scratch = reinterpret_cast<uint64_t*>(scratch.untyped_data());
  arrays.chosen = chosen->typed_data();
  arrays.logits = logits->typed_data();
  arrays.features = reinterpret_cast<bf16*>(features->untyped_data());
  // The caches' old keys and values stay: results must be the operands' own memory.
  for (int i = 0; i < 2 * shape.layers; i++) {
    const auto given = caches.get<ffi::AnyBuffer>(i);
    auto made = caches_out.get<ffi::AnyBuffer>(i);
    if (!given.has_value() || !made.has_value() ||
        given->untyped_data() != (*made)->untyped_data()) {
      return ffi::Error::InvalidArgument("specdec_step: caches must be aliased");
    }
    bf16* const memory = reinterpret_cast<bf16*>(given->untyped_data());
    shape.slots = given->dimensions()[2];
    if (i < shape.layers) {
      arrays.keys[i] = memory;
    } else {
      arrays.values[i - shape.layers] = memory;
    }
    const auto cross = caches.get<ffi::AnyBuffer>(2 * shape.layers + i);
    if (!cross.has_value()) return ffi::Error::InvalidArgument("specdec_step: caches");
    const bf16* const read = reinterpret_cast<const bf16*>(cross->untyped_data());
    if (i < shape.layers) {
      arrays.cross_keys[i] = read;
    } else {
      arrays.cross_values[i - shape.layers] = read;
    }
  }
  const cudaError_t error = LaunchStepOf(cluster, stream, shape, arrays);
  if (error == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string("step_kernel: ") + cudaGetErrorString(error));
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(specdec_step, Step,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::BF16>>()
                                  .Arg<ffi::Buffer<ffi::BF16>>()
                                  .Arg<ffi::Buffer<ffi::BF16>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::PRED>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .RemainingArgs()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::BF16>>()
                                  .Ret<ffi::Buffer<ffi::U32>>()
                                  .RemainingRets()
                                  .Attr<int64_t>("hidden")
                                  .Attr<int64_t>("gated")
                                  .Attr<float>("scale")
                                  .Attr<float>("temperature")
                                  .Attr<int64_t>("ring"),
                              {ffi::Traits::kCmdBufferCompatible});

}  // namespace specdec

// How many clusters of so many blocks fit on the device at once; 0 where it has none.
extern "C" int specdec_step_clusters(int cluster, int bytes) {
  if (cluster == 8) return specdec::MostClusters<8>(bytes);
  return specdec::MostClusters<4>(bytes);
}

// Bytes of shared memory that a step needs beside its ring.
extern "C" int specdec_step_bytes(int cluster, int rows, int width, int hidden,
                                  int inputs) {
  specdec::StepShape shape = {};
  shape.rows = rows;
  shape.width = width;
  shape.hidden = hidden;
  shape.inputs = inputs;
  shape.distances = 129;
  return specdec::StepLayout(shape, cluster).bytes + 16 * 8;
}
