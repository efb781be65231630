// Products with weights of 8 or 4 bits, for XLA on CPU.
//
// Rows of x are rounded to 8 bits, too, a scale for each group of inputs, so that sums of
// a group are of whole numbers: exact in any order. Codes lie in the order in which they
// are read: panels of 16 columns, in each the groups, in each vectors of 4 inputs by 16
// columns. A vector of 4-bit codes has 8 inputs: the low halves of its bytes are those of
// the first 4. A row's numbers are the same whatever the other rows and the threads are.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "few_rows.h"
#include "floats.h"
#include "threads.h"
#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace {

using namespace specdec;
namespace ffi = xla::ffi;
using Floats = ffi::Buffer<ffi::F32>;

constexpr int64_t kColumns = 16, kVector = 64;
// A part of a product is worth a thread's attention when it reads so many bytes.
constexpr int64_t kBytes = 1 << 15;
// Bytes of codes that are asked for ahead of their use, by the second cache: what the
// processor itself reads ahead ends with a page.
constexpr int64_t kAhead = 4096;
// Rows that a panel is read for at once, whose sums stay in registers.
constexpr int kTile = kVectorBytes == 64 ? 8 : 4;

// As wide as registers are: of a panel there are kParts side by side.
constexpr int kParts = kVector / kVectorBytes;
typedef int32_t Ints __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
typedef int16_t Shorts __attribute__((vector_size(kVectorBytes), aligned(2), may_alias));

// What codes of 8 and 4 bits are more than the numbers that Dot multiplies by are less.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr int kZero8 = 128;
#else
constexpr int kZero8 = 0;
#endif
constexpr int kZero4 = 8;

inline int32_t Word(const void* data) {
  int32_t word;
  std::memcpy(&word, data, sizeof(word));
  return word;
}

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)

// A number of x, and where in a row the i-th is: four of them are multiplied at once.
typedef int8_t Code;
inline int64_t Place(int64_t i) { return i; }

// Codes of 4 inputs by some columns, as they are multiplied: bytes without a sign.
typedef Words Operand;
template <int bits>
inline Operand Prepared(Words w) { return bits == 8 ? w ^ 0x80808080u : w; }

// sums[c] + the sum over 4 inputs of w[c, i] a[i].
inline Ints Dot(Ints sums, const Operand& w, const Code* a) {
#if defined(__AVX512VNNI__)
  return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)w, _mm512_set1_epi32(Word(a)));
#else
  return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)w,
                                       _mm256_set1_epi32(Word(a)));
#endif
}

#else

// Without an instruction for bytes, pairs of 16 bits are multiplied and added. Codes are
// widened once for all rows of a tile: inputs 0 and 2 of four, then 1 and 3.
typedef int16_t Code;
inline int64_t Place(int64_t i) { return (i & ~3) | (i & 1) << 1 | (i >> 1 & 1); }

struct Operand { Shorts even, odd; };
template <int bits>
inline Operand Prepared(Words w) {
  return {(Shorts)w << 8 >> 8, (Shorts)w >> 8};
}

// sums[c] + w[2 c] a[0] + w[2 c + 1] a[1].
inline Ints PairDot(Ints sums, Shorts w, const Code* a) {
#if defined(__AVX512BW__)
  return sums + (Ints)_mm512_madd_epi16((__m512i)w, _mm512_set1_epi32(Word(a)));
#elif defined(__AVX2__)
  return sums + (Ints)_mm256_madd_epi16((__m256i)w, _mm256_set1_epi32(Word(a)));
#elif defined(__SSE2__) && !defined(__AVX__)
  return sums + (Ints)_mm_madd_epi16((__m128i)w, _mm_set1_epi32(Word(a)));
#else
  for (int c = 0; c < kLanes; ++c) sums[c] += w[2 * c] * a[0] + w[2 * c + 1] * a[1];
  return sums;
#endif
}

// sums[c] + the sum over 4 inputs of w[c, i] a[i].
inline Ints Dot(Ints sums, const Operand& w, const Code* a) {
  return PairDot(PairDot(sums, w.even, a), w.odd, a + 2);
}

#endif

inline Words Load(const uint8_t* data) { return *reinterpret_cast<const Words*>(data); }

inline int32_t Bits(float number) {
  int32_t bits;
  std::memcpy(&bits, &number, sizeof(bits));
  return bits;
}

inline float Float(int32_t bits) {
  float number;
  std::memcpy(&number, &bits, sizeof(number));
  return number;
}

