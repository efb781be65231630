// Products of few rows, and attention over a cache, for XLA on CPU.
//
// Decoding multiplies a few rows by large matrices: reading the matrix is the work.
// Each tile of it is read once for a few rows, whose sums stay in registers. A row's
// numbers are the same whatever the other rows, the tiles and the threads are.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using Floats = ffi::Buffer<ffi::F32>;
using Array = ffi::Buffer<ffi::F32, 4>;

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kSums = 24;  // 32 registers.
#elif defined(__AVX__)
constexpr int kVectorBytes = 32, kSums = 12;  // 16 registers.
#else
constexpr int kVectorBytes = 16, kSums = 24;
#endif
constexpr int kLanes = kVectorBytes / sizeof(float);
typedef float Lanes __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));

// A tile is kRows rows of x by kWide vectors of W's columns.
constexpr int kRows = 4, kWide = kSums / kRows;
// Rows of W that are asked for ahead of their use.
constexpr int kAhead = 12;
// Long sums are sums of blocks of so many products: else the rounding of a float32 sum
// of one sign grows with its length, past 1e-6 of it at 1,024. (Where all products are
// equal, each addition errs alike, and 3e-6 are left at 10,240.)
constexpr int64_t kBlock = 128;
// What is worth a thread's attention, in multiplications.
constexpr int64_t kPart = 1 << 16;

// ---- Work on all threads. ----

template <typename Work>
struct Job {
  Job(int64_t count, Work work) : count(count), work(std::move(work)) {}

  void Run() {
    for (int64_t i; (i = next.fetch_add(1)) < count; done.fetch_add(1)) work(i);
  }

  const int64_t count;
  const Work work;
  std::atomic<int64_t> next{0}, done{0};
};

// Calls work(0) .. work(count - 1). This thread may do all of it: the pool's may be
// busy with calls that wait likewise, and to wait for one that never starts would be a
// deadlock. One that starts late finds nothing left, in a job that it keeps alive.
template <typename Work>
void Parallel(ffi::ThreadPool& pool, int64_t count, Work work) {
  if (count == 1) return work(0);
  auto job = std::make_shared<Job<Work>>(count, std::move(work));
  const int64_t helpers = std::min<int64_t>(pool.num_threads(), count) - 1;
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule([job] { job->Run(); });
  job->Run();
  while (job->done.load() < count) std::this_thread::yield();
}

int64_t Parts(ffi::ThreadPool& pool, int64_t multiplications) {
  const int64_t most = 4 * std::max<int64_t>(pool.num_threads(), 1);
  return std::clamp<int64_t>(multiplications / kPart, 1, most);
}

// ---- y = x W. ----

struct Matrix {
  const float* weights;  // [inputs, columns]
  float* y;              // [rows, columns]
  int64_t columns;
};

// sum + x * w. Where the processor can round that once, all tiles do: left to itself,
// GCC fuses or not by the tile's shape and the processor's make.
inline Lanes Added(Lanes sum, float x, Lanes w) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(_mm512_set1_ps(x), w, sum);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(_mm256_set1_ps(x), w, sum);
#else
  return sum + x * w;
#endif
}

inline float Added(float sum, float x, float w) {
#if defined(__FMA__)
  return __builtin_fmaf(x, w, sum);
#else
  return sum + x * w;
#endif
}

template <int rows, int vectors>
void Tile(const float* x, const Matrix& m, int64_t inputs, int64_t column) {
  Lanes totals[rows][vectors] = {};
  const float* w = m.weights + column;
  for (int64_t i = 0; i < inputs;) {
    Lanes sums[rows][vectors] = {};
    for (const int64_t end = std::min(i + kBlock, inputs); i < end; ++i) {
      Lanes tile[vectors];
      for (int v = 0; v < vectors; ++v) {
        // Beyond the matrix, a prefetch does nothing.
        __builtin_prefetch(w + kAhead * m.columns + v * kLanes);
        tile[v] = *reinterpret_cast<const Lanes*>(w + v * kLanes);
      }
      for (int r = 0; r < rows; ++r)
        for (int v = 0; v < vectors; ++v)
          sums[r][v] = Added(sums[r][v], x[r * inputs + i], tile[v]);
      w += m.columns;
    }
    for (int r = 0; r < rows; ++r)
      for (int v = 0; v < vectors; ++v) totals[r][v] += sums[r][v];
  }
  for (int r = 0; r < rows; ++r)
    for (int v = 0; v < vectors; ++v)
      *reinterpret_cast<Lanes*>(m.y + r * m.columns + column + v * kLanes) =
          totals[r][v];
}

// One column, summed in the order, and rounded as, a tile does.
void Column(const float* x, const Matrix& m, int64_t rows, int64_t inputs,
            int64_t column) {
  for (int64_t r = 0; r < rows; ++r) {
    float total = 0;
    for (int64_t i = 0; i < inputs;) {
      float sum = 0;
      for (const int64_t end = std::min(i + kBlock, inputs); i < end; ++i)
        sum = Added(sum, x[r * inputs + i], m.weights[i * m.columns + column]);
      total += sum;
    }
    m.y[r * m.columns + column] = total;
  }
}

