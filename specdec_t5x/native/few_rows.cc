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
#include "floats.h"
#include "threads.h"
#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace {

using namespace specdec;
namespace ffi = xla::ffi;

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
template <int rows, int vectors, typename Weight>
__attribute__((noinline)) void Tile(const float* x, const Weight* w, float* y,
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

template <typename Weight>
void Column(const float* x, const MatrixOf<Weight>& m, int64_t rows, int64_t inputs,
            const Range& range, int64_t column) {
  const Weight* w = m.weights + range.first * m.columns + column;
  for (int64_t r = 0; r < rows; ++r)
    m.y[r * m.columns + column] = OfColumn(x + r * inputs + range.first, w,
                                           range.last - range.first, m.columns);
}

template <int most, int vectors, typename Weight>
void Rows(const float* x, const Weight* w, float* y, float* block, const Pass& pass,
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
template <int most, int vectors, typename Weight>
void Stripe(const float* x, const Weight* w, float* y, float* block, const Pass& pass,
            int64_t rows, int64_t left) {
  if constexpr (vectors > 1)
    if (left < vectors)
      return Stripe<most, vectors - 1>(x, w, y, block, pass, rows, left);
  Rows<most, vectors>(x, w, y, block, pass, rows);
}

// All rows along the columns, in tiles of `tile` rows.
template <int most = kMost, typename Weight>
void Along(const float* x, const Weight* w, float* y, float* block, const Pass& pass,
           int64_t rows, int tile) {
  if constexpr (most > 1)
    if (tile < most) return Along<most - 1>(x, w, y, block, pass, rows, tile);
  constexpr int wide = Wide(most);
  for (int64_t c = 0; c < pass.width; c += wide * kLanes)
    Stripe<most, wide>(x, w + c, y + c, block + c, pass, rows,
                       (pass.width - c) / kLanes);
}

int TileRows(int64_t rows) { return rows <= kMost ? rows : kMany; }

template <typename Weight>
void Columns(const float* x, const MatrixOf<Weight>& m, int64_t rows, int64_t inputs,
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
template <typename Weight>
struct Apart {
  Apart(const MatrixOf<Weight>& whole, int64_t rows, int64_t inputs)
      : whole(whole), size(rows * whole.columns), blocks((inputs + kBlock - 1) / kBlock),
        sums(new float[blocks * size]) {}

  // Where the sums of a block go.
  MatrixOf<Weight> Block(int64_t block) const {
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

  const MatrixOf<Weight> whole;
  const int64_t size, blocks;
  const std::unique_ptr<float[]> sums;  // [blocks, rows, columns]
};

template <typename Weight>
void ProductsOf(ffi::ThreadPool& pool, const float* x, int64_t rows, int64_t inputs,
                const std::vector<MatrixOf<Weight>>& matrices) {
  int64_t columns = 0;
  for (const auto& m : matrices) columns += m.columns;
  // Reading W is the work of one row, and arithmetic that of many.
  const int64_t parts = Parts(pool, inputs * columns * (1 + rows / 4));
  const int64_t blocks = (inputs + kBlock - 1) / kBlock;
  const bool by_blocks = rows <= kFew && blocks >= 2 * pool.num_threads();
  struct Part { MatrixOf<Weight> matrix; Range range; };
  std::vector<Part> pieces;
  std::vector<std::unique_ptr<Apart<Weight>>> apart;
  const int64_t wide = Wide(TileRows(rows)) * kLanes;
  // Of no columns, pieces would never end: parts may be more than there are columns.
  const int64_t least = std::max<int64_t>(columns / parts, 1);
  const int64_t size = (least + wide - 1) / wide * wide;
  for (const auto& m : matrices) {
    if (by_blocks && parts > 1 && inputs * m.columns > kLarge) {
      apart.push_back(std::make_unique<Apart<Weight>>(m, rows, inputs));
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

}  // namespace

void specdec::Products(ffi::ThreadPool& pool, const float* x, int64_t rows,
                       int64_t inputs, const std::vector<Matrix>& matrices) {
  ProductsOf(pool, x, rows, inputs, matrices);
}

namespace {

// Some rows of x by some of E, each read once; a lane sums every kLanes-th product.
template <int rows, int some, typename Weight>
__attribute__((noinline)) void Dots(const float* x, const Weight* e, float* y,
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
        total = Added(total, x[r * inputs + i], Widened(e[c * inputs + i]));
      y[r * columns + c] = total;
    }
}

// As `Rows`: all rows of x, in tiles.
template <int most, int some, typename Weight>
void DotsOfRows(const float* x, const Weight* e, float* y, int64_t rows, int64_t inputs,
                int64_t columns) {
  for (; rows >= most; rows -= most, x += most * inputs, y += most * columns)
    Dots<most, some>(x, e, y, inputs, columns);
  if constexpr (most > 1) DotsOfRows<most - 1, some>(x, e, y, rows, inputs, columns);
}

// All rows of x by m's columns from `begin` on, in tiles of `most` rows.
template <int most = kMost, typename Weight>
void ByColumns(const float* x, int64_t rows, int64_t inputs, const MatrixOf<Weight>& m,
               int64_t begin, int64_t end) {
  if constexpr (most > 1)
    if (rows < most) return ByColumns<most - 1>(x, rows, inputs, m, begin, end);
  constexpr int some = Wide(most);
  const Weight* e = m.weights;
  int64_t c = begin;
  for (; c + some <= end; c += some)
    DotsOfRows<most, some>(x, e + c * inputs, m.y + c, rows, inputs, m.columns);
  for (; c < end; ++c)
    DotsOfRows<most, 1>(x, e + c * inputs, m.y + c, rows, inputs, m.columns);
}

template <typename Weight>
void ByRowsOf(ffi::ThreadPool& pool, const float* x, int64_t rows, int64_t inputs,
              const MatrixOf<Weight>& m) {
  const int64_t parts = Parts(pool, inputs * m.columns * (1 + rows / 4));
  Parallel(pool, parts, [=](int64_t part) {
    ByColumns(x, rows, inputs, m, m.columns * part / parts, m.columns * (part + 1) / parts);
  });
}

}  // namespace

float specdec::OfRow(const float* x, const float* e, int64_t inputs) {
  float y;
  Dots<1, 1>(x, e, &y, inputs, 1);
  return y;
}

void specdec::ByRows(ffi::ThreadPool& pool, const float* x, int64_t rows, int64_t inputs,
                     const Matrix& m) {
  ByRowsOf(pool, x, rows, inputs, m);
}

namespace {

// y = x W for each W of one type.
template <typename Weight>
void MultiplyAll(ffi::ThreadPool& pool, const Read& x, int64_t inputs,
                 const ffi::RemainingArgs& weights, std::vector<Written>& ys) {
  std::vector<MatrixOf<Weight>> matrices;
  for (size_t i = 0; i < ys.size(); ++i) {
    const auto w = weights.get<ffi::AnyBuffer>(i);
    matrices.push_back({reinterpret_cast<const Weight*>(w->untyped_data()), ys[i].data(),
                        w->dimensions()[1]});
  }
  ProductsOf(pool, x.data(), x.size() / std::max<int64_t>(inputs, 1), inputs, matrices);
}

ffi::Error Multiply(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::RemainingArgs weights,
                    ffi::RemainingRets results) {
  const Read read(x);
  std::vector<Written> ys;
  bool is_narrow = false;
  for (size_t i = 0; i < results.size(); ++i) {
    const auto w = weights.get<ffi::AnyBuffer>(i);
    auto y = results.get<ffi::AnyBuffer>(i);
    if (!w.has_value() || !y.has_value() || (i && is_narrow != IsNarrow(*w)))
      return ffi::Error::InvalidArgument("expected matrices of one type");
    is_narrow = IsNarrow(*w);
    ys.emplace_back(**y);
  }
  const int64_t inputs = x.dimensions().back();
  if (is_narrow)
    MultiplyAll<Bfloat16>(pool, read, inputs, weights, ys);
  else
    MultiplyAll<float>(pool, read, inputs, weights, ys);
  for (Written& y : ys) y.Finish(pool);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(specdec_multiply, Multiply,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .RemainingRets());

namespace {

ffi::Error MultiplyByRows(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer e,
                          ffi::Result<ffi::AnyBuffer> result) {
  const int64_t inputs = x.dimensions().back(), columns = e.dimensions()[0];
  const Read read(x);
  Written y(*result);
  const int64_t rows = read.size() / std::max<int64_t>(inputs, 1);
  const void* table = e.untyped_data();
  if (IsNarrow(e)) {
    const auto narrow = reinterpret_cast<const Bfloat16*>(table);
    ByRowsOf<Bfloat16>(pool, read.data(), rows, inputs, {narrow, y.data(), columns});
  } else {
    const auto wide = reinterpret_cast<const float*>(table);
    ByRowsOf<float>(pool, read.data(), rows, inputs, {wide, y.data(), columns});
  }
  y.Finish(pool);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    specdec_by_rows, MultiplyByRows,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .Arg<ffi::AnyBuffer>()
        .Arg<ffi::AnyBuffer>()
        .Ret<ffi::AnyBuffer>());