// Rows of x in 8 bits, in the order of `Place`.
struct Rounded {
  Rounded(const float* x, int64_t rows, int64_t inputs, int64_t groups, int64_t size)
      : groups(groups), width(groups * size), codes(rows * width),
        scales(rows * groups), sums(rows * groups) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t g = 0; g < groups; ++g)
        Group(x + r * inputs + g * size, std::min(size, inputs - g * size),
              r * width + g * size, r * groups + g);
  }

  // Inputs beyond the last stay 0.
  void Group(const float* x, int64_t size, int64_t at, int64_t group) {
    // Bits of numbers without a sign are in their order: infinity is above them, what is
    // no number above that.
    int32_t bits = 0;
    for (int64_t i = 0; i < size; ++i)
      bits = std::max(bits, Bits(x[i]) & std::numeric_limits<int32_t>::max());
    const bool good = bits < Bits(std::numeric_limits<float>::infinity());
    const float most = good ? Float(bits) : 0;
    // What is no number, or infinite, makes all that it is part of NaN.
    scales[group] = good ? most / 127 : std::numeric_limits<float>::quiet_NaN();
    const float inverse = good && most / 127 > 0 ? 127 / most : 0;
    if (inverse == 0 || inverse > std::numeric_limits<float>::max()) return;
    Code* __restrict rounded = codes.data() + at;  // Else each store may move `x`.
    int32_t sum = 0;
    for (int64_t i = 0; i < size; ++i) {
      // The nearest whole number.
      const int32_t code = Bits(x[i] * inverse + 12582912.0f) - 0x4B400000;
      rounded[Place(i)] = code;
      sum += code;
    }
    sums[group] = sum;
  }

  const int64_t groups, width;  // Width: of a row, in codes.
  std::vector<Code> codes;
  std::vector<float> scales;  // [rows, groups]
  std::vector<int32_t> sums;  // Of the codes of each group.
};

struct Matrix {
  const uint8_t* codes;    // [panels, groups, vectors, kVector]
  const Bfloat16* scales;  // [groups, columns]
  float* y;                // [rows, columns]
  int64_t columns, vectors;
};

// A panel's columns of some rows of y.
template <int bits, int rows>
__attribute__((noinline)) void Panel(const Rounded& x, const Matrix& m, int64_t panel,
                                     int64_t row) {
  // Sums of their own, where rows are few: an addition takes longer than a load.
  constexpr int chains = rows >= 4 ? 1 : 4 / rows, inputs = bits == 8 ? 4 : 8;
  const uint8_t* w = m.codes + panel * x.groups * m.vectors * kVector;
  const int64_t column = panel * kColumns, count = std::min(kColumns, m.columns - column);
  const Code* codes = x.codes.data() + row * x.width;
  Lanes totals[rows][kParts] = {};
  for (int64_t g = 0; g < x.groups; ++g) {
    Ints sums[rows][chains][kParts] = {};
    auto add = [&](int chain) {
      __builtin_prefetch(w + kAhead, 0, 2);
      for (int p = 0; p < kParts; ++p, w += kVectorBytes) {
        const Words all = Load(w);
        const Words low = bits == 8 ? all : all & 0x0F0F0F0Fu;
        const Operand first = Prepared<bits>(low);
        const Operand second = Prepared<bits>(all >> 4 & 0x0F0F0F0Fu);
        for (int r = 0; r < rows; ++r) {
          const Code* a = codes + r * x.width;
          Ints& sum = sums[r][chain][p];
          sum = Dot(sum, first, a);
          if (bits == 4) sum = Dot(sum, second, a + 4);
        }
      }
      codes += inputs;
    };
    int64_t v = 0;
    for (; v + chains <= m.vectors; v += chains)
      for (int chain = 0; chain < chains; ++chain) add(chain);
    for (; v < m.vectors; ++v) add(0);
    Bfloat16 some[kColumns] = {};
    const Bfloat16* scales = m.scales + g * m.columns + column;
    if (count < kColumns) {  // Beyond them is another group's, or nothing.
      std::copy(scales, scales + count, some);
      scales = some;
    }
    for (int p = 0; p < kParts; ++p) {
      const Lanes scale = specdec::Load(scales + p * kLanes);
      for (int r = 0; r < rows; ++r) {
        Ints& sum = sums[r][0][p];
        for (int chain = 1; chain < chains; ++chain) sum += sums[r][chain][p];
        const int64_t group = (row + r) * x.groups + g;
        sum -= (bits == 8 ? kZero8 : kZero4) * x.sums[group];
        totals[r][p] += __builtin_convertvector(sum, Lanes) * (scale * x.scales[group]);
      }
    }
  }
  for (int r = 0; r < rows; ++r)
    std::memcpy(m.y + (row + r) * m.columns + column, totals[r], count * sizeof(float));
}

