// Launches the kernels of few.cuh.
#pragma once

#include <cuda_runtime.h>

#include "few.cuh"

namespace specdec {

template <class W, int C>
static cudaError_t LaunchFew(cudaStream_t stream, FewArrays& arrays, int count) {
  const auto kernel = few_kernel<W, C>;
  int blocks = 0;
  for (int i = 0; i < kMostMatrices; i++) {
    if (i < count) blocks += (arrays.matrices[i].outputs + kWidth - 1) / kWidth;
    arrays.matrices[i].blocks = blocks;
  }
  const int bytes = few_bytes(arrays.rows, arrays.inputs, C);
  if (bytes > 48 * 1024)
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = C;
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks * C);
  config.blockDim = dim3(kFewThreads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, static_cast<const FewArrays>(arrays));
}

template <class W>
static cudaError_t LaunchFew(int cluster, cudaStream_t stream, FewArrays& arrays,
                             int count) {
  if (cluster == 1) return LaunchFew<W, 1>(stream, arrays, count);
  if (cluster == 2) return LaunchFew<W, 2>(stream, arrays, count);
  return LaunchFew<W, 8>(stream, arrays, count);
}

inline cudaError_t LaunchFewOf(int bits, int cluster, cudaStream_t stream,
                               FewArrays& arrays, int count) {
  if (bits == 8) return LaunchFew<Int8Weights>(cluster, stream, arrays, count);
  return LaunchFew<Int4Weights>(cluster, stream, arrays, count);
}

}  // namespace specdec
