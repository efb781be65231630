// Layer norm, and attention over a cache, for XLA on CPU.
//
// A row's numbers are the same whatever the other rows and the threads are.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "threads.h"
#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace {

using namespace specdec;
namespace ffi = xla::ffi;
using Floats = ffi::Buffer<ffi::F32>;
using Array = ffi::Buffer<ffi::F32, 4>;

inline float Dot(const float* a, const float* b, int64_t size) {
  Lanes sums = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) sums += Load(a + i) * Load(b + i);
  float rest = 0;
  for (; i < size; ++i) rest += a[i] * b[i];
  return Sum(sums) + rest;
}

// ---- y = x / sqrt(mean(x^2) + 1e-6) * scale. ----

ffi::Error Normalize(Floats x, Floats scale, ffi::Result<Floats> y) {
  const int64_t width = scale.element_count();
  const float *in = x.typed_data(), *s = scale.typed_data();
  float* out = y->typed_data();
  for (const float* end = in + x.element_count(); in < end; in += width, out += width) {
    const float mean_square = Dot(in, in, width) / width;
    const float factor = 1.0f / std::sqrt(mean_square + 1e-6f);
    for (int64_t k = 0; k < width; ++k) out[k] = in[k] * factor * s[k];
  }
  return ffi::Error::Success();
}

// ---- Attention. ----

// What one head of one query takes from the slots that it sees.
class Query {
 public:
  Query(int64_t slots, int64_t width)
      : slots_(slots), width_(width), seen_(slots), weights_(slots) {}

  // Slots of a bias of `masked` or less have no weight, unless all have such: then none
  // is masked. A bias of NaN is none of those, so it reaches the output.
  void Attend(const float* query, const float* keys, const float* values,
              const float* bias, float masked, float* out) {
    auto is_masked = [=](float b) { return b <= masked; };
    const bool all = std::all_of(bias, bias + slots_, is_masked);
    int64_t count = 0;
    float highest = -std::numeric_limits<float>::infinity();
    for (int64_t s = 0; s < slots_; ++s) {
      if (is_masked(bias[s]) && !all) continue;
      const float score = Dot(query, keys + s * width_, width_) + bias[s];
      highest = std::max(highest, score);
      seen_[count] = s;
      weights_[count++] = score;
    }
    for (int64_t i = 0; i < count; ++i) weights_[i] = Exp(weights_[i] - highest);
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += weights_[i];
    const float total = sum;
    for (int64_t i = 0; i < count; ++i) weights_[i] /= total;
    int64_t k = 0;
    for (; width_ - k >= 4 * kLanes; k += 4 * kLanes)
      Mix<4>(values + k, count, out + k);
    for (; width_ - k >= kLanes; k += kLanes) Mix<1>(values + k, count, out + k);
    for (; k < width_; ++k) Mix<0>(values + k, count, out + k);
  }

 private:
  // Some vectors, or one column, of the weighted sum of the values that are seen.
  template <int vectors>
  void Mix(const float* values, int64_t count, float* out) const {
    using Columns = std::conditional_t<vectors == 0, float, Lanes>;
    constexpr int most = std::max(vectors, 1);
    Columns totals[most] = {};
    for (int64_t i = 0; i < count;) {
      Columns sums[most] = {};
      for (const int64_t end = std::min(i + kBlock, count); i < end; ++i) {
        const float* value = values + seen_[i] * width_;
        for (int v = 0; v < most; ++v)
          if constexpr (vectors == 0) sums[v] = Added(sums[v], weights_[i], *value);
          else sums[v] = Added(sums[v], weights_[i], Load(value + v * kLanes));
      }
      for (int v = 0; v < most; ++v) totals[v] += sums[v];
    }
    std::memcpy(out, totals, sizeof(totals));
  }

  const int64_t slots_, width_;
  std::vector<int64_t> seen_;
  std::vector<float> weights_;
};

// query [B, Q, H, K], keys and values [B, H, S, K], bias [#B, #H, #Q, S]; [B, Q, H, K].
ffi::Error Attention(ffi::ThreadPool pool, Array query, Array keys, Array values,
                     Array bias, ffi::Result<Array> mixed, float masked) {
  const int64_t queries = query.dimensions()[1], heads = query.dimensions()[2];
  const int64_t slots = keys.dimensions()[2], width = keys.dimensions()[3];
  const int64_t pairs = query.dimensions()[0] * heads;
  const auto sizes = bias.dimensions();
  const float *q = query.typed_data(), *k = keys.typed_data(), *v = values.typed_data();
  const float* b = bias.typed_data();
  float* out = mixed->typed_data();
  // How far apart a bias's rows are; it may be one for all batches, heads or queries.
  const int64_t by_query = sizes[2] > 1 ? slots : 0;
  const int64_t by_head = sizes[1] > 1 ? sizes[2] * slots : 0;
  const int64_t by_batch = sizes[0] > 1 ? sizes[1] * sizes[2] * slots : 0;
  const int64_t parts = std::min(pairs, Parts(pool, pairs * queries * slots * width));
  Parallel(pool, parts, [=](int64_t part) {
    Query one(slots, width);
    const int64_t end = pairs * (part + 1) / parts;
    for (int64_t pair = pairs * part / parts; pair < end; ++pair) {
      const int64_t batch = pair / heads, head = pair % heads;
      for (int64_t i = 0; i < queries; ++i) {
        const int64_t at = ((batch * queries + i) * heads + head) * width;
        one.Attend(q + at, k + pair * slots * width, v + pair * slots * width,
                   b + batch * by_batch + head * by_head + i * by_query, masked,
                   out + at);
      }
    }
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(specdec_normalize, Normalize,
                              ffi::Ffi::Bind()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Ret<Floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(specdec_attention, Attention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Array>()
                                  .Arg<Array>()
                                  .Arg<Array>()
                                  .Arg<Array>()
                                  .Ret<Array>()
                                  .Attr<float>("masked"));