template <int bits, int most = kTile>
void Rows(const Rounded& x, const Matrix& m, int64_t panel, int64_t row, int64_t rows) {
  for (; rows >= most; rows -= most, row += most) Panel<bits, most>(x, m, panel, row);
  if constexpr (most > 1) Rows<bits, most - 1>(x, m, panel, row, rows);
}

// x [rows, inputs], and of each matrix its codes and its scales.
ffi::Error Multiply(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::RemainingArgs weights,
                    ffi::RemainingRets results) {
  const int64_t inputs = x.dimensions().back();
  const int64_t rows = x.element_count() / std::max<int64_t>(inputs, 1);
  const Read read(x);
  std::vector<Written> ys;
  std::vector<Matrix> matrices;
  int64_t bytes = 0, groups = 0, size = 0;
  bool is_4 = false;
  for (size_t i = 0; i < results.size(); ++i) {
    auto codes = weights.get<ffi::AnyBuffer>(2 * i);
    auto scales = weights.get<ffi::Buffer<ffi::BF16>>(2 * i + 1);
    auto y = results.get<ffi::AnyBuffer>(i);
    if (!codes.has_value() || !scales.has_value() || !y.has_value())
      return ffi::Error::InvalidArgument("expected codes, and scales of bfloat16");
    const auto sizes = codes->dimensions();
    is_4 = codes->element_type() == ffi::U8;
    groups = sizes[1];
    size = sizes[2] * (is_4 ? 8 : 4);
    bytes += codes->element_count();
    matrices.push_back({reinterpret_cast<const uint8_t*>(codes->untyped_data()),
                        reinterpret_cast<const Bfloat16*>(scales->untyped_data()),
                        nullptr, (*y)->dimensions().back(), sizes[2]});
    ys.emplace_back(**y);
    matrices.back().y = ys.back().data();
  }
  struct Part { int64_t matrix, begin, end; };  // Of panels.
  std::vector<Part> pieces;
  const int64_t threads = std::max<int64_t>(pool.num_threads(), 1);
  const int64_t parts = std::clamp<int64_t>(bytes / kBytes, 1, 4 * threads);
  for (size_t i = 0; i < matrices.size(); ++i) {
    const int64_t panels = (matrices[i].columns + kColumns - 1) / kColumns;
    const int64_t own = std::clamp<int64_t>(parts, 1, std::max<int64_t>(panels, 1));
    for (int64_t p = 0; p < own; ++p)
      pieces.push_back({int64_t(i), panels * p / own, panels * (p + 1) / own});
  }
  auto rounded = std::make_shared<Rounded>(read.data(), rows, inputs, groups, size);
  auto work = [=, matrices = std::move(matrices), pieces](int64_t at) {
    const Part& part = pieces[at];
    for (int64_t p = part.begin; p < part.end; ++p)
      if (is_4) Rows<4>(*rounded, matrices[part.matrix], p, 0, rows);
      else Rows<8>(*rounded, matrices[part.matrix], p, 0, rows);
  };
  if (parts == 1)
    for (size_t i = 0; i < pieces.size(); ++i) work(i);
  else
    Parallel(pool, pieces.size(), std::move(work));
  for (Written& y : ys) y.Finish(pool);
  return ffi::Error::Success();
}

// ---- x W where its largest number is all that is read: screened by codes of W. ----

// What underflows is less, and what is within the other of overflow is left to `Products`.
constexpr float kTiny = 1e-28f, kHuge = 1e30f;
constexpr float kLeast = -std::numeric_limits<float>::infinity();
// A column by itself takes as long as so many that are read together.
constexpr int64_t kAlone = 64;

// A row's |x|, and what rounding took of it.
struct Norms { float whole, lost; };

std::vector<Norms> NormsOf(const float* x, const Rounded& rounded, int64_t rows,
                           int64_t inputs) {
  std::vector<Norms> norms;
  for (int64_t r = 0; r < rows; ++r) {
    double whole = 0, lost = 0;
    for (int64_t i = 0; i < inputs; ++i) {
      const double value = x[r * inputs + i], code = rounded.codes[r * rounded.width + Place(i)];
      const double off = value - code * rounded.scales[r];
      whole += value * value;
      lost += off * off;
    }
    norms.push_back({float(std::sqrt(whole)), float(std::sqrt(lost))});
  }
  return norms;
}

