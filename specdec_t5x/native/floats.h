// Arrays of float32 or bfloat16 as the kernels' float32.

#pragma once

#include <cstdint>
#include <vector>

#include "threads.h"
#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace specdec {

inline bool IsNarrow(const xla::ffi::AnyBuffer& array) {
  return array.element_type() == xla::ffi::BF16;
}

// An array that is read: itself, or a widened copy.
class Read {
 public:
  explicit Read(const xla::ffi::AnyBuffer& array)
      : size_(array.element_count()), copy_(IsNarrow(array) ? size_ : 0) {
    data_ = reinterpret_cast<const float*>(array.untyped_data());
    if (!IsNarrow(array)) return;
    const auto narrow = reinterpret_cast<const Bfloat16*>(array.untyped_data());
    for (int64_t i = 0; i < size_; ++i) copy_[i] = Widened(narrow[i]);
    data_ = copy_.data();
  }

  const float* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  int64_t size_;
  std::vector<float> copy_;
  const float* data_;
};

// An array that is written: itself, or by `Finish` from a float32 one.
class Written {
 public:
  explicit Written(const xla::ffi::AnyBuffer& array)
      : size_(array.element_count()), copy_(IsNarrow(array) ? size_ : 0) {
    if (IsNarrow(array))
      narrow_ = reinterpret_cast<Bfloat16*>(array.untyped_data());
    else
      wide_ = reinterpret_cast<float*>(array.untyped_data());
  }

  float* data() { return narrow_ ? copy_.data() : wide_; }

  void Finish(xla::ffi::ThreadPool& pool) {
    if (!narrow_) return;
    const float* from = copy_.data();
    Bfloat16* to = narrow_;
    const int64_t size = size_, parts = Parts(pool, size);
    Parallel(pool, parts, [=](int64_t part) {
      const int64_t end = size * (part + 1) / parts;
      for (int64_t i = size * part / parts; i < end; ++i) Narrow(from[i], to[i]);
    });
  }

 private:
  int64_t size_;
  std::vector<float> copy_;
  Bfloat16* narrow_ = nullptr;
  float* wide_ = nullptr;
};

}  // namespace specdec
