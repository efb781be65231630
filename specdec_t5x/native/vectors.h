// What the processor computes at once, how sums are rounded, bfloat16, and e^x in a form
// for compilers to make that of.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace specdec {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int kLanes = kVectorBytes / sizeof(float);
typedef float Lanes __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));

// The upper half of a float32.
struct Bfloat16 {
  uint16_t bits;
};

inline float Widened(float number) { return number; }

inline float Widened(Bfloat16 number) {
  const uint32_t bits = uint32_t(number.bits) << 16;
  float widened;
  std::memcpy(&widened, &bits, sizeof(widened));
  return widened;
}

// To the nearest number, and to the even one of two.
inline void Narrow(float number, float& narrowed) { narrowed = number; }

inline void Narrow(float number, Bfloat16& narrowed) {
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof(bits));
  const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  narrowed.bits = number == number ? rounded : bits >> 16 | 0x40;  // NaN stays NaN.
}

// Long sums are sums of blocks of so many products: else the rounding of a float32 sum
// of one sign grows with its length, past 1e-6 of it at 1,024. (Where all products are
// equal, each addition errs alike, and 3e-6 are left at 10,240.)
constexpr int64_t kBlock = 128;

// sum + x * w. Where the processor can round that once, all tiles do: left to itself,
// GCC fuses or not by the tile's shape and the processor's make.
inline Lanes Added(Lanes sum, Lanes x, Lanes w) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(x, w, sum);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(x, w, sum);
#else
  return sum + x * w;
#endif
}

inline Lanes Added(Lanes sum, float x, Lanes w) { return Added(sum, x - Lanes{}, w); }

inline float Added(float sum, float x, float w) {
#if defined(__FMA__)
  return __builtin_fmaf(x, w, sum);
#else
  return sum + x * w;
#endif
}

inline Lanes Load(const float* data) { return *reinterpret_cast<const Lanes*>(data); }

inline Lanes Load(const Bfloat16* data) {
  constexpr int bytes = kVectorBytes / 2;
  typedef uint16_t Halves __attribute__((vector_size(bytes), aligned(2), may_alias));
  typedef uint32_t Words __attribute__((vector_size(kVectorBytes)));
  const Halves halves = *reinterpret_cast<const Halves*>(data);
  return (Lanes)(__builtin_convertvector(halves, Words) << 16);
}

inline float Sum(const Lanes& lanes) {
  typedef float Four __attribute__((vector_size(16)));
  Four parts[kLanes / 4];
  std::memcpy(parts, &lanes, sizeof(parts));
  for (int p = 1; p < kLanes / 4; ++p) parts[0] += parts[p];
  return (parts[0][0] + parts[0][2]) + (parts[0][1] + parts[0][3]);
}

// Below it e^x is no normal float32.
constexpr float kLowest = -87.0f;

// e^x for x <= 0, to 2 ulp; without branches. e^kLowest for what is lower.
inline float Exp(float x) {
  x = x < kLowest ? kLowest : x;
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

}  // namespace specdec
