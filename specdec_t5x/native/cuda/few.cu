// Products of few rows as a custom call of XLA's: see few.cuh.
#include <cuda_runtime.h>

#include <string>

#include "few.cuh"
#include "xla/ffi/api/ffi.h"

namespace specdec {

namespace ffi = xla::ffi;

template <class W, int C, int kUnroll>
static cudaError_t LaunchFew(cudaStream_t stream, FewArrays& arrays, int count) {
  const auto kernel = few_kernel<W, C, kUnroll>;
  int blocks = 0;
  for (int i = 0; i < kMostMatrices; i++) {
    const int width = W::kColumns * 8;
    if (i < count) blocks += (arrays.matrices[i].outputs + width - 1) / width;
    arrays.matrices[i].blocks = blocks;
  }
  const int bytes = few_bytes<W>(arrays.rows, arrays.inputs, C);
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

template <class W, int C>
static cudaError_t LaunchFew(int unroll, cudaStream_t stream, FewArrays& arrays,
                             int count) {
  if (unroll == 1) return LaunchFew<W, C, 1>(stream, arrays, count);
  return LaunchFew<W, C, 2>(stream, arrays, count);
}

template <class W>
static cudaError_t LaunchFew(int cluster, int unroll, cudaStream_t stream,
                             FewArrays& arrays, int count) {
  if (cluster == 1) return LaunchFew<W, 1>(unroll, stream, arrays, count);
  if (cluster == 2) return LaunchFew<W, 2>(unroll, stream, arrays, count);
  if (cluster == 4) return LaunchFew<W, 4>(unroll, stream, arrays, count);
  return LaunchFew<W, 8>(unroll, stream, arrays, count);
}

cudaError_t LaunchFewOf(int bits, int cluster, int unroll, cudaStream_t stream,
                        FewArrays& arrays, int count) {
  if (bits == 16)
    return LaunchFew<Bfloat16Weights>(cluster, unroll, stream, arrays, count);
  if (bits == 8) return LaunchFew<Int8Weights>(cluster, unroll, stream, arrays, count);
  return LaunchFew<Int4Weights>(cluster, unroll, stream, arrays, count);
}

// After x and `other` come for each matrix its weights, scales and residual; what there is
// not has no elements.
static ffi::Error Few(cudaStream_t stream, ffi::Buffer<ffi::BF16> x,
                      ffi::Buffer<ffi::BF16> other, ffi::RemainingArgs given,
                      ffi::RemainingRets made, int64_t bits, int64_t input,
                      int64_t cluster, int64_t unroll) {
  FewArrays arrays = {};
  arrays.x = reinterpret_cast<const bf16*>(x.untyped_data());
  arrays.other = reinterpret_cast<const bf16*>(other.untyped_data());
  arrays.inputs = x.dimensions().back();
  arrays.rows = x.element_count() / arrays.inputs;
  arrays.input = input;
  const int count = made.size();
  if (count > kMostMatrices || arrays.rows > kFewRows || arrays.inputs % 16)
    return ffi::Error::InvalidArgument("specdec_few: unsupported shapes");
  for (int i = 0; i < count; i++) {
    FewMatrix& matrix = arrays.matrices[i];
    const auto weights = given.get<ffi::AnyBuffer>(3 * i);
    const auto scales = given.get<ffi::AnyBuffer>(3 * i + 1);
    const auto residual = given.get<ffi::AnyBuffer>(3 * i + 2);
    const auto y = made.get<ffi::AnyBuffer>(i);
    if (!weights.has_value() || !scales.has_value() || !residual.has_value() ||
        !y.has_value()) {
      return ffi::Error::InvalidArgument("specdec_few: matrices");
    }
    matrix.weights = weights->untyped_data();
    matrix.scales = reinterpret_cast<const bf16*>(scales->untyped_data());
    if (residual->element_count())
      matrix.residual = reinterpret_cast<const bf16*>(residual->untyped_data());
    matrix.y = reinterpret_cast<bf16*>((*y)->untyped_data());
    matrix.outputs = (*y)->dimensions().back();
    if (matrix.outputs % 16)
      return ffi::Error::InvalidArgument("specdec_few: outputs not divisible by 16");
  }
  const cudaError_t error = LaunchFewOf(bits, cluster, unroll, stream, arrays, count);
  if (error == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string("few_kernel: ") + cudaGetErrorString(error));
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(specdec_few, Few,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::Buffer<ffi::BF16>>()
                                  .Arg<ffi::Buffer<ffi::BF16>>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<int64_t>("bits")
                                  .Attr<int64_t>("input")
                                  .Attr<int64_t>("cluster")
                                  .Attr<int64_t>("unroll"),
                              {ffi::Traits::kCmdBufferCompatible});

}  // namespace specdec

// Microseconds of one product, of `repeats` different matrices in turn, in a graph.
extern "C" float specdec_few_time(int bits, int cluster, int unroll, int rows, int inputs,
                                  int outputs, int repeats) {
  using namespace specdec;
  const size_t bytes = size_t(inputs) * outputs * bits / 8;
  char* weights;
  bf16* x;
  bf16* y;
  if (cudaMalloc(&weights, bytes * repeats) != cudaSuccess) return -1;
  if (cudaMalloc(&x, size_t(rows + 1) * inputs * 2) != cudaSuccess) return -1;
  if (cudaMalloc(&y, size_t(rows + 1) * outputs * 2) != cudaSuccess) return -1;
  cudaMemset(weights, 0x31, bytes * repeats);
  cudaMemset(x, 0x3c, size_t(rows + 1) * inputs * 2);
  cudaMemset(y, 0x3c, size_t(rows + 1) * outputs * 2);
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaError_t error = cudaSuccess;
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  for (int i = 0; i < repeats; i++) {
    FewArrays arrays = {};
    arrays.x = x;
    arrays.rows = rows;
    arrays.inputs = inputs;
    FewMatrix& matrix = arrays.matrices[0];
    matrix.weights = weights + bytes * i;
    matrix.scales = y;
    matrix.y = y + outputs;
    matrix.outputs = outputs;
    const cudaError_t one = LaunchFewOf(bits, cluster, unroll, stream, arrays, 1);
    if (one != cudaSuccess) error = one;
  }
  cudaStreamEndCapture(stream, &graph);
  cudaGraphInstantiate(&exec, graph, 0);
  cudaEvent_t start;
  cudaEvent_t end;
  cudaEventCreate(&start);
  cudaEventCreate(&end);
  float best = 1e30f;
  for (int i = 0; i < 6; i++) {
    cudaEventRecord(start, stream);
    cudaGraphLaunch(exec, stream);
    cudaEventRecord(end, stream);
    cudaEventSynchronize(end);
    float ms;
    cudaEventElapsedTime(&ms, start, end);
    if (i > 1 && ms < best) best = ms;
  }
  if (error == cudaSuccess) error = cudaGetLastError();
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  cudaFree(weights);
  cudaFree(x);
  cudaFree(y);
  return error == cudaSuccess ? best * 1e3f / repeats : -2 - float(error);
}
