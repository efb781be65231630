// Products of few rows, layer norm, and attention over a cache, for XLA on CPU.
//
// Decoding multiplies a few rows by large matrices: reading the matrix is the work.
// Each tile of it is read once for a few rows, whose sums stay in registers. A row's
// numbers are the same whatever the other rows, the tiles and the threads are.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "threads.h"
#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace {

using namespace specdec;
namespace ffi = xla::ffi;
using Floats = ffi::Buffer<ffi::F32>;
using Array = ffi::Buffer<ffi::F32, 4>;

// As registers are: 16 with AVX, else 32.
constexpr int kSums = kVectorBytes == 32 ? 12 : 24, kMost = kVectorBytes == 32 ? 6 : 8;

// A tile is some rows of x by Wide(rows) vectors of W's columns. Up to kMost rows are one
// tile's, so that W is read once; more are in tiles of kMany.
constexpr int kMany = kSums / 3;
constexpr int Wide(int rows) { return std::min(6, kSums / rows); }
// Rows of W that are asked for ahead of their use: by the second cache. A core waits for
// few lines of its first at once, so that it would read and compute by turns.
constexpr int kAhead = 32;
// Long sums are sums of blocks of so many products: else the rounding of a float32 sum
// of one sign grows with its length, past 1e-6 of it at 1,024. (Where all products are
// equal, each addition errs alike, and 3e-6 are left at 10,240.)
constexpr int64_t kBlock = 128;
// Matrices of more numbers than kLarge, which no core's cache holds, come from memory,
// which is fastest in its own order: for up to kFew rows of x, kStep rows of W are read
// along all columns before the next. Down the columns, widths that are powers of 2, as
// T5's, also fill few sets of a cache.
constexpr int64_t kLarge = 1 << 20, kFew = 8, kStep = 16;
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

// One pass along columns, over some rows of W.
struct Pass {
  int64_t inputs, columns;  // Of x and W: how far apart their rows are.
  int64_t count;            // Rows of W.
  int64_t width;            // Columns, as many as a row of sums has.
  // Whether it begins or ends a block of products, and whether that is the first.
  bool begins, ends, first;
};

inline Lanes Load(const float* data) { return *reinterpret_cast<const Lanes*>(data); }

inline float Sum(const Lanes& lanes) {
  typedef float Four __attribute__((vector_size(16)));
  Four parts[kLanes / 4];
  std::memcpy(parts, &lanes, sizeof(parts));
  for (int p = 1; p < kLanes / 4; ++p) parts[0] += parts[p];
  return (parts[0][0] + parts[0][2]) + (parts[0][1] + parts[0][3]);
}

inline Lanes& At(float* data) { return *reinterpret_cast<Lanes*>(data); }

// On its own, for the compiler to find a register for each sum.
template <int rows, int vectors>
__attribute__((noinline)) void Tile(const float* x, const float* w, float* y,
                                    float* block, const Pass& pass) {
  const int64_t inputs = pass.inputs, columns = pass.columns;
  Lanes sums[rows][vectors] = {};
  if (!pass.begins)
    for (int r = 0; r < rows; ++r)
      for (int v = 0; v < vectors; ++v)
        sums[r][v] = At(block + r * pass.width + v * kLanes);
  for (const float* end = x + pass.count; x < end; ++x, w += columns) {
    Lanes tile[vectors];
    for (int v = 0; v < vectors; ++v) {
      // Beyond the matrix, a prefetch does nothing.
      __builtin_prefetch(w + kAhead * columns + v * kLanes, 0, 2);
      tile[v] = Load(w + v * kLanes);
    }
    for (int r = 0; r < rows; ++r)
      for (int v = 0; v < vectors; ++v)
        sums[r][v] = Added(sums[r][v], x[r * inputs], tile[v]);
  }
  for (int r = 0; r < rows; ++r)
    for (int v = 0; v < vectors; ++v) {
      Lanes& total = At(y + r * columns + v * kLanes);
      if (!pass.ends)
        At(block + r * pass.width + v * kLanes) = sums[r][v];
      else
        total = pass.first ? sums[r][v] : total + sums[r][v];
    }
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

template <int most, int vectors>
void Rows(const float* x, const float* w, float* y, float* block, const Pass& pass,
          int64_t rows) {
  for (; rows >= most; rows -= most) {
    Tile<most, vectors>(x, w, y, block, pass);
    x += most * pass.inputs;
    y += most * pass.columns;
    block += most * pass.width;
  }
  if constexpr (most > 1) Rows<most - 1, vectors>(x, w, y, block, pass, rows);
}

// So many columns, or what is left of them.
template <int most, int vectors>
void Stripe(const float* x, const float* w, float* y, float* block, const Pass& pass,
            int64_t rows, int64_t left) {
  if constexpr (vectors > 1)
    if (left < vectors)
      return Stripe<most, vectors - 1>(x, w, y, block, pass, rows, left);
  Rows<most, vectors>(x, w, y, block, pass, rows);
}

// All rows along the columns, in tiles of `tile` rows.
template <int most = kMost>
void Along(const float* x, const float* w, float* y, float* block, const Pass& pass,
           int64_t rows, int tile) {
  if constexpr (most > 1)
    if (tile < most) return Along<most - 1>(x, w, y, block, pass, rows, tile);
  constexpr int wide = Wide(most);
  for (int64_t c = 0; c < pass.width; c += wide * kLanes)
    Stripe<most, wide>(x, w + c, y + c, block + c, pass, rows,
                       (pass.width - c) / kLanes);
}

int TileRows(int64_t rows) { return rows <= kMost ? rows : kMany; }

void Columns(const float* x, const Matrix& m, int64_t rows, int64_t inputs,
             int64_t begin, int64_t end) {
  const int64_t width = (end - begin) / kLanes * kLanes;
  const int64_t step = rows <= kFew && inputs * m.columns > kLarge ? kStep : kBlock;
  std::vector<float> part(step < kBlock ? rows * width : 0);
  // Whole blocks leave no sums: any place of their size will do.
  float* block = step < kBlock ? part.data() : m.y + begin;
  for (int64_t i = 0; i < inputs; i += step) {
    const int64_t next = std::min(i + step, inputs);
    const bool ends = next % kBlock == 0 || next == inputs;
    Along(x + i, m.weights + i * m.columns + begin, m.y + begin, block,
          {inputs, m.columns, next - i, width, i % kBlock == 0, ends, i < kBlock}, rows,
          TileRows(rows));
  }
  for (int64_t c = begin + width; c < end; ++c) Column(x, m, rows, inputs, c);
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
  const int64_t parts = Parts(pool, inputs * columns * (1 + rows / 4));
  struct Part { int64_t matrix, begin, end; };
  std::vector<Part> pieces;
  const int64_t wide = Wide(TileRows(rows)) * kLanes;
  // Of no columns, pieces would never end: parts may be more than there are columns.
  const int64_t least = std::max<int64_t>(columns / parts, 1);
  const int64_t size = (least + wide - 1) / wide * wide;
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

XLA_FFI_DEFINE_HANDLER_SYMBOL(specdec_multiply, Multiply,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Floats>()
                                  .RemainingArgs()
                                  .RemainingRets());
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
