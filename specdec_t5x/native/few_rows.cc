// Products of few rows, for XLA on CPU.
//
// Decoding multiplies a few rows by large matrices: reading the matrix is the work.
// Each tile of it is read once for a few rows, whose sums stay in registers. A row's
// numbers are the same whatever the other rows, the tiles and the threads are.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "few_rows.h"
#include "threads.h"
#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace {

using namespace specdec;
namespace ffi = xla::ffi;
using Floats = ffi::Buffer<ffi::F32>;

// As registers are: 16 with AVX, else 32.
constexpr int kSums = kVectorBytes == 32 ? 12 : 24, kMost = kVectorBytes == 32 ? 6 : 8;

// A tile is some rows of x by Wide(rows) vectors of W's columns. Up to kMost rows are one
// tile's, so that W is read once; more are in tiles of kMany.
constexpr int kMany = kSums / 3;
constexpr int Wide(int rows) { return std::min(6, kSums / rows); }
// Rows of W that are asked for ahead of their use: by the second cache. A core waits for
// few lines of its first at once, so that it would read and compute by turns.
constexpr int kAhead = 16;
// Matrices of more numbers than kLarge, which no core's first cache holds, come from
// memory, which is fastest in its own order: for up to kFew rows of x, kStep rows of W
// are read along all columns before the next. Down the columns, widths that are powers
// of 2, as T5's, also fill few sets of a cache. And where there are blocks of W's rows
// for all threads, each takes whole ones, along up to kRun columns.
constexpr int64_t kLarge = 1 << 16, kFew = 8, kStep = 16, kRun = 3072;

// One pass along columns, over some rows of W.
struct Pass {
  int64_t inputs, columns;  // Of x and W: how far apart their rows are.
  int64_t count;            // Rows of W.
  int64_t width;            // Columns, as many as a row of sums has.
  // Whether it begins or ends a block of products, and whether that is the first.
  bool begins, ends, first;
};

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

// Part of a product: some columns, over some rows of W, which begin with a block.
struct Range {
  int64_t begin, end;  // Columns.
  int64_t first, last;
};

void Column(const float* x, const Matrix& m, int64_t rows, int64_t inputs,
            const Range& range, int64_t column) {
  const float* w = m.weights + range.first * m.columns + column;
  for (int64_t r = 0; r < rows; ++r)
    m.y[r * m.columns + column] = OfColumn(x + r * inputs + range.first, w,
                                           range.last - range.first, m.columns);
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
             const Range& range) {
  const int64_t begin = range.begin, end = range.end;
  const int64_t width = (end - begin) / kLanes * kLanes;
  const int64_t step = rows <= kFew && inputs * m.columns > kLarge ? kStep : kBlock;
  std::vector<float> part(step < kBlock ? rows * width : 0);
  // Whole blocks leave no sums: any place of their size will do.
  float* block = step < kBlock ? part.data() : m.y + begin;
  for (int64_t i = range.first; i < range.last; i += step) {
    const int64_t next = std::min(i + step, range.last);
    const bool ends = next % kBlock == 0 || next == range.last;
    const bool first = i < range.first + kBlock;
    Along(x + i, m.weights + i * m.columns + begin, m.y + begin, block,
          {inputs, m.columns, next - i, width, i % kBlock == 0, ends, first}, rows,
          TileRows(rows));
  }
  for (int64_t c = begin + width; c < end; ++c) Column(x, m, rows, inputs, range, c);
}

// A product whose blocks' sums are computed apart, and added in their order at last.
struct Apart {
  Apart(const Matrix& whole, int64_t rows, int64_t inputs)
      : whole(whole), size(rows * whole.columns), blocks((inputs + kBlock - 1) / kBlock),
        sums(new float[blocks * size]) {}

  // Where the sums of a block go.
  Matrix Block(int64_t block) const {
    return {whole.weights, sums.get() + block * size, whole.columns};
  }

  void Add(ffi::ThreadPool& pool) const {
    const int64_t parts = Parts(pool, blocks * size);
    Parallel(pool, parts, [&, parts](int64_t part) {
      const int64_t begin = size * part / parts, end = size * (part + 1) / parts;
      std::copy(sums.get() + begin, sums.get() + end, whole.y + begin);
      for (int64_t b = 1; b < blocks; ++b)
        for (int64_t i = begin; i < end; ++i) whole.y[i] += sums[b * size + i];
    });
  }

  const Matrix whole;
  const int64_t size, blocks;
  const std::unique_ptr<float[]> sums;  // [blocks, rows, columns]
};

}  // namespace

