// Products of few rows as a custom call of XLA's: see few.cuh.
#include <string>

#include "few_launch.cuh"
#include "xla/ffi/api/ffi.h"

namespace specdec {

namespace ffi = xla::ffi;

// After x come for each matrix its weights and scales.
static ffi::Error Few(cudaStream_t stream, ffi::Buffer<ffi::BF16> x,
                      ffi::RemainingArgs given, ffi::RemainingRets made, int64_t bits,
                      int64_t cluster) {
  FewArrays arrays = {};
  arrays.x = reinterpret_cast<const bf16*>(x.untyped_data());
  arrays.inputs = x.dimensions().back();
  arrays.rows = x.element_count() / arrays.inputs;
  const int count = made.size();
  if (count > kMostMatrices || arrays.rows > kFewRows || arrays.inputs % 16)
    return ffi::Error::InvalidArgument("specdec_few: unsupported shapes");
  for (int i = 0; i < count; i++) {
    FewMatrix& matrix = arrays.matrices[i];
    const auto weights = given.get<ffi::AnyBuffer>(2 * i);
    const auto scales = given.get<ffi::AnyBuffer>(2 * i + 1);
    auto y = made.get<ffi::AnyBuffer>(i);
    if (!weights.has_value() || !scales.has_value() || !y.has_value())
      return ffi::Error::InvalidArgument("specdec_few: matrices");
    matrix.weights = weights->untyped_data();
    matrix.scales = reinterpret_cast<const bf16*>(scales->untyped_data());
    matrix.y = reinterpret_cast<bf16*>((*y)->untyped_data());
    matrix.outputs = (*y)->dimensions().back();
    if (matrix.outputs % 16)
      return ffi::Error::InvalidArgument("specdec_few: outputs not divisible by 16");
  }
  const cudaError_t error = LaunchFewOf(bits, cluster, stream, arrays, count);
  if (error == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string("few_kernel: ") + cudaGetErrorString(error));
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(specdec_few, Few,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::Buffer<ffi::BF16>>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<int64_t>("bits")
                                  .Attr<int64_t>("cluster"),
                              {ffi::Traits::kCmdBufferCompatible});

}  // namespace specdec