// Where codes can't tell whether a number of x W is its row's largest it is computed as
// `Products` does, and so the largest is; others are less, by codes alone
// (docs/math.md, "Certified heads").
//
// `by_rows`: W is an embedding E [columns, inputs], of whose transpose the codes are.
ffi::Error Certified(ffi::ThreadPool pool, Floats x, Floats w, ffi::Buffer<ffi::S8> codes,
                     ffi::Buffer<ffi::BF16> scales, Floats bounds,
                     ffi::Result<Floats> result, bool by_rows) {
  const int64_t inputs = x.dimensions().back(), columns = result->dimensions().back();
  const int64_t rows = x.element_count() / std::max<int64_t>(inputs, 1);
  const int64_t panels = codes.dimensions()[0], vectors = codes.dimensions()[2];
  const float *data = x.typed_data(), *of_w = bounds.typed_data(), *of_x = of_w + columns;
  float* y = result->typed_data();
  const Rounded rounded(data, rows, inputs, 1, 4 * vectors);
  const Matrix matrix = {reinterpret_cast<const uint8_t*>(codes.typed_data()),
                         reinterpret_cast<const Bfloat16*>(scales.typed_data()), y,
                         columns, vectors};
  const std::vector<Norms> norms = NormsOf(data, rounded, rows, inputs);
  auto off = [&](int64_t r, int64_t c) {
    return of_w[c] * norms[r].whole + of_x[c] * norms[r].lost + kTiny;
  };
  const int64_t threads = std::max<int64_t>(pool.num_threads(), 1);
  const int64_t parts = std::clamp<int64_t>(codes.element_count() / kBytes, 1, 4 * threads);
  std::vector<float> least(parts * rows);  // What a row's largest number is at least.
  Parallel(pool, parts, [&](int64_t part) {
    std::vector<float> by_column(rows * kColumns, kLeast);
    for (int64_t p = panels * part / parts; p < panels * (part + 1) / parts; ++p) {
      Rows<8>(rounded, matrix, p, 0, rows);
      const int64_t first = p * kColumns, count = std::min(kColumns, columns - first);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < count; ++c) {
          const float low = y[r * columns + first + c] - off(r, first + c);
          float& most = by_column[r * kColumns + c];
          most = low > most ? low : most;
        }
    }
    for (int64_t r = 0; r < rows; ++r) {
      const float* some = by_column.data() + r * kColumns;
      least[part * rows + r] = *std::max_element(some, some + kColumns);
    }
  });
  for (int64_t i = rows; i < parts * rows; ++i)
    least[i % rows] = std::max(least[i % rows], least[i]);
  std::atomic<int64_t> left(std::max<int64_t>(rows * columns / kAlone, kColumns));
  for (int64_t r = 0; r < rows; ++r)
    if (!(std::abs(least[r]) < kHuge)) left = -1;
  Parallel(pool, parts, [&](int64_t part) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t p = panels * part / parts; p < panels * (part + 1) / parts; ++p) {
        const int64_t first = p * kColumns, end = std::min(first + kColumns, columns);
        auto is_less = [&](int64_t c) {
          const float by_codes = y[r * columns + c];
          return (by_codes + off(r, c) < least[r]) & (by_codes > -kHuge);
        };
        int64_t less = 0;
        for (int64_t c = first; c < end; ++c) less += is_less(c);
        for (int64_t c = first; c < end && less < end - first; ++c) {
          if (is_less(c)) continue;
          if (left.fetch_sub(1) <= 0) return;
          const float *row = data + r * inputs, *all = w.typed_data();
          y[r * columns + c] = by_rows ? OfRow(row, all + c * inputs, inputs)
                                       : OfColumn(row, all + c, inputs, columns);
        }
      }
  });
  if (left < 0 && by_rows)
    ByRows(pool, data, rows, inputs, {w.typed_data(), y, columns});
  else if (left < 0)
    Products(pool, data, rows, inputs, {{w.typed_data(), y, columns}});
  return ffi::Error::Success();
}

}  // namespace

// How bytes are multiplied here.
extern "C" const char* specdec_bytes() {
#if defined(__AVX512VNNI__)
  return "AVX-512 VNNI";
#elif defined(__AVXVNNI__)
  return "AVX-VNNI";
#elif defined(__AVX512BW__)
  return "AVX-512";
#elif defined(__AVX2__)
  return "AVX2";
#else
  return "portable C++";
#endif
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(specdec_certified, Certified,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<ffi::Buffer<ffi::S8>>()
                                  .Arg<ffi::Buffer<ffi::BF16>>()
                                  .Arg<Floats>()
                                  .Ret<Floats>()
                                  .Attr<bool>("by_rows"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(specdec_rounded, Multiply,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .RemainingRets());