void specdec::Products(ffi::ThreadPool& pool, const float* x, int64_t rows,
                       int64_t inputs, const std::vector<Matrix>& matrices) {
  int64_t columns = 0;
  for (const Matrix& m : matrices) columns += m.columns;
  // Reading W is the work of one row, and arithmetic that of many.
  const int64_t parts = Parts(pool, inputs * columns * (1 + rows / 4));
  const int64_t blocks = (inputs + kBlock - 1) / kBlock;
  const bool by_blocks = rows <= kFew && blocks >= 2 * pool.num_threads();
  struct Part { Matrix matrix; Range range; };
  std::vector<Part> pieces;
  std::vector<std::unique_ptr<Apart>> apart;
  const int64_t wide = Wide(TileRows(rows)) * kLanes;
  // Of no columns, pieces would never end: parts may be more than there are columns.
  const int64_t least = std::max<int64_t>(columns / parts, 1);
  const int64_t size = (least + wide - 1) / wide * wide;
  for (const Matrix& m : matrices) {
    if (by_blocks && parts > 1 && inputs * m.columns > kLarge) {
      apart.push_back(std::make_unique<Apart>(m, rows, inputs));
      for (int64_t b = 0; b < blocks; ++b)
        for (int64_t c = 0; c < m.columns; c += kRun)
          pieces.push_back({apart.back()->Block(b),
                            {c, std::min(c + kRun, m.columns), b * kBlock,
                             std::min((b + 1) * kBlock, inputs)}});
    } else {
      for (int64_t c = 0; c < m.columns; c += size)
        pieces.push_back({m, {c, std::min(c + size, m.columns), 0, inputs}});
    }
  }
  const int64_t count = parts == 1 ? 1 : pieces.size();
  const int64_t step = (pieces.size() + count - 1) / count;
  auto work = [=, pieces = std::move(pieces)](int64_t at) {
    const int64_t end = std::min<int64_t>((at + 1) * step, pieces.size());
    for (int64_t i = at * step; i < end; ++i)
      Columns(x, pieces[i].matrix, rows, inputs, pieces[i].range);
  };
  Parallel(pool, count, std::move(work));
  for (const auto& product : apart) product->Add(pool);
}

namespace {

// Some rows of x by some of E, each read once; a lane sums every kLanes-th product.
template <int rows, int some>
__attribute__((noinline)) void Dots(const float* x, const float* e, float* y,
                                    int64_t inputs, int64_t columns) {
  const int64_t width = inputs / kLanes * kLanes;
  Lanes sums[rows][some] = {};
  for (int64_t i = 0; i < width; i += kLanes)
    for (int c = 0; c < some; ++c) {
      const Lanes tile = Load(e + c * inputs + i);
      for (int r = 0; r < rows; ++r)
        sums[r][c] = Added(sums[r][c], Load(x + r * inputs + i), tile);
    }
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < some; ++c) {
      float total = Sum(sums[r][c]);
      for (int64_t i = width; i < inputs; ++i)
        total = Added(total, x[r * inputs + i], e[c * inputs + i]);
      y[r * columns + c] = total;
    }
}

// As `Rows`: all rows of x, in tiles.
template <int most, int some>
void DotsOfRows(const float* x, const float* e, float* y, int64_t rows, int64_t inputs,
                int64_t columns) {
  for (; rows >= most; rows -= most, x += most * inputs, y += most * columns)
    Dots<most, some>(x, e, y, inputs, columns);
  if constexpr (most > 1) DotsOfRows<most - 1, some>(x, e, y, rows, inputs, columns);
}

// All rows of x by m's columns from `begin` on, in tiles of `most` rows.
template <int most = kMost>
void ByColumns(const float* x, int64_t rows, int64_t inputs, const Matrix& m,
               int64_t begin, int64_t end) {
  if constexpr (most > 1)
    if (rows < most) return ByColumns<most - 1>(x, rows, inputs, m, begin, end);
  constexpr int some = Wide(most);
  const float* e = m.weights;
  int64_t c = begin;
  for (; c + some <= end; c += some)
    DotsOfRows<most, some>(x, e + c * inputs, m.y + c, rows, inputs, m.columns);
  for (; c < end; ++c)
    DotsOfRows<most, 1>(x, e + c * inputs, m.y + c, rows, inputs, m.columns);
}

}  // namespace

float specdec::OfRow(const float* x, const float* e, int64_t inputs) {
  float y;
  Dots<1, 1>(x, e, &y, inputs, 1);
  return y;
}

void specdec::ByRows(ffi::ThreadPool& pool, const float* x, int64_t rows, int64_t inputs,
                     const Matrix& m) {
  const int64_t parts = Parts(pool, inputs * m.columns * (1 + rows / 4));
  Parallel(pool, parts, [=](int64_t part) {
    ByColumns(x, rows, inputs, m, m.columns * part / parts, m.columns * (part + 1) / parts);
  });
}

namespace {

ffi::Error Multiply(ffi::ThreadPool pool, Floats x, ffi::RemainingArgs weights,
                    ffi::RemainingRets ys) {
  const int64_t inputs = x.dimensions().back();
  const int64_t rows = x.element_count() / std::max<int64_t>(inputs, 1);
  std::vector<Matrix> matrices;
  for (size_t i = 0; i < weights.size(); ++i) {
    auto w = weights.get<Floats>(i);
    auto y = ys.get<Floats>(i);
    if (!w.has_value() || !y.has_value())
      return ffi::Error::InvalidArgument("products are of float32");
    matrices.push_back({w->typed_data(), (*y)->typed_data(), w->dimensions()[1]});
  }
  Products(pool, x.typed_data(), rows, inputs, matrices);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(specdec_multiply, Multiply,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Floats>()
                                  .RemainingArgs()
                                  .RemainingRets());

namespace {

ffi::Error MultiplyByRows(ffi::ThreadPool pool, Floats x, Floats e, ffi::Result<Floats> y) {
  const int64_t inputs = x.dimensions().back(), columns = e.dimensions()[0];
  const int64_t rows = x.element_count() / std::max<int64_t>(inputs, 1);
  ByRows(pool, x.typed_data(), rows, inputs, {e.typed_data(), y->typed_data(), columns});
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    specdec_by_rows, MultiplyByRows,
    ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Floats>().Arg<Floats>().Ret<Floats>());
