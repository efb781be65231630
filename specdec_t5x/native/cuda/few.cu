// Products of few rows as a custom call of XLA's: see few.cuh.
#include <algorithm>
#include <string>

#include "few_launch.cuh"
#include "xla/ffi/api/ffi.h"

namespace specdec {

namespace ffi = xla::ffi;

// After x, `other` and what is read next come for each matrix its weights, scales and
// residual. An absent one has no elements.
static ffi::Error Few(cudaStream_t stream, ffi::Buffer<ffi::BF16> x,
                      ffi::Buffer<ffi::BF16> other, ffi::AnyBuffer next,
                      ffi::RemainingArgs given,
                      ffi::RemainingRets made, int64_t bits, int64_t input,
                      int64_t cluster, int64_t unroll, int64_t next_bytes) {
  FewArrays arrays = {};
  arrays.x = reinterpret_cast<const bf16*>(x.untyped_data());
  arrays.other = reinterpret_cast<const bf16*>(other.untyped_data());
  arrays.inputs = x.dimensions().back();
  arrays.rows = x.element_count() / arrays.inputs;
  arrays.input = input;
  arrays.next = reinterpret_cast<const char*>(next.untyped_data());
  arrays.next_lines = std::min<size_t>(next.size_bytes(), next_bytes) / 128;
  const int count = made.size();
  if (count > kMostMatrices || arrays.rows > kFewRows || arrays.inputs % 16)
    return ffi::Error::InvalidArgument("specdec_few: unsupported shapes");
  for (int i = 0; i < count; i++) {
    FewMatrix& matrix = arrays.matrices[i];
    const auto weights = given.get<ffi::AnyBuffer>(3 * i);
    const auto scales = given.get<ffi::AnyBuffer>(3 * i + 1);
    const auto residual = given.get<ffi::AnyBuffer>(3 * i + 2);
    auto y = made.get<ffi::AnyBuffer>(i);
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
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<int64_t>("bits")
                                  .Attr<int64_t>("input")
                                  .Attr<int64_t>("cluster")
                                  .Attr<int64_t>("unroll")
                                  .Attr<int64_t>("next_bytes"),
                              {ffi::Traits::kCmdBufferCompatible});

}  // namespace specdec
