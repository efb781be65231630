// The part of CUDA's runtime that our launches call, by the kernels of cuda_on_cpu.h.
//
// step.cu and few.cu are compiled with it for XLA's CPU platform, which has no stream.
#pragma once

#include "cuda_on_cpu.h"
#include "xla/ffi/api/ffi.h"

using cudaStream_t = struct NoStream*;

template <>
struct xla::ffi::CtxDecoding<xla::ffi::PlatformStream<cudaStream_t>> {
  using Type = cudaStream_t;
  static std::optional<Type> Decode(const XLA_FFI_Api*, XLA_FFI_ExecutionContext*,
                                    DiagnosticEngine&) {
    return nullptr;
  }
};

enum cudaError_t { cudaSuccess, cudaErrorInvalidValue };
inline const char* cudaGetErrorString(cudaError_t) { return "an invalid value"; }

enum cudaLaunchAttributeID {
  cudaLaunchAttributeClusterDimension,
  cudaLaunchAttributeCooperative
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    dim3 clusterDim;
    int cooperative;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize,
  cudaFuncAttributeNonPortableClusterSizeAllowed
};
// The most shared memory of a block; tests set it.
extern "C" int specdec_most_shared;
int specdec_most_shared = 227 * 1024;
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, cudaFuncAttribute, int) {
  return cudaSuccess;
}
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveClusters(int* count, Kernel, cudaLaunchConfig_t*) {
  *count = 15;
  return cudaSuccess;
}

// All blocks run together where the launch is cooperative, else cluster after cluster.
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config,
                               void (*kernel)(Parameters...), const Arguments&... given) {
  if (config->dynamicSmemBytes > size_t(specdec_most_shared)) return cudaErrorInvalidValue;
  int cluster = 1;
  bool together = false;
  for (unsigned i = 0; i < config->numAttrs; i++) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == cudaLaunchAttributeCooperative) together = true;
    if (attribute.id == cudaLaunchAttributeClusterDimension)
      cluster = attribute.val.clusterDim.x;
  }
  cuda_on_cpu::launch(config->gridDim, config->blockDim.x, cluster,
                      config->dynamicSmemBytes, [&] { kernel(given...); }, together);
  return cudaSuccess;
}