template <int vectors>
void Rows(const float* x, Matrix m, int64_t rows, int64_t inputs, int64_t column) {
  for (; rows >= kRows; rows -= kRows, x += kRows * inputs, m.y += kRows * m.columns)
    Tile<kRows, vectors>(x, m, inputs, column);
  if (rows == 3) Tile<3, vectors>(x, m, inputs, column);
  if (rows == 2) Tile<2, vectors>(x, m, inputs, column);
  if (rows == 1) Tile<1, vectors>(x, m, inputs, column);
}

void Columns(const float* x, const Matrix& m, int64_t rows, int64_t inputs,
             int64_t column, int64_t end) {
  for (; end - column >= kWide * kLanes; column += kWide * kLanes)
    Rows<kWide>(x, m, rows, inputs, column);
  for (; end - column >= kLanes; column += kLanes) Rows<1>(x, m, rows, inputs, column);
  for (; column < end; ++column) Column(x, m, rows, inputs, column);
}

ffi::Error Multiply(ffi::ThreadPool pool, Floats x, ffi::RemainingArgs weights,
                    ffi::RemainingRets ys) {
  const int64_t inputs = x.dimensions().back();
  const int64_t rows = x.element_count() / std::max<int64_t>(inputs, 1);
  std::vector<Matrix> matrices;
  int64_t columns = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    auto w = weights.get<Floats>(i);
    auto y = ys.get<Floats>(i);
    if (!w.has_value() || !y.has_value())
      return ffi::Error::InvalidArgument("products are of float32");
    matrices.push_back({w->typed_data(), (*y)->typed_data(), w->dimensions()[1]});
    columns += w->dimensions()[1];
  }
  // Reading W is the work of one row, and arithmetic that of many.
  const int64_t parts = Parts(pool, inputs * columns * (1 + rows / kRows));
  struct Part { int64_t matrix, begin, end; };
  std::vector<Part> pieces;
  const int64_t wide = kWide * kLanes;
  const int64_t size = (columns / parts + wide - 1) / wide * wide;
  for (size_t i = 0; i < matrices.size(); ++i)
    for (int64_t c = 0; c < matrices[i].columns; c += size)
      pieces.push_back({int64_t(i), c, std::min(c + size, matrices[i].columns)});
  const float* data = x.typed_data();
  const int64_t count = parts == 1 ? 1 : pieces.size();
  const int64_t step = (pieces.size() + count - 1) / count;
  auto work = [=, matrices = std::move(matrices),
               pieces = std::move(pieces)](int64_t at) {
    const int64_t end = std::min<int64_t>((at + 1) * step, pieces.size());
    for (int64_t i = at * step; i < end; ++i)
      Columns(data, matrices[pieces[i].matrix], rows, inputs, pieces[i].begin,
              pieces[i].end);
  };
  Parallel(pool, count, std::move(work));
  return ffi::Error::Success();
}

// ---- Attention. ----

// e^x for x <= 0, to 2 ulp; without branches, for the compiler to make vectors of.
inline float Exp(float x) {
  x = x < -87.0f ? -87.0f : x;
  const float shifted = x * 1.44269504f + 12582912.0f;  // Rounds to whole numbers.
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  union { float value; uint32_t bits; } power = {shifted};  // Its low bits are n's.
  power.bits = (power.bits + 127) << 23;
  return p * power.value;
}

inline float Dot(const float* a, const float* b, int64_t size) {
  Lanes sums = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes)
    sums += *reinterpret_cast<const Lanes*>(a + i) *
            *reinterpret_cast<const Lanes*>(b + i);
  float sum = 0;
  for (; i < size; ++i) sum += a[i] * b[i];
  for (int l = 0; l < kLanes; ++l) sum += sums[l];
  return sum;
}

// What one head of one query takes from the slots that it sees.
class Query {
 public:
  Query(int64_t slots, int64_t width)
      : slots_(slots), width_(width), seen_(slots), weights_(slots), totals_(width) {}

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
    std::fill(totals_.begin(), totals_.end(), 0.0f);
    for (int64_t i = 0; i < count;) {
      std::fill(out, out + width_, 0.0f);
      for (const int64_t end = std::min(i + kBlock, count); i < end; ++i) {
        const float weight = weights_[i] / total;
        const float* value = values + seen_[i] * width_;
        for (int64_t k = 0; k < width_; ++k) out[k] += weight * value[k];
      }
      for (int64_t k = 0; k < width_; ++k) totals_[k] += out[k];
    }
    std::copy(totals_.begin(), totals_.end(), out);
  }

 private:
  const int64_t slots_, width_;
  std::vector<int64_t> seen_;
  std::vector<float> weights_, totals_;
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
  const int64_t parts = Parts(pool, pairs * queries * slots * width);
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

XLA_FFI_DEFINE_HANDLER_SYMBOL(specdec_multiply, Multiply,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Floats>()
                                  .RemainingArgs()
                                  .RemainingRets());
XLA_FFI_DEFINE_HANDLER_SYMBOL(specdec_attention, Attention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Array>()
                                  .Arg<Array>()
                                  .Arg<Array>()
                                  .Arg<Array>()
                                  .Ret<Array>()
                                  .Attr<float>("masked"));
