// Products of few rows, as other kernels need them.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace specdec {

template <typename Weight>
struct MatrixOf {
  const Weight* weights;  // [inputs, columns]; of `ByRows` [columns, inputs]
  float* y;               // [rows, columns]
  int64_t columns;
};

using Matrix = MatrixOf<float>;

// y = x W for each W.
void Products(xla::ffi::ThreadPool& pool, const float* x, int64_t rows, int64_t inputs,
              const std::vector<Matrix>& matrices);

// A row of x by one column of W: summed in the order, and rounded as, `Products` does.
template <typename Weight>
inline float OfColumn(const float* x, const Weight* w, int64_t inputs, int64_t columns) {
  float total = 0;
  for (int64_t i = 0; i < inputs;) {
    float sum = 0;
    for (const int64_t end = std::min(i + kBlock, inputs); i < end; ++i)
      sum = Added(sum, x[i], Widened(w[i * columns]));
    total += sum;
  }
  return total;
}

// y = x E^T, for E [columns, inputs].
void ByRows(xla::ffi::ThreadPool& pool, const float* x, int64_t rows, int64_t inputs,
            const Matrix& matrix);

// A row of x by one of E: summed in the order, and rounded as, `ByRows` does.
float OfRow(const float* x, const float* e, int64_t inputs);

}  // namespace specdec
