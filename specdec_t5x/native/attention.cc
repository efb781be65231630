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

#include "floats.h"
#include "threads.h"
#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace {

using namespace specdec;
namespace ffi = xla::ffi;
template <typename Number>
inline float Dot(const float* a, const Number* b, int64_t size) {
  Lanes sums = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) sums += Load(a + i) * Load(b + i);
  float rest = 0;
  for (; i < size; ++i) rest += a[i] * Widened(b[i]);
  return Sum(sums) + rest;
}

// ---- y = x / sqrt(mean(x^2) + 1e-6) * scale. ----

ffi::Error Normalize(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer scale,
                     ffi::Result<ffi::AnyBuffer> result) {
  const int64_t width = scale.element_count();
  const Read read(x), scales(scale);
  Written y(*result);
  const float *in = read.data(), *s = scales.data();
  float* out = y.data();
  for (const float* end = in + read.size(); in < end; in += width, out += width) {
    const float mean_square = Dot(in, in, width) / width;
    const float factor = 1.0f / std::sqrt(mean_square + 1e-6f);
    for (int64_t k = 0; k < width; ++k) out[k] = in[k] * factor * s[k];
  }
  y.Finish(pool);
  return ffi::Error::Success();
}

// ---- Attention. ----

// What one head of one query takes from the slots that it sees.
template <typename Number>
class Query {
 public:
  Query(int64_t slots, int64_t width)
      : slots_(slots), width_(width), seen_(slots), query_(width), weights_(slots) {}

  // Slots of a bias of `masked` or less have no weight, unless all have such: then none
  // is masked. A bias of NaN is none of those, so it reaches the output.
  void Attend(const Number* query, const Number* keys, const Number* values,
              const Number* bias, float masked, Number* out) {
    for (int64_t k = 0; k < width_; ++k) query_[k] = Widened(query[k]);
    auto is_masked = [=](Number b) { return Widened(b) <= masked; };
    const bool all = std::all_of(bias, bias + slots_, is_masked);
    int64_t count = 0;
    float highest = -std::numeric_limits<float>::infinity();
    for (int64_t s = 0; s < slots_; ++s) {
      if (is_masked(bias[s]) && !all) continue;
      const float score =
          Dot(query_.data(), keys + s * width_, width_) + Widened(bias[s]);
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
  void Mix(const Number* values, int64_t count, Number* out) const {
    using Columns = std::conditional_t<vectors == 0, float, Lanes>;
    constexpr int most = std::max(vectors, 1);
    Columns totals[most] = {};
    for (int64_t i = 0; i < count;) {
      Columns sums[most] = {};
      for (const int64_t end = std::min(i + kBlock, count); i < end; ++i) {
        const Number* value = values + seen_[i] * width_;
        for (int v = 0; v < most; ++v)
          if constexpr (vectors == 0) sums[v] = Added(sums[v], weights_[i], Widened(*value));
          else sums[v] = Added(sums[v], weights_[i], Load(value + v * kLanes));
      }
      for (int v = 0; v < most; ++v) totals[v] += sums[v];
    }
    constexpr int size = sizeof(totals) / sizeof(float);
    float numbers[size];
    std::memcpy(numbers, totals, sizeof(totals));
    for (int i = 0; i < size; ++i) Narrow(numbers[i], out[i]);
  }

  const int64_t slots_, width_;
  std::vector<int64_t> seen_;
  std::vector<float> query_, weights_;
};

template <typename Number>
void AttentionOf(ffi::ThreadPool& pool, const ffi::AnyBuffer& query,
                 const ffi::AnyBuffer& keys, const ffi::AnyBuffer& values,
                 const ffi::AnyBuffer& bias, const ffi::AnyBuffer& mixed, float masked) {
  auto data = [](const ffi::AnyBuffer& array) {
    return reinterpret_cast<Number*>(array.untyped_data());
  };
  const int64_t queries = query.dimensions()[1], heads = query.dimensions()[2];
  const int64_t slots = keys.dimensions()[2], width = keys.dimensions()[3];
  const int64_t pairs = query.dimensions()[0] * heads;
  const auto sizes = bias.dimensions();
  const Number *q = data(query), *k = data(keys), *v = data(values), *b = data(bias);
  Number* out = data(mixed);
  // How far apart a bias's rows are; it may be one for all batches, heads or queries.
  const int64_t by_query = sizes[2] > 1 ? slots : 0;
  const int64_t by_head = sizes[1] > 1 ? sizes[2] * slots : 0;
  const int64_t by_batch = sizes[0] > 1 ? sizes[1] * sizes[2] * slots : 0;
  const int64_t parts = std::min(pairs, Parts(pool, pairs * queries * slots * width));
  Parallel(pool, parts, [=](int64_t part) {
    Query<Number> one(slots, width);
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
}

// query [B, Q, H, K], keys and values [B, H, S, K], bias [#B, #H, #Q, S]; [B, Q, H, K].
ffi::Error Attention(ffi::ThreadPool pool, ffi::AnyBuffer query, ffi::AnyBuffer keys,
                     ffi::AnyBuffer values, ffi::AnyBuffer bias,
                     ffi::Result<ffi::AnyBuffer> mixed, float masked) {
  if (IsNarrow(query))
    AttentionOf<Bfloat16>(pool, query, keys, values, bias, *mixed, masked);
  else
    AttentionOf<float>(pool, query, keys, values, bias, *mixed, masked);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(specdec_normalize, Normalize,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(specdec_attention, Attention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<float>("masked"));
