// Launches the kernel of step.cuh.
#pragma once

#include <cuda_runtime.h>

#include "step.cuh"

namespace specdec {

template <int C>
inline cudaError_t LaunchStep(cudaStream_t stream, const StepShape& shape,
                              const StepArrays& arrays, int bytes) {
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
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, kernel, shape, arrays);
}

template <int C>
inline int MostClusters(int bytes) {
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

inline cudaError_t LaunchStepOf(int cluster, cudaStream_t stream, const StepShape& shape,
                                const StepArrays& arrays) {
  const StepLayout layout(shape, cluster);
  const int bytes = layout.bytes;
  if (cluster == 8) return LaunchStep<8>(stream, shape, arrays, bytes);
  if (cluster == 4) return LaunchStep<4>(stream, shape, arrays, bytes);
  return cudaErrorInvalidValue;
}

}  // namespace specdec
