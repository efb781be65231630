// The step of a draft as a custom call of XLA's: see step.cuh.
#include <cuda_runtime.h>

#include <string>

#include "step.cuh"
#include "xla/ffi/api/ffi.h"

namespace specdec {

namespace ffi = xla::ffi;

static ffi::Error Checked(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string(what) + ": " + cudaGetErrorString(error));
}

template <int C>
static ffi::Error Launch(cudaStream_t stream, const StepShape& shape,
                         const StepArrays& arrays, int bytes, bool is_cooperative) {
  const auto kernel = step_kernel<C>;
  // Of this device; it holds for all launches, and costs next to nothing.
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = C;
  attributes[0].val.clusterDim.y = 1;
  attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeCooperative;
  attributes[1].val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(shape.heads * C);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = is_cooperative ? 2 : 1;
  return Checked(cudaLaunchKernelEx(&config, kernel, shape, arrays), "step_kernel");
}

template <int C>
static int MostClusters(int bytes) {
  const auto kernel = step_kernel<C>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = C;
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(C);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess) return 0;
  return clusters;
}

static ffi::Error Step(cudaStream_t stream, ffi::Buffer<ffi::S32> tokens,
                       ffi::Buffer<ffi::S32> index, ffi::Buffer<ffi::BF16> weights,
                       ffi::Buffer<ffi::BF16> embedding, ffi::Buffer<ffi::BF16> norms,
                       ffi::Buffer<ffi::F32> biases, ffi::Buffer<ffi::PRED> mask,
                       ffi::Buffer<ffi::U32> scratch, ffi::RemainingArgs caches,
                       ffi::Result<ffi::Buffer<ffi::S32>> chosen,
                       ffi::Result<ffi::Buffer<ffi::F32>> logits,
                       ffi::Result<ffi::Buffer<ffi::BF16>> features,
                       ffi::Result<ffi::Buffer<ffi::U32>> scratch_out,
                       ffi::RemainingRets caches_out, int64_t hidden, int64_t gated,
                       float scale, int64_t ring, int64_t cooperative) {
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
  arrays.scratch = reinterpret_cast<uint64_t*>(scratch.untyped_data());
  arrays.chosen = chosen->typed_data();
  arrays.logits = logits->typed_data();
  arrays.features = reinterpret_cast<bf16*>(features->untyped_data());
  // The caches' old keys and values stay: results must be the operands' own memory.
  for (int i = 0; i < 2 * shape.layers; i++) {
    const auto given = caches.get<ffi::AnyBuffer>(i);
    const auto made = caches_out.get<ffi::AnyBuffer>(i);
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
  const StepLayout layout(shape, cluster);
  const auto launch = cluster == 16  ? Launch<16>
                      : cluster == 8 ? Launch<8>
                      : cluster == 4 ? Launch<4>
                                     : nullptr;
  if (!launch) return ffi::Error::InvalidArgument("specdec_step: clusters of 4, 8, 16");
  return launch(stream, shape, arrays, layout.bytes, cooperative);
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
                                  .Attr<int64_t>("ring")
                                  .Attr<int64_t>("cooperative"),
                              {ffi::Traits::kCmdBufferCompatible});

}  // namespace specdec

// How many clusters of so many blocks fit on the device at once; 0 where it has none.
extern "C" int specdec_step_clusters(int cluster, int bytes) {
  if (cluster == 16) return specdec::MostClusters<16>(bytes);
  if (cluster == 8) return specdec::MostClusters<8>(bytes);
  return specdec::MostClusters<4>(bytes);
}

// Bytes of shared memory that a step needs beside its ring.
extern "C" int specdec_step_bytes(int cluster, int rows, int width, int hidden) {
  specdec::StepShape shape = {};
  shape.rows = rows;
  shape.width = width;
  shape.hidden = hidden;
  shape.distances = 129;
  return specdec::StepLayout(shape, cluster).bytes + 16 * 8;
}
